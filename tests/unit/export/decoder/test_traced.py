"""The LM head and the embedding of a graph that torch exported."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from edgeonnx.errors import ExportError
from edgeonnx.export.decoder.traced import settle_head

VOCABULARY, WIDTH = 11, 4


def exported(*, turned: bool, head: str = "MatMul") -> ir.Graph:
    """ids -> Gather -> head -> logits, the head's weight as stored or behind a Transpose."""
    generator = np.random.default_rng(0)
    table, other = (
        ir.Value(name=name, const_value=ir.tensor(generator.standard_normal(size).astype(np.float32), name=name))
        for name, size in (("table", (VOCABULARY, WIDTH)), ("head", (WIDTH, VOCABULARY)))
    )
    ids = ir.Value(name="input_ids")
    gather = ir.node("Gather", [table, ids])
    nodes = [gather]
    if turned:
        nodes.append(ir.node("Transpose", [table], attributes={"perm": [1, 0]}))
    nodes.append(ir.node(head, [gather.outputs[0], nodes[-1].outputs[0] if turned else other]))
    nodes[-1].outputs[0].name = "logits"
    return ir.Graph([ids], [nodes[-1].outputs[0]], nodes=nodes, initializers=[table, other], opset_imports={"": 22})


@pytest.mark.parametrize("turned", [True, False], ids=["a large head", "a small head"])
def test_embedding_and_head_read_one_tensor_where_they_are_tied(turned: bool) -> None:
    graph = exported(turned=turned)
    name = "table" if turned else "head"
    before = graph.initializers[name].const_value
    assert before is not None
    wanted = before.numpy().T if turned else before.numpy()
    settle_head(graph, tied=True)
    assert [node.op_type for node in graph] == ["Transpose", "Gather", "MatMul"]
    (weight,) = graph.initializers.values()
    assert weight.const_value is not None
    np.testing.assert_array_equal(weight.const_value.numpy(), wanted)
    assert graph.outputs[0].producer().inputs[1] is weight


def test_an_embedding_of_its_own_is_kept() -> None:
    graph = exported(turned=False)
    settle_head(graph, tied=False)
    assert set(graph.initializers) == {"table", "lm_head.MatMul.weight"}
    assert [node.op_type for node in graph] == ["Gather", "MatMul"]


def test_another_form_of_head_is_refused() -> None:
    with pytest.raises(ExportError, match="another form"):
        settle_head(exported(turned=True, head="Gemm"), tied=True)
