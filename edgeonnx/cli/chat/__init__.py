"""`edgeonnx chat`: a conversation in the terminal, with the agent that a device runs."""
