"""Who signs: roles, keys, their changes, and changes that wait for signatures."""
