"""Small stored graphs for tests: a transformer of one layer with weights from a seed, as the exporter would write it.

The graph has what recipes stumble over: an embedding Gather, MatMuls with and without a neighbouring Add, the standard
`Attention` of opset 23 with a boolean mask, LayerNormalization, Gelu, a masked mean, dynamic axes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from edgeonnx.bundle.golden import MASK_INPUT
from edgeonnx.model.graph import StoredGraph, restore_graph, store_graph
from edgeonnx.model.runtime import open_graph

if TYPE_CHECKING:
    from edgeonnx.model.ports import FloatTensors, IntTensors
    from tests.support.packaged import Packaged

VOCABULARY = 96
HIDDEN = 32
WIDE = 128
HEADS = 4
OUTPUT = "sentence_embedding"
OPSET = 23
Weights = dict[str, np.ndarray]


def tiny_weights(*, tied: bool = False, zero_rows: bool = False, seed: int = 0) -> Weights:
    """The weights of the tiny transformer by name; float32, matrices are (inputs, outputs).

    Args:
        tied: The key projection is the query projection: one initializer, used by two MatMuls.
        zero_rows: The embedding of token 0, an input row and an output column of `up` are zero.
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale / np.sqrt(rows)).astype(np.float32)

    weights = {"words": (rng.standard_normal((VOCABULARY, HIDDEN)) * 0.5).astype(np.float32)}
    # A sharp attention, so that a wrong mask or a wrong projection moves the answer.
    for name in ("query", "key", "value", "output"):
        weights[name] = matrix(HIDDEN, HIDDEN, 1.5)
    weights |= {"up": matrix(HIDDEN, WIDE), "down": matrix(WIDE, HIDDEN)}
    for name in ("query", "key", "value", "output", "up", "down"):
        weights[f"{name}.bias"] = (rng.standard_normal(weights[name].shape[1]) * 0.1).astype(np.float32)
    for name in ("norm1", "norm2"):
        weights[f"{name}.scale"] = (1 + rng.standard_normal(HIDDEN) * 0.1).astype(np.float32)
        weights[f"{name}.bias"] = (rng.standard_normal(HIDDEN) * 0.1).astype(np.float32)
    if tied:
        del weights["key"]
    if zero_rows:
        weights["words"][0] = 0
        weights["up"][3] = 0
        weights["up"][:, 5] = 0
    return weights


def tiny_graph(
    *, tied: bool = False, zero_rows: bool = False, seed: int = 0, change: Callable[[Weights], None] | None = None
) -> StoredGraph:
    """A transformer of one layer: int64 `input_ids` and `attention_mask` to a float32 (batch, 32) mean of its tokens.

    Args:
        tied: See `tiny_weights`; so are the next two.
        zero_rows: See `tiny_weights`.
        seed: See `tiny_weights`.
        change: Called with the weights by name before the graph is made, to break or bend one in place.
    """
    weights = tiny_weights(tied=tied, zero_rows=zero_rows, seed=seed)
    if change is not None:
        change(weights)
    return stored(tiny_proto(weights))


