"""Blocks against ONNX Runtime: its own tool packs the same bytes, and its kernel multiplies by the same numbers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from edgeonnx.quantize.decoder.blocks import Blocks, round_activations, round_asymmetric, round_symmetric


def matrix(outputs: int, inputs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32)


def tool(weight: np.ndarray, size: int, bits: int) -> dict[str, np.ndarray]:
    """What ONNX Runtime's tool makes of a matrix (outputs, inputs)."""
    body = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, weight.shape[1]))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, len(weight)))],
        [numpy_helper.from_array(np.ascontiguousarray(weight.T), "w")],
    )
    made = MatMulNBitsQuantizer(helper.make_model(body), bits=bits, block_size=size, is_symmetric=False)
    made.process()
    return {item.name: numpy_helper.to_array(item) for item in made.model.model.graph.initializer}


@pytest.mark.parametrize(("bits", "size", "inputs"), [(8, 32, 96), (4, 32, 96), (4, 16, 80), (8, 16, 72), (4, 32, 72)])
def test_plain_rounding_is_what_the_tool_of_onnx_runtime_makes(bits: int, size: int, inputs: int) -> None:
    weight = matrix(24, inputs)
    ours, theirs = round_asymmetric(weight, size, bits), tool(weight, size, bits)
    zero_points = ours.packed_zero_points()
    assert zero_points is not None
    np.testing.assert_array_equal(zero_points.ravel(), theirs["w_zero_points"].ravel())
    np.testing.assert_allclose(ours.scales.ravel(), theirs["w_scales"].ravel(), rtol=1e-6)
    packed = theirs[f"w_Q{bits}"].reshape(ours.packed_values().shape)
    real = inputs * bits // 8  # what fills the last block up is multiplied by nothing
    np.testing.assert_array_equal(ours.packed_values().reshape(24, -1)[:, :real], packed.reshape(24, -1)[:, :real])


def multiply(blocks: Blocks, rows: np.ndarray, level: int) -> np.ndarray:
    constants = {"q": blocks.packed_values(), "s": blocks.scales}
    zero_points = blocks.packed_zero_points()
    if zero_points is not None:
        constants["z"] = zero_points
    node = helper.make_node(
        "MatMulNBits",
        ["x", *constants],
        ["y"],
        domain="com.microsoft",
        K=blocks.inputs,
        N=len(blocks.values),
        bits=blocks.bits,
        block_size=blocks.size,
        accuracy_level=level,
    )
    body = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("rows", blocks.inputs))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("rows", len(blocks.values)))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    data: onnx.ModelProto = helper.make_model(body, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(data.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": rows})[0])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rounded", [round_asymmetric, round_symmetric])
@pytest.mark.parametrize("inputs", [96, 72])
def test_the_kernel_multiplies_what_floats_says(bits: int, rounded: object, inputs: int) -> None:
    blocks = rounded(matrix(24, inputs), 32, bits)  # type: ignore[operator]
    rows = matrix(3, inputs, seed=2)
    np.testing.assert_allclose(multiply(blocks, rows, 1), rows @ blocks.floats().T, atol=2e-4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [16, 32])
def test_at_level_4_the_kernel_rounds_activations_as_we_do(bits: int, size: int) -> None:
    blocks, rows = round_asymmetric(matrix(24, 96), size, bits), matrix(3, 96, seed=2)
    expected = round_activations(rows, size) @ blocks.floats().T
    np.testing.assert_allclose(multiply(blocks, rows, 4), expected, atol=2e-4)
    assert np.abs(expected - rows @ blocks.floats().T).max() > 2e-3  # rounding them is no small thing


def test_symmetric_rounding_keeps_whole_multiples_of_a_scale() -> None:
    whole = np.random.default_rng(3).integers(-127, 128, (8, 64)).astype(np.float32)
    whole[:, ::32] = 127
    np.testing.assert_allclose(round_symmetric(whole * 0.01, 32, 8).floats(), whole * 0.01, atol=1e-6)


def test_blocks_of_zeros_stay_zeros() -> None:
    nothing = np.zeros((4, 64), np.float32)
    for blocks in (round_asymmetric(nothing, 32, 4), round_symmetric(nothing, 32, 8)):
        assert not blocks.floats().any()
    assert not round_activations(nothing, 32).any()


def test_every_takes_one_output_in_so_many() -> None:
    blocks = round_asymmetric(matrix(9, 64), 32, 4)
    np.testing.assert_array_equal(blocks.every(4).floats(), blocks.floats()[::4])
