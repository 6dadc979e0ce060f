"""What `edgeonnx.spec.numerics` says of this machine's CPU, ONNX Runtime does."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from device_agent.inference.devices.providers import device_profile
from edgeonnx.spec.numerics import IntegerKernel, integer_kernel, saturates

Weights = NDArray[np.int8]


def multiply(activations: NDArray[np.uint8], weights: Weights, zero_point: int, *, constant: bool) -> NDArray[np.int32]:
    """`MatMulInteger` by ONNX Runtime; constant weights are packed when the session opens, others in each run."""
    zero = numpy_helper.from_array(np.uint8(zero_point), "zero")
    node = helper.make_node("MatMulInteger", ["a", "w", "zero"], ["y"])
    inputs = [helper.make_tensor_value_info("a", TensorProto.UINT8, activations.shape)]
    fixed = [numpy_helper.from_array(weights, "w"), zero] if constant else [zero]
    if not constant:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.INT8, weights.shape))
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT32, None)]
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs, fixed),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {"a": activations} if constant else {"a": activations, "w": weights}
    result: NDArray[np.int32] = session.run(["y"], feeds)[0]
    return result


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("zero_point", [0, 128])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("weight_max", [64, 127, 128])
def test_onnx_runtime_is_exact_where_it_is_said_to_be(
    weight_max: int, rows: int, zero_point: int, constant: bool
) -> None:
    profile = device_profile()
    kernel = integer_kernel(profile.architecture, profile.instruction_sets)
    if kernel is IntegerKernel.UNKNOWN:
        pytest.skip("nothing is said of this CPU")
    inner, columns = 383, 67  # no multiple of any block
    activations = np.full((rows, inner), 255, np.uint8)
    activations[rows // 2] = 0
    weights = np.full((inner, columns), min(weight_max, 127), np.int8)
    weights[:, ::2] = -weight_max
    expected = (activations.astype(np.int64) - zero_point) @ weights.astype(np.int64)
    found = multiply(activations, weights, zero_point, constant=constant)
    if saturates(kernel, 255, weight_max):
        assert (found != expected).any() or rows == 1
    else:
        np.testing.assert_array_equal(found, expected)