def tiny_proto(weights: Weights) -> onnx.ModelProto:
    """The tiny transformer with given weights, as a protobuf with its tensors in it."""
    constants: Weights = {
        "heads_shape": np.array([0, 0, HEADS, HIDDEN // HEADS], np.int64),
        "joined_shape": np.array([0, 0, HIDDEN], np.int64),
        "key_axes": np.array([1, 2], np.int64),
        "query_axes": np.array([1, 3], np.int64),
        "zero": np.array(0, np.int64),
        "last_axis": np.array([2], np.int64),
        "token_axis": np.array([1], np.int64),
        "one": np.array(1, np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["embedded"], "embed"),
        helper.make_node("Cast", [MASK_INPUT], ["mask_bool"], "mask_to_bool", to=TensorProto.BOOL),
        # ONNX Runtime wants the mask for every query, (batch, 1, tokens, tokens): every token is a query.
        helper.make_node("Unsqueeze", ["mask_bool", "key_axes"], ["mask_keys"], "mask_keys"),
        helper.make_node("Unsqueeze", ["input_ids", "query_axes"], ["ids_column"], "ids_unsqueeze"),
        helper.make_node("GreaterOrEqual", ["ids_column", "zero"], ["queries"], "is_query"),
        helper.make_node("And", ["queries", "mask_keys"], ["mask4"], "mask_pairs"),
        *_attention(weights),
        helper.make_node("Add", ["embedded", "attended"], ["sum1"], "residual1"),
        helper.make_node("LayerNormalization", ["sum1", "norm1.scale", "norm1.bias"], ["hidden"], "norm1", axis=-1),
        *_linear("up", "hidden", "wide"),
        helper.make_node("Gelu", ["wide"], ["active"], "gelu"),
        *_linear("down", "active", "narrow"),
        helper.make_node("Add", ["hidden", "narrow"], ["sum2"], "residual2"),
        helper.make_node("LayerNormalization", ["sum2", "norm2.scale", "norm2.bias"], ["last"], "norm2", axis=-1),
        *_masked_mean("last"),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", MASK_INPUT)
    ]
    outputs = [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", HIDDEN])]
    initializers = [numpy_helper.from_array(value, name) for name, value in {**weights, **constants}.items()]
    graph = helper.make_graph(nodes, "main", inputs, outputs, initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(proto, full_check=True)
    # As exported graphs have it: the types and shapes of what flows between the nodes.
    return onnx.shape_inference.infer_shapes(proto, strict_mode=True)


def attention_of_three_axes(weights: Weights) -> StoredGraph:
    """The tiny transformer with `Attention` on (batch, tokens, width), as the optimizer leaves it."""
    proto = tiny_proto(weights)
    dropped = ("_split", "_transpose", "join_heads")
    nodes = [node for node in proto.graph.node if not node.name.endswith(dropped)]
    place = next(index for index, node in enumerate(nodes) if node.op_type == "Attention")
    inputs = ["query_flat", "key_flat", "value_flat", "mask4"]
    nodes[place] = helper.make_node("Attention", inputs, ["joined"], "attention", q_num_heads=HEADS, kv_num_heads=HEADS)
    del proto.graph.node[:], proto.graph.value_info[:]
    proto.graph.node.extend(nodes)
    return stored(onnx.shape_inference.infer_shapes(proto, strict_mode=True))


def value_outlier(weights: Weights) -> None:
    """A value channel that is many times larger than the others: its migration pays."""
    weights["value"][:, 5] *= 40
    weights["output"][5] /= 40


def _linear(name: str, source: str, target: str, weight: str | None = None) -> list[onnx.NodeProto]:
    return [
        helper.make_node("MatMul", [source, weight or name], [f"{name}_product"], f"{name}_matmul"),
        helper.make_node("Add", [f"{name}_product", f"{name}.bias"], [target], f"{name}_add"),
    ]


def _attention(weights: Weights) -> list[onnx.NodeProto]:
    nodes = []
    for name in ("query", "key", "value"):
        nodes += _linear(name, "embedded", f"{name}_flat", name if name in weights else "query")
        nodes += [
            helper.make_node("Reshape", [f"{name}_flat", "heads_shape"], [f"{name}_heads"], f"{name}_split"),
            helper.make_node("Transpose", [f"{name}_heads"], [f"{name}4"], f"{name}_transpose", perm=[0, 2, 1, 3]),
        ]
    return [
        *nodes,
        helper.make_node("Attention", ["query4", "key4", "value4", "mask4"], ["context4"], "attention"),
        helper.make_node("Transpose", ["context4"], ["context"], "context_transpose", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["context", "joined_shape"], ["joined"], "join_heads"),
        *_linear("output", "joined", "attended"),
    ]


def _masked_mean(source: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Cast", [MASK_INPUT], ["mask_float"], "mask_to_float", to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask_float", "last_axis"], ["mask3"], "mask_expand"),
        helper.make_node("Mul", [source, "mask3"], ["masked"], "masked_mul"),
        helper.make_node("ReduceSum", ["masked", "token_axis"], ["total"], "sum_tokens", keepdims=0),
        helper.make_node("ReduceSum", ["mask3", "token_axis"], ["count"], "count_tokens", keepdims=0),
        helper.make_node("Max", ["count", "one"], ["some"], "at_least_one"),
        helper.make_node("Div", ["total", "some"], [OUTPUT], "mean"),
    ]


def stored(proto: onnx.ModelProto) -> StoredGraph:
    """A protobuf in the form that travels between the stages."""
    return store_graph(ir.from_proto(proto))


def to_proto(graph: StoredGraph) -> onnx.ModelProto:
    """A stored graph as a protobuf with all tensors in it."""
    return ir.to_proto(restore_graph(graph))


def tensor(graph: StoredGraph, name: str) -> np.ndarray:
    """An initializer of the main graph, in its own dtype."""
    value = restore_graph(graph).graph.initializers[name].const_value
    assert value is not None, name
    return value.numpy()


def op_counts(graph: StoredGraph) -> dict[str, int]:
    """How often each operator occurs in the main graph: `MatMul`, `com.microsoft.MatMulNBits`."""
    counts: dict[str, int] = {}
    for node in onnx.ModelProto.FromString(graph.model).graph.node:
        key = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        counts[key] = counts.get(key, 0) + 1
    return counts


def tiny_batches(sizes: Sequence[tuple[int, int]] = ((1, 3), (4, 9), (2, 16)), *, seed: int = 1) -> list[IntTensors]:
    """Batches of random tokens for the tiny transformer, padded on the right.

    Args:
        sizes: (rows, tokens) of each batch: different shapes, on purpose.
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(seed)
    batches = []
    for rows, width in sizes:
        lengths = rng.integers(1, width + 1, rows)
        lengths[0] = width
        mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
        batches.append({"input_ids": rng.integers(1, VOCABULARY, (rows, width)) * mask, MASK_INPUT: mask})
    return batches


def packaged_graph(packaged: Packaged, variant: str = "cpu-fp32") -> StoredGraph:
    """The graph of a bundle's variant as it was when it was stored."""
    component = packaged.bundle.manifest.entry_component
    chosen = next(item for item in component.variants if item.name == variant)
    path = packaged.bundle.model_path(component.name, chosen)
    proto = onnx.load(str(path), load_external_data=False)
    onnx.external_data_helper.load_external_data_for_model(proto, str(packaged.bundle.tensors_path(chosen)))
    return stored(proto)


def packaged_batches(packaged: Packaged, texts: Sequence[str], rows: int) -> list[IntTensors]:
    """Texts as padded batches of what a bundle's graph takes, by the text path that the device takes."""
    batches = []
    for start in range(0, len(texts), rows):
        tokens = packaged.tokenize(list(texts[start : start + rows]))
        batches.append({name: np.asarray(tokens[name], np.int64) for name in packaged.input_names})
    return batches


def run_graph(graph: StoredGraph, batches: Sequence[IntTensors]) -> list[FloatTensors]:
    """The graph's outputs for each batch, by ONNX Runtime on one thread of the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        run = open_graph(graph.write(Path(folder)), None, threads=1)
        return [run(batch) for batch in batches]


def min_cosine(first: Sequence[FloatTensors], second: Sequence[FloatTensors], name: str = OUTPUT) -> float:
    """The smallest cosine of two corresponding rows; NaN if one of them is."""
    found = []
    for one, other in zip(first, second, strict=True):
        a, b = one[name].astype(np.float64), other[name].astype(np.float64)
        found.append((a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)))
    return float(np.concatenate(found).min())
