"""From texts or tensors to answers: the only place on the device that knows ONNX Runtime."""

import os

# ONNX Runtime's official builds (since 1.29 on Linux too) report each session to Microsoft, and keep an id and a
# database in the user's cache for that. This agent talks to its clients only; who wants it sets the variable to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
