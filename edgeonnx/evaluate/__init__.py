"""How good a variant is: fidelity to the source, independence of batch neighbours, size, speed, and the gate on them.

Arrays and a function that runs a graph go in, figures come out: no torch, no files.
"""
