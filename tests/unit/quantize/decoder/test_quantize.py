"""Whole decoders with integer weights: right, on their own, tied once, with nothing left in float."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from edgeonnx.errors import QuantizationError
from edgeonnx.model.graph import StoredGraph, restore_graph, store_graph
from edgeonnx.quantize.decoder import WEIGHT_RECIPES, Role, WeightRecipe, quantize_decoder
from edgeonnx.quantize.decoder.build import Builder
from edgeonnx.quantize.decoder.sites import find_sites, numbers, open_model
from tests.unit.quantize.decoder.graphs import (
    INNER,
    TOKENS,
    WIDTH,
    error,
    gpt2,
    llama,
    logits,
    operators,
    prompts,
    texts,
)

ALL = [recipe for recipes in WEIGHT_RECIPES.values() for recipe in recipes]
BOUNDS = {8: 2e-3, 4: 0.1}
"""Largest relative error of the logits of small random decoders."""


@pytest.mark.parametrize("place", range(len(ALL)))
@pytest.mark.parametrize("make", [llama, gpt2])
def test_every_recipe_keeps_the_signature_and_stays_near(place: int, make: object) -> None:
    graph: StoredGraph = make()  # type: ignore[operator]
    recipe = ALL[place]
    made = quantize_decoder(graph, recipe, calibration=texts())
    assert made.signature == graph.signature
    assert "MatMul" not in operators(made)
    ids = prompts(2, 20)
    assert error(logits(made, ids), logits(graph, ids)) < BOUNDS[recipe.default.bits]


def test_weights_on_a_grid_are_exact_at_four_bits() -> None:
    graph, ids = llama(grid=True), prompts(2, 20)
    expected, recipe = logits(graph, ids), WEIGHT_RECIPES[4][1]
    made = quantize_decoder(graph, recipe, calibration=texts())
    assert Counter(operators(made))["AveragePool"] == 8  # one for each site of two layers
    faster = quantize_decoder(graph, WEIGHT_RECIPES[4][0], calibration=texts())
    assert Counter(operators(faster))["AveragePool"] == 6  # none behind the attentions
    rounded = quantize_decoder(graph, replace(recipe, exact=False), calibration=texts())
    assert error(logits(made, ids), expected) < 2e-3
    assert error(logits(made, ids), expected) < error(logits(rounded, ids), expected) / 10


@pytest.mark.parametrize("bits", [4, 8])
def test_an_answer_does_not_depend_on_its_neighbours(bits: int) -> None:
    made = quantize_decoder(llama(grid=True), WEIGHT_RECIPES[bits][0], calibration=texts())
    ids, lengths = prompts(3, 24), (24, 7, 15)
    together = logits(made, ids, lengths)
    for row, length in enumerate(lengths):
        alone = logits(made, ids[row : row + 1, :length])
        np.testing.assert_allclose(together[row, :length], alone[0], atol=1e-4)


def test_head_and_embedding_are_one_tensor() -> None:
    made = quantize_decoder(gpt2(), WEIGHT_RECIPES[8][0], calibration=texts())
    model = restore_graph(made)
    lookup = next(node for node in model.graph if node.op_type == "GatherBlockQuantized")
    head = [node for node in model.graph if node.op_type == "MatMulNBits"][-1]
    assert lookup.inputs[0] is head.inputs[1]
    blocks = {width: -(-width // 32) for width in (WIDTH, INNER)}
    matrices = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, INNER), (INNER, WIDTH), (WIDTH, TOKENS))
    expected = sum(outputs * blocks[inputs] * (32 + 4 + 1) for inputs, outputs in matrices)
    stored = {
        str(value.name): value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None and ".int8" in str(value.name)
    }
    assert sum(stored.values()) == expected


def test_smoothing_alone_changes_nothing() -> None:
    """The norm divides what the weights are multiplied by; the float graph computes the same."""
    for graph in (llama(), gpt2()):
        model = open_model(graph)
        builder = Builder(model.graph, accuracy_level=4)
        rng = np.random.default_rng(0)
        divided = [site for site in find_sites(model.graph) if site.norm is not None and site.role is not Role.HEAD]
        assert divided
        for site in divided:
            smoothing = np.exp2(rng.uniform(-3, 3, site.weights()[0].shape[1])).astype(np.float32)
            builder.divide_norm(site, smoothing)
            for node in site.nodes:
                weight = node.inputs[1]
                assert weight is not None
                weight.const_value = ir.tensor(numbers(weight) * smoothing[:, None], name=weight.name)
        ids = prompts(2, 20)
        np.testing.assert_allclose(logits(store_graph(model), ids), logits(graph, ids), atol=1e-4)


def test_the_same_input_gives_the_same_bytes() -> None:
    first, second = (quantize_decoder(gpt2(), WEIGHT_RECIPES[8][0], calibration=texts()) for _ in range(2))
    assert first.model == second.model
    assert first.tensors == second.tensors


def test_what_is_quantized_already_or_not_finite_is_refused() -> None:
    made = quantize_decoder(llama(), WEIGHT_RECIPES[8][0])
    with pytest.raises(QuantizationError):
        quantize_decoder(made, WEIGHT_RECIPES[8][0])
    model = restore_graph(llama())
    weight = model.graph.initializers["0.down"]
    broken = numbers(weight).copy()
    broken[3, 3] = np.nan
    weight.const_value = ir.tensor(broken, name=weight.name)
    with pytest.raises(QuantizationError):
        quantize_decoder(store_graph(model), WEIGHT_RECIPES[8][0])


def test_a_recipe_tells_the_manifest_what_it_is() -> None:
    recipe: WeightRecipe = WEIGHT_RECIPES[4][0]
    assert recipe.to_dict() == {
        "weights": {"bits": 4, "block_size": 32},
        "roles": {"head": {"bits": 8, "block_size": 64}},
        "smoothing": [0.5, 0.65, 0.8],
        "method": "gptq",
        "exact": True,
        "anew": ["attention_out"],
        "accuracy_level": 4,
    }
