"""The models that requests meet: from a bundle's folder to one that serves, is swapped, drained and unloaded."""
