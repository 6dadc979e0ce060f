"""The queue in front of a model: which rows run together, who may wait, and the threads that run them."""
