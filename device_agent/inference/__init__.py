"""From texts or tensors to answers: the only place on the device that knows ONNX Runtime."""
