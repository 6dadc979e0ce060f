"""Packaging a model that generates text: the same stages as for encoders, with runs over caches in between."""
