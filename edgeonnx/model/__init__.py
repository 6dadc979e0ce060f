"""The model as it travels between the stages of the build host: its graph, its answers, and how it is run.

Every stage may use this package, and it uses none of them.
"""
