"""From a source model to an ONNX graph. The only package that imports torch or transformers."""
