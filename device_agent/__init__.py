"""The device agent: serves a bundle on a small machine, without torch, transformers or onnx.

Layers, upper ones import lower ones only: `cli > api > models > inference > config`.
"""
