"""What is installed on this device and what is being tried: durable files, slots, and the states they go through."""
