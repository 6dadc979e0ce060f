"""Making a graph smaller and faster: each recipe takes a stored graph and gives another one, with the same signature.

Nothing here judges the result; `edgeonnx.evaluate` does.
"""
