"""Bringing an exported decoder into the contract's form, and refusing what cannot be brought into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeonnx.errors import ExportError
from edgeonnx.export.decoder.contract import conform
from edgeonnx.model.decoder import open_decoder
from edgeonnx.model.graph import StoredGraph, restore_graph
from edgeonnx.spec.generation import CacheShape
from tests.support.decoders import VOCABULARY, TinyDecoder, graph, signature

TINY = TinyDecoder(every_position=True)
ROWS = len(VOCABULARY)
Change = Callable[[ir.Model], None]


def exported(tiny: TinyDecoder = TINY) -> ir.Model:
    data, tensors = graph(tiny)
    return restore_graph(
        StoredGraph(model=data, tensors=tensors, signature=signature(), opset=23, node_count=0, domains=())
    )


def settle(model: ir.Model, cache: CacheShape = TINY.cache, dtype: ir.DataType = ir.DataType.FLOAT) -> StoredGraph:
    return conform(model, cache, dtype, ROWS)


def test_order_and_axes_become_those_of_the_contract() -> None:
    model = exported()
    model.graph.inputs[:] = list(model.graph.inputs)[::-1]
    model.graph.outputs[:] = list(model.graph.outputs)[::-1]
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = ir.Shape([f"{value.name}_{axis}" for axis in range(len(value.shape or ()))])
    found = settle(model).signature
    assert [(spec.name, spec.shape) for spec in found.inputs[:3]] == [
        ("input_ids", ("batch", "sequence")),
        ("attention_mask", ("batch", "total")),
        ("past_key_values.0.key", ("batch", TINY.cache.heads, "places", TINY.cache.head_size)),
    ]
    assert [(spec.name, spec.shape) for spec in found.outputs[:2]] == [
        ("logits", ("batch", "sequence", ROWS)),
        ("present.0.key", ("batch", TINY.cache.heads, "places_after", TINY.cache.head_size)),
    ]
    assert tuple(spec.name for spec in found.inputs[2:]) == TINY.cache.past_names
    assert tuple(spec.name for spec in found.outputs[1:]) == TINY.cache.present_names


def test_traces_of_the_build_host_are_gone() -> None:
    model = exported()
    model.metadata_props["where"] = "/home/someone"
    model.graph[0].doc_string = "/home/someone"
    assert b"/home/someone" not in settle(model).model


def test_narrow_logits_are_widened_and_stay_the_same(tmp_path: Path) -> None:
    half = TinyDecoder(half=True, every_position=True)
    model = exported(half)
    logits = model.graph.outputs[0]
    narrow = ir.node("Cast", [logits], attributes={"to": ir.DataType.FLOAT16.value})
    narrow.outputs[0].dtype, narrow.outputs[0].shape = ir.DataType.FLOAT16, logits.shape
    model.graph.append(narrow)
    model.graph.outputs[0] = narrow.outputs[0]
    logits.name, narrow.outputs[0].name = "wide", "logits"
    widened = settle(model, dtype=ir.DataType.FLOAT16)
    assert widened.signature.outputs[0].dtype.label == "float32"
    found = []
    for item in (settle(exported(half), dtype=ir.DataType.FLOAT16), widened):
        folder = tmp_path / str(len(found))
        decoder = open_decoder(item.write(folder), folder, TINY.cache)
        decoder.reserve(1, 8)
        found.append(decoder.extend(0, [5, 6, 7], 0))
    np.testing.assert_array_equal(found[0].astype(np.float16), found[1])


def _rename_past(model: ir.Model) -> None:
    model.graph.inputs[2].name = "past.0"


def _drop_output(model: ir.Model) -> None:
    del model.graph.outputs[-1]


def _add_input(model: ir.Model) -> None:
    model.graph.inputs.append(ir.Value(name="position_ids", type=ir.TensorType(ir.DataType.INT64)))


def _narrow_ids(model: ir.Model) -> None:
    model.graph.inputs[0].dtype = ir.DataType.INT32


def _half_cache(model: ir.Model) -> None:
    model.graph.inputs[2].dtype = ir.DataType.FLOAT16


def _other_heads(model: ir.Model) -> None:
    model.graph.inputs[2].shape = ir.Shape(["batch", TINY.cache.heads + 1, "places", TINY.cache.head_size])


def _attention(model: ir.Model) -> ir.Node:
    return next(node for node in model.graph if node.op_type == "GroupQueryAttention")


def _window(model: ir.Model) -> None:
    _attention(model).attributes["local_window_size"] = ir.AttrInt64("local_window_size", 64)


def _attention_heads(model: ir.Model) -> None:
    _attention(model).attributes["kv_num_heads"] = ir.AttrInt64("kv_num_heads", 1)


def _other_attention(model: ir.Model) -> None:
    _attention(model).op_type = "Attention"


def _old(model: ir.Model) -> None:
    model.graph.opset_imports[""] = 17


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_rename_past, "missing: past_key_values.0.key"),
        (_drop_output, "missing: present.1.value"),
        (_add_input, "not expected: position_ids"),
        (_narrow_ids, "input_ids"),
        (_half_cache, "past_key_values.0.key"),
        (_other_heads, "past_key_values.0.key"),
        (_window, "a window of 64"),
        (_attention_heads, "1 heads"),
        (_other_attention, "another number of GroupQueryAttention"),
        (_old, "at least 21"),
    ],
)
def test_what_is_no_decoder_of_the_contract_is_refused(change: Change, told: str) -> None:
    model = exported()
    change(model)
    with pytest.raises(ExportError) as caught:
        settle(model)
    assert told in str(caught.value)


def test_half_precision_is_asked_for_not_found() -> None:
    assert settle(exported(TinyDecoder(half=True, every_position=True)), dtype=ir.DataType.FLOAT16)
    with pytest.raises(ExportError, match="another type"):
        settle(exported(), dtype=ir.DataType.FLOAT16)
