"""The plain Python and NumPy twins of the compiled kernels: same names, same arguments, same results, same errors.

They serve where there is no compiled kernel, and are the oracle of the tests: written to be read, not to be fast.
"""
