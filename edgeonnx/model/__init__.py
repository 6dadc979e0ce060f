"""The model as it travels between the stages of the build host: its graph, its answers, and how it is run.

Every stage may use this package, and it uses none of them.
"""

import os

# ONNX Runtime's wheels send usage events to their maker unless this is set before they are imported. What a company
# packages is nobody else's business.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
