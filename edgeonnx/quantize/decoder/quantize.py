"""Weights of a decoder as integers: float graph in, quantized graph out, with the same inputs and outputs.

Matrices become `MatMulNBits`, and the embedding table `GatherBlockQuantized`. Where the model ties head and embedding,
both read the same tensor. An answer does not depend on its neighbours in the batch: activations are rounded in blocks
of a row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgeonnx.model.graph import store_graph
from edgeonnx.quantize.decoder.activations import observe
from edgeonnx.quantize.decoder.blocks import round_asymmetric
from edgeonnx.quantize.decoder.build import CONTRIB, Builder
from edgeonnx.quantize.decoder.choose import choose
from edgeonnx.quantize.decoder.recipe import Role
from edgeonnx.quantize.decoder.sites import check_sites, find_embedding, find_sites, numbers, open_model
from edgeonnx.quantize.guards import check_quantizable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.quantize.decoder.recipe import WeightRecipe

TABLE_BITS, TABLE_SIZE = 8, 32
"""Form of an embedding table that the head does not share."""


def quantize_decoder(
    graph: StoredGraph, recipe: WeightRecipe, *, calibration: Sequence[Sequence[int]] | None = None
) -> StoredGraph:
    """Quantize the weights of a decoder.

    Args:
        graph: A float graph of the contract in `edgeonnx.spec.generation`, with logits at one or every position.
        recipe: How.
        calibration: Token ids of real texts; some thousand tokens do. None: each weight is rounded by itself, and
            nothing is smoothed.

    Returns:
        A graph with the same inputs and outputs.

    Raises:
        QuantizationError: The graph is quantized already, has weights that are not finite, or has no LM head of the
            known form.
    """
    model = open_model(graph)
    check_quantizable(model)
    sites = find_sites(model.graph)
    check_sites(sites, model)
    names = list(dict.fromkeys(site.name for site in sites))
    seen = {} if calibration is None else observe(graph, names, calibration)
    embedding = find_embedding(model.graph, sites)
    builder = Builder(model.graph, accuracy_level=recipe.accuracy_level)
    for place, site in enumerate(sites):
        tied = embedding is not None and embedding.tied and site.role is Role.HEAD
        form = recipe.format_of(site.role)
        # A table with columns for block means cannot be looked up in.
        no_means = tied and form.bits != TABLE_BITS
        allowed = replace(recipe, exact=False) if no_means or site.role in recipe.anew else recipe
        chosen = choose(site.weights(), seen.get(site.name), form, allowed, may_smooth=site.norm is not None)
        if place + 1 == len(sites) or all(other.name != site.name for other in sites[place + 1 :]):
            seen.pop(site.name, None)
        builder.site(site, chosen)
        if tied and embedding is not None:
            builder.table(embedding, chosen.matrices[0], chosen.smoothing)
    if embedding is not None and not embedding.tied:
        builder.table(embedding, round_asymmetric(numbers(embedding.table), TABLE_SIZE, TABLE_BITS), None)
    return _finish(model)


def _finish(model: ir.Model) -> StoredGraph:
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    model.opset_imports[CONTRIB] = 1
    RemoveUnusedNodesPass()(model)
    return store_graph(model)
