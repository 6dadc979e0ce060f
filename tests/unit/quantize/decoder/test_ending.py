"""The shipped form: logits of the last position, the same as before."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from edgeonnx.errors import QuantizationError
from edgeonnx.quantize.decoder import WEIGHT_RECIPES, last_position, quantize_decoder
from edgeonnx.spec.generation import LOGITS
from tests.unit.quantize.decoder.graphs import gpt2, llama, logits, operators, prompts


@pytest.mark.parametrize("name", ["float", "int8", "gpt2"])
def test_the_last_logits_are_those_of_the_full_graph(name: str) -> None:
    full = gpt2() if name == "gpt2" else llama()
    if name == "int8":
        full = quantize_decoder(full, WEIGHT_RECIPES[8][0])
    short, ids = last_position(full), prompts(2, 9)
    expected, found = logits(full, ids), logits(short, ids)
    assert found.shape == (2, 1, expected.shape[2])
    np.testing.assert_allclose(found[:, 0], expected[:, -1], atol=1e-6)


def test_tensors_are_shared_and_the_signature_says_one_position() -> None:
    full = llama()
    short = last_position(full)
    assert short.tensors is full.tensors
    assert short.node_count == full.node_count + 1 == len(operators(short))
    shapes = {spec.name: spec.shape for spec in short.signature.outputs}
    assert shapes[LOGITS] == ("batch", 1, 271)
    assert shapes["present.0.key"] == next(s.shape for s in full.signature.outputs if s.name == "present.0.key")


def test_logits_that_come_from_nowhere_are_refused() -> None:
    graph = llama()
    model = onnx.ModelProto.FromString(graph.model)
    head = next(node for node in model.graph.node if LOGITS in node.output)
    head.op_type = "Add"
    broken = type(graph)(**{**graph.__dict__, "model": model.SerializeToString()})
    with pytest.raises(QuantizationError, match="straight line"):
        last_position(broken)
