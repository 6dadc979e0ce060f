"""edgeonnx: take a trained model to small machines and keep it right there.

The build host's packages are imported on use, so that `import edgeonnx` stays light on a device.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("edgeonnx")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
