"""Generating text with a decoder: caches, runs, sampling, and many sequences at once."""
