from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from device_agent.inference.devices.contract import DecoderGraph, check_decoder
from edgeonnx.errors import ManifestError
from edgeonnx.spec.generation import CacheShape, Generation

SHAPE = CacheShape(layers=2, heads=3, head_size=8)
GENERATION = Generation(cache=SHAPE, context_length=64, stop_ids=())


@dataclass(frozen=True)
class Node:
    name: str
    type: str
    shape: tuple[int | str | None, ...]


def graph(cache: str = "tensor(float)") -> dict[str, Node]:
    """Every input and output of a graph that keeps the contract, by name."""
    nodes = [
        Node("input_ids", "tensor(int64)", ("batch", "sequence")),
        Node("attention_mask", "tensor(int64)", ("batch", None)),
        Node("logits", "tensor(float)", ("batch", 1, 300)),
        *(Node(name, cache, ("batch", 3, "places", 8)) for name in (*SHAPE.past_names, *SHAPE.present_names)),
    ]
    return {node.name: node for node in nodes}


def check(nodes: dict[str, Node]) -> DecoderGraph:
    outputs = [node for name, node in nodes.items() if name == "logits" or name.startswith("present")]
    inputs = [node for node in nodes.values() if node not in outputs]
    return check_decoder(GENERATION, inputs, outputs, where="decoder/cpu-int8")


def test_what_a_graph_says_of_itself() -> None:
    assert check(graph()) == DecoderGraph(cache_type="float32", vocabulary=300)
    assert check(graph("tensor(float16)")) == DecoderGraph(cache_type="float16", vocabulary=300)


Change = Callable[[dict[str, Node]], object]

WRONG: dict[str, tuple[Change, str]] = {
    "a cache is missing": (lambda nodes: nodes.pop("past_key_values.1.value"), "past_key_values.1.value"),
    "a layer too much": (
        lambda nodes: nodes.update({"present.2.key": Node("present.2.key", "tensor(float)", (1, 3, 1, 8))}),
        "present.2.key",
    ),
    "no mask": (lambda nodes: nodes.pop("attention_mask"), "attention_mask"),
    "position ids": (
        lambda nodes: nodes.update({"position_ids": Node("position_ids", "tensor(int64)", (1, 1))}),
        "position_ids",
    ),
    "ids of 32 bits": (lambda nodes: change(nodes, "input_ids", type="tensor(int32)"), "input_ids"),
    "logits of the whole vocabulary as one symbol": (
        lambda nodes: change(nodes, "logits", shape=("batch", 1, "vocabulary")),
        "fixed vocabulary",
    ),
    "half logits": (lambda nodes: change(nodes, "logits", type="tensor(float16)"), "logits"),
    "logits without positions": (lambda nodes: change(nodes, "logits", shape=("batch", 300)), "logits"),
    "a cache of another type": (
        lambda nodes: change(nodes, "present.0.value", type="tensor(float16)"),
        "present.0.value",
    ),
    "whole numbers": (
        lambda nodes: change(nodes, "past_key_values.0.key", type="tensor(int8)"),
        r"tensor\(float\) or tensor\(float16\)",
    ),
    "other heads": (
        lambda nodes: change(nodes, "past_key_values.1.key", shape=("batch", 4, "places", 8)),
        "past_key_values.1.key",
    ),
    "heads of another size": (
        lambda nodes: change(nodes, "present.1.key", shape=("batch", 3, "places", 16)),
        "present.1.key",
    ),
    "heads as a symbol": (
        lambda nodes: change(nodes, "present.1.key", shape=("batch", "heads", "places", 8)),
        "present.1.key",
    ),
}


def change(nodes: dict[str, Node], name: str, **what: object) -> None:
    nodes[name] = replace(nodes[name], **what)  # type: ignore[arg-type]


@pytest.mark.parametrize(("spoil", "named"), WRONG.values(), ids=WRONG)
def test_a_graph_that_does_not_keep_the_contract_is_refused_by_name(spoil: Change, named: str) -> None:
    nodes = graph()
    spoil(nodes)
    with pytest.raises(ManifestError, match=named) as caught:
        check(nodes)
    assert "decoder/cpu-int8" in str(caught.value)
