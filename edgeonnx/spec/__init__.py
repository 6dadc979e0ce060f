"""What the build host and the device both know: the bundle's data model, without files and without numerics.

Only the standard library is imported here, so that any tool can read a bundle's metadata.
"""
