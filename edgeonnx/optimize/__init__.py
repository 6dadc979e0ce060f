"""Rewriting a graph so that it runs faster and computes the same: each pass says what it needs and what it ensures."""
