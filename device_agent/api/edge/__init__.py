"""The HTTP edge: connections, bodies, who may ask, and how an error is told."""
