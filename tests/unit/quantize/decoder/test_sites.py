"""Which matrices a decoder has and what they do, found from the graph."""

from __future__ import annotations

import numpy as np
import pytest

from edgeonnx.errors import QuantizationError
from edgeonnx.quantize.decoder.recipe import Role
from edgeonnx.quantize.decoder.sites import check_sites, find_embedding, find_sites, open_model
from tests.unit.quantize.decoder.graphs import gpt2, llama

LAYER = [(Role.ATTENTION_IN, 3), (Role.ATTENTION_OUT, 1), (Role.MLP_IN, 2), (Role.MLP_OUT, 1)]


def test_roles_of_a_llama() -> None:
    sites = find_sites(open_model(llama()).graph)
    assert [(site.role, len(site.nodes)) for site in sites] == [*LAYER, *LAYER, (Role.HEAD, 1)]
    assert [site.norm is not None for site in sites] == [True, False] * 4 + [True]


def test_roles_of_a_gpt2() -> None:
    sites = find_sites(open_model(gpt2()).graph)
    assert [(site.role, len(site.nodes)) for site in sites] == [(role, 1) for role in Role]
    assert [site.norm is not None for site in sites] == [True, False, True, False, True]


def test_the_embedding_and_whether_it_is_the_head() -> None:
    for graph, name, tied in ((llama(), "embed", False), (gpt2(), "head", True)):
        model = open_model(graph)
        found = find_embedding(model.graph, find_sites(model.graph))
        assert found is not None
        assert (found.table.name, found.tied) == (name, tied)


def test_a_norm_that_something_else_reads_is_not_divided() -> None:
    model = open_model(gpt2())
    normed = next(node for node in model.graph if node.op_type == "LayerNormalization").outputs[0]
    model.graph.outputs.append(normed)
    assert find_sites(model.graph)[0].norm is None


def test_tensors_are_opened_where_they_are() -> None:
    graph = llama()
    weight = find_sites(open_model(graph).graph)[0].weights()[0]
    assert not weight.flags.owndata
    assert not weight.flags.writeable
    assert any(np.shares_memory(weight, np.frombuffer(data, np.uint8)) for data in graph.tensors.values())


def test_a_graph_without_a_head_is_refused() -> None:
    model = open_model(llama())
    sites = find_sites(model.graph)
    check_sites(sites, model)
    with pytest.raises(QuantizationError, match="no LM head"):
        check_sites(sites[:-1], model)
