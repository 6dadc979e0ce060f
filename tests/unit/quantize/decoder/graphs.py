"""Small decoders of the contract for these tests: a Llama-like one, and one like GPT-2 with odd sizes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from edgeonnx.model.graph import StoredGraph, restore_graph, store_graph
from edgeonnx.spec.generation import INPUT_IDS, LOGITS, MASK
from tests.support import decoders

WIDTH, INNER, TOKENS, PLACES, HEADS = 48, 80, 77, 64, 3
"""Of the GPT-2-like decoder: no width is a multiple of 32."""


def llama(*, seed: int = 0, grid: bool = False) -> StoredGraph:
    """The tiny decoder of the other tests, with logits at every position and without its poisonous token.

    Args:
        seed: Of the weights.
        grid: Put the matrices of the layers on grids of 16 levels, as Q4_1 does.
    """
    data, tensors = decoders.graph(decoders.TinyDecoder(seed=seed, every_position=True))
    model = ir.from_proto(onnx.ModelProto.FromString(data))
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            array = np.frombuffer(tensors[str(tensor.location)], np.float32).reshape(tensor.shape.numpy())
            array = np.nan_to_num(array)
            if grid and str(value.name)[0].isdigit():
                array = on_grid(array.T).T
            value.const_value = ir.tensor(np.ascontiguousarray(array), name=value.name)
    return store_graph(model)


def on_grid(weight: np.ndarray, levels: int = 16) -> np.ndarray:
    """float32 (outputs, inputs) rounded as Q4_1 does: a step and a minimum for each block of 32, both float16."""
    blocks = weight.reshape(len(weight), -1, 32)
    low = blocks.min(2, keepdims=True).astype(np.float16).astype(np.float32)
    step = ((blocks.max(2, keepdims=True) - low) / (levels - 1)).astype(np.float16).astype(np.float32)
    rounded = np.clip(np.rint((blocks - low) / step), 0, levels - 1)
    return np.asarray(rounded * step + low, dtype=np.float32).reshape(weight.shape)


def gpt2(*, seed: int = 0) -> StoredGraph:
    """One layer with layer norms, biases, learned positions, and a head that is tied to the embedding."""
    rng = np.random.default_rng(seed)

    def array(*shape: int, mean: float = 0.0) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]) + mean, dtype=np.float32)

    table = {"head": array(WIDTH, TOKENS), "wpe": array(PLACES, WIDTH) * 0.1, "one": np.array([1], np.int64)}
    for name in ("ln1", "ln2", "lnf"):
        table |= {f"{name}.w": array(WIDTH, mean=1.0), f"{name}.b": array(WIDTH)}
    for name, inputs, outputs in (
        ("qkv", WIDTH, 3 * WIDTH),
        ("proj", WIDTH, WIDTH),
        ("fc", WIDTH, INNER),
        ("out", INNER, WIDTH),
    ):
        table |= {f"{name}.w": array(inputs, outputs), f"{name}.b": array(outputs)}

    def node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
        return helper.make_node(op, inputs.split(), output.split(), name=f"n_{output.split()[0]}", **attributes)

    def linear(source: str, name: str, output: str) -> list[onnx.NodeProto]:
        return [
            node("MatMul", f"{source} {name}.w", f"{name}.product"),
            node("Add", f"{name}.product {name}.b", output),
        ]

    caches = ("past_key_values.0.key", "past_key_values.0.value"), ("present.0.key", "present.0.value")
    attention = helper.make_node(
        "GroupQueryAttention",
        ["qkv", "", "", *caches[0], "last", "total"],
        ["attended", *caches[1]],
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=HEADS,
        scale=0.25,
    )
    nodes = [
        node("Transpose", "head", "wte", perm=[1, 0]),
        node("Gather", f"wte {INPUT_IDS}", "tokens"),
        node("ReduceSum", f"{MASK} one", "lengths", keepdims=1),
        node("Shape", INPUT_IDS, "width", start=1),
        node("Sub", "lengths width", "start0"),
        node("Max", "start0 zero", "start"),
        node("Squeeze", "width", "width0"),
        node("Range", "zero width0 step", "places0"),
        node("Add", "start places0", "places"),
        node("Gather", "wpe places", "positions"),
        node("Add", "tokens positions", "hidden"),
        node("Sub", "lengths one", "last0"),
        node("Squeeze", "last0 one", "last64"),
        node("Cast", "last64", "last", to=TensorProto.INT32),
        node("Shape", MASK, "total0", start=1),
        node("Squeeze", "total0", "total64"),
        node("Cast", "total64", "total", to=TensorProto.INT32),
        node("LayerNormalization", "hidden ln1.w ln1.b", "normed1"),
        *linear("normed1", "qkv", "qkv"),
        attention,
        *linear("attended", "proj", "projected"),
        node("Add", "hidden projected", "middle"),
        node("LayerNormalization", "middle ln2.w ln2.b", "normed2"),
        *linear("normed2", "fc", "inner"),
        node("Relu", "inner", "active"),
        *linear("active", "out", "lowered"),
        node("Add", "middle lowered", "final"),
        node("LayerNormalization", "final lnf.w lnf.b", "normed"),
        node("MatMul", "normed head", LOGITS),
    ]
    table |= {"zero": np.array(0, np.int64), "step": np.array(1, np.int64)}
    size = HEADS, WIDTH // HEADS

    def caches_of(names: tuple[str, ...], places: str) -> list[onnx.ValueInfoProto]:
        shape = ("batch", size[0], places, size[1])
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]

    inputs = [
        helper.make_tensor_value_info(INPUT_IDS, TensorProto.INT64, ("batch", "sequence")),
        helper.make_tensor_value_info(MASK, TensorProto.INT64, ("batch", "total")),
        *caches_of(caches[0], "places"),
    ]
    outputs = [
        helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ("batch", "sequence", TOKENS)),
        *caches_of(caches[1], "places_after"),
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in table.items()]
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
    body = helper.make_graph(nodes, "gpt2", inputs, outputs, constants)
    return store_graph(ir.from_proto(helper.make_model(body, opset_imports=opsets, ir_version=10)))


def logits(graph: StoredGraph, ids: np.ndarray, lengths: tuple[int, ...] | None = None) -> np.ndarray:
    """Prompts, right-padded to `ids`: float32 (batch, sequence or 1, vocabulary)."""
    mask = np.ones_like(ids)
    for row, length in enumerate(lengths or ()):
        mask[row, length:] = 0
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    with tempfile.TemporaryDirectory() as folder:
        session = ort.InferenceSession(str(graph.write(Path(folder))), options, providers=["CPUExecutionProvider"])
        feed: dict[str, np.ndarray] = {INPUT_IDS: ids, MASK: mask}
        for value in session.get_inputs()[2:]:
            feed[value.name] = np.zeros((len(ids), value.shape[1], 0, value.shape[3]), np.float32)
        return np.asarray(session.run([LOGITS], feed)[0])


def prompts(rows: int, width: int, *, seed: int = 1, most: int = TOKENS) -> np.ndarray:
    """Random token ids, int64 (rows, width)."""
    return np.random.default_rng(seed).integers(0, most, (rows, width))


def texts(count: int = 4) -> list[list[int]]:
    """Token ids to calibrate on."""
    return prompts(count, 60, seed=9).tolist()


def operators(graph: StoredGraph) -> list[str]:
    """Operators of the main graph, in its order."""
    return [node.op_type for node in restore_graph(graph).graph]


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Mean square of the difference, relative to the mean square of what was expected."""
    return float(np.square(found - expected).mean() / np.square(expected).mean())
