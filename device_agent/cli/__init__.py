"""`edgeonnx-agent`: the command line of the device."""
