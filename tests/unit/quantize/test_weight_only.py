"""Weight-only quantization: sizes, block by block, neighbours."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from edgeonnx.errors import QuantizationError
from edgeonnx.quantize.weight_only import quantize_weight_only
from tests.support.graphs import OUTPUT, op_counts, run_graph, stored, tensor, tiny_batches, tiny_graph, to_proto


@pytest.mark.parametrize(("bits", "block"), [(8, 32), (4, 32), (4, 16)])
def test_every_product_has_packed_weights_and_a_scale_a_block(bits: int, block: int) -> None:
    made = quantize_weight_only(tiny_graph(), bits=bits, block_size=block)
    assert op_counts(made)["com.microsoft.MatMulNBits"] == 6
    assert "MatMul" not in op_counts(made)
    assert made.domains == ("com.microsoft",)
    assert tensor(made, f"down_Q{bits}").nbytes == 128 * 32 * bits // 8
    assert tensor(made, "down_scales").size == 32 * 128 // block


def test_four_bits_are_half_of_eight_and_embeddings_go_only_if_asked() -> None:
    graph = tiny_graph()
    sizes = {bits: quantize_weight_only(graph, bits=bits) for bits in (4, 8)}
    assert tensor(sizes[4], "words").dtype == np.float32
    assert tensor(sizes[4], "up_Q4").nbytes * 2 == tensor(sizes[8], "up_Q8").nbytes
    all_of_it = quantize_weight_only(graph, bits=4, embeddings=True)
    assert op_counts(all_of_it)["com.microsoft.GatherBlockQuantized"] == 1
    assert all_of_it.tensor_bytes < sizes[4].tensor_bytes - 96 * 32 * 3


@pytest.mark.parametrize("bits", [4, 8])
def test_eight_bit_weights_are_within_half_a_step(bits: int) -> None:
    made, weight = quantize_weight_only(tiny_graph(), bits=bits), tensor(tiny_graph(), "down")
    packed, middle = tensor(made, f"down_Q{bits}").reshape(32, 4, -1), 2 ** (bits - 1)
    numbers = packed if bits == 8 else np.stack([packed & 15, packed >> 4], axis=-1).reshape(32, 4, 32)
    scales = tensor(made, "down_scales").reshape(32, 4, 1)
    restored = ((numbers.astype(np.float32) - middle) * scales).reshape(32, 128).T
    steps = np.abs(restored - weight) / np.repeat(np.abs(scales[:, :, 0]), 32, axis=1).T
    assert steps.max() <= 1.001  # the extreme of a block may be cut by one step: one side has a number less
    assert np.mean(steps <= 0.5001) > 0.95


def test_an_answer_does_not_depend_on_its_neighbours() -> None:
    made = quantize_weight_only(tiny_graph(), bits=8)
    (batch,) = tiny_batches([(8, 12)])
    alone = [{name: value[row : row + 1] for name, value in batch.items()} for row in range(8)]
    (together,) = run_graph(made, [batch])
    separate = np.concatenate([found[OUTPUT] for found in run_graph(made, alone)])
    np.testing.assert_allclose(separate, together[OUTPUT], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"bits": 3}, "bits"),
        ({"bits": 4, "block_size": 8}, "block_size"),
        ({"bits": 4, "block_size": 48}, "block_size"),
        ({"bits": 4, "accuracy_level": 5}, "accuracy_level"),
        ({"bits": 8, "embeddings": True}, "embeddings"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, int], where: str) -> None:
    with pytest.raises(QuantizationError, match="out of its range") as raised:
        quantize_weight_only(tiny_graph(), **options)
    assert raised.value.where == where


def test_a_matrix_that_is_looked_up_and_multiplied_is_refused() -> None:
    """The tool would let one of the two read what was packed for the other."""
    proto = to_proto(tiny_graph())
    proto.graph.node.append(onnx.helper.make_node("Gather", ["up", "input_ids"], ["looked_up"], "look_up"))
    with pytest.raises(QuantizationError, match="both multiplied and looked up") as raised:
        quantize_weight_only(stored(proto), bits=4, embeddings=True)
    assert raised.value.where == "up"
    assert "look_up" in str(raised.value.hint)
