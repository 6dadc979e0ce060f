"""Proof that an exported graph is valid, complete, and equal to its source model.

No torch here: the source model is a port (`SourceModel`), so the same checks serve any source.
"""
