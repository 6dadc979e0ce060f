"""Exported decoders against torch: every family, at lengths and batches that no tracing saw, with and without caches.

The builder runs in this process for the tiny models, since a process of its own imports for 6 s; SmolLM2 takes the
whole way.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import transformers

from edgeonnx.export.decoder import builder
from edgeonnx.export.decoder.load import LoadedDecoder, load_decoder
from edgeonnx.export.source import locate
from edgeonnx.export.tasks import plan_task
from edgeonnx.model.decoder import HostDecoder, open_decoder
from edgeonnx.model.graph import StoredGraph
from tests.support.tiny_decoders import (
    CONTEXT,
    SPECIALS,
    build_in_process,
    tiny_decoder,
    vocabulary,
    write_gguf,
)

LENGTHS = (90, 1, 17, 44)
CLOSE = 5e-5
"""Float32 in two orders of summation: logits here reach 20."""
HALF = 0.05
GREEDY = 32


@pytest.fixture(autouse=True)
def _fast_builder(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    paths = list(sys.path)
    if "smollm2" not in request.fixturenames:
        monkeypatch.setattr(builder, "_run", build_in_process)
    yield
    sys.path[:] = paths


def load(source: Path, max_length: int | None = None) -> LoadedDecoder:
    found = locate(str(source))
    return load_decoder(found, plan_task(found, None), max_length=max_length)


def open_graph(graph: StoredGraph, folder: Path, decoder: LoadedDecoder, rows: int = len(LENGTHS)) -> HostDecoder:
    opened = open_decoder(graph.write(folder), folder, decoder.facts.cache)
    opened.reserve(rows, CONTEXT)
    return opened


def some_rows(lengths: tuple[int, ...] = LENGTHS) -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    return [generator.integers(len(SPECIALS), len(vocabulary()), length) for length in lengths]


def check_runs(graph: StoredGraph, folder: Path, decoder: LoadedDecoder, tolerance: float = CLOSE) -> None:
    """Prompts side by side with padding, and the same tokens in pieces, end in torch's logits at every position."""
    rows = some_rows()
    wanted = [decoder.logits(row[None])[0] for row in rows]
    opened = open_graph(graph, folder, decoder)
    ids, mask = np.zeros((2, len(rows), max(LENGTHS)), np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)], mask[index, : len(row)] = row, 1
    prompts = opened.prompts(ids, mask)
    for index, row in enumerate(rows):
        np.testing.assert_allclose(prompts[index, : len(row)], wanted[index], rtol=0, atol=tolerance)

    opened.reserve(len(rows), CONTEXT)
    kept = np.array([max(len(row) - 3, 0) for row in rows])
    for index, (row, end) in enumerate(zip(rows, kept, strict=True)):
        for start, stop in ((0, end // 3), (end // 3, end // 2), (end // 2, end)):  # a prompt, then continuations
            if stop > start:
                found = opened.extend(index, row[start:stop], start)
                np.testing.assert_allclose(found, wanted[index][start:stop], rtol=0, atol=tolerance)
    for step in range(3):  # rows of different lengths, one token each; the shortest of them is empty at first
        tokens = np.array([row[min(end + step, len(row) - 1)] for row, end in zip(rows, kept, strict=True)])
        found = opened.step(tokens, kept + step)
        for index, (row, end) in enumerate(zip(rows, kept, strict=True)):
            if end + step < len(row):
                np.testing.assert_allclose(found[index], wanted[index][end + step], rtol=0, atol=tolerance)


def greedy(opened: HostDecoder, prompt: list[int], count: int) -> list[int]:
    opened.reserve(1, len(prompt) + count)
    found = [int(opened.extend(0, prompt, 0)[-1].argmax())]
    while len(found) < count:
        logits = opened.step(np.array(found[-1:]), np.array([len(prompt) + len(found) - 1]))
        found.append(int(logits[0].argmax()))
    return found


def holds_one_table(graph: StoredGraph, decoder: LoadedDecoder) -> bool:
    """Whether one tensor serves the embedding and the LM head."""
    model = onnx.load_from_string(graph.model)
    width = decoder.vocabulary_size
    return sum(width in tensor.dims for tensor in model.graph.initializer) == 1


FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5000.0}),
    ("mistral", {"sliding_window": CONTEXT, "num_key_value_heads": 1}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {"tie_word_embeddings": True}),
]
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS: list[tuple[str, dict[str, Any]]] = [
    ("linear", {"factor": 4.0}),
    ("dynamic", {"factor": 4.0}),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 32}),
    ("llama3", LLAMA3),
]


@pytest.mark.parametrize(("family", "options"), FAMILIES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_built_decoder_equals_torch(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    decoder = load(tiny_decoder(tmp_path / "source", family, **options))
    graph = decoder.export()
    check_runs(graph, tmp_path / "graph", decoder)
    assert holds_one_table(graph, decoder) is options.get("tie_word_embeddings", False)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize(("kind", "settings"), SCALINGS, ids=lambda value: value if isinstance(value, str) else "")
def test_scaled_rotary_positions_equal_torch(tmp_path: Path, family: str, kind: str, settings: dict[str, Any]) -> None:
    rope = {"rope_type": kind, "rope_theta": 10000.0, **settings}
    decoder = load(tiny_decoder(tmp_path / "source", family, rope_parameters=rope))
    check_runs(decoder.export(), tmp_path / "graph", decoder)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_half_precision_has_half_the_bytes_and_float_logits(tmp_path: Path, family: str) -> None:
    decoder = load(tiny_decoder(tmp_path / "source", family))
    graph = decoder.export_half()
    check_half(graph, decoder)
    check_runs(graph, tmp_path / "graph", decoder, HALF)


def check_half(graph: StoredGraph, decoder: LoadedDecoder) -> None:
    types = {spec.name: spec.dtype.label for spec in (*graph.signature.inputs, *graph.signature.outputs)}
    cache = decoder.facts.cache
    assert {types[name] for name in (*cache.past_names, *cache.present_names)} == {"float16"}
    assert types["logits"] == "float32"
    assert graph.tensor_bytes < 1.1 * 2 * (decoder.parameter_count + 2 * CONTEXT * cache.head_size)


def test_gpt2_is_traced_with_its_scaling_and_one_table(tmp_path: Path) -> None:
    decoder = load(tiny_decoder(tmp_path / "source", "gpt2", scale_attn_by_inverse_layer_idx=True))
    graph = decoder.export()
    check_runs(graph, tmp_path / "graph", decoder)
    assert holds_one_table(graph, decoder)
    assert graph.tensor_bytes < 1.02 * 4 * decoder.parameter_count
    prompt = decoder.tokenize(["in the beginning"])[0]
    assert greedy(open_graph(graph, tmp_path / "graph", decoder), prompt, GREEDY) == decoder.generate(prompt, GREEDY)


def test_gpt2_in_half_precision_with_a_head_of_its_own(tmp_path: Path) -> None:
    decoder = load(tiny_decoder(tmp_path / "source", "gpt2", tie_word_embeddings=False))
    graph = decoder.export_half()
    check_half(graph, decoder)
    check_runs(graph, tmp_path / "graph", decoder, HALF)
    assert not holds_one_table(graph, decoder)


def test_a_shorter_context_cuts_the_rotary_tables_and_allows_a_window(tmp_path: Path) -> None:
    decoder = load(tiny_decoder(tmp_path / "source", "mistral", sliding_window=96), max_length=96)
    graph = decoder.export()
    assert decoder.facts.context_length == decoder.tokenizer.max_length == 96
    tables = [item for item in onnx.load_from_string(graph.model).graph.initializer if item.name.endswith("_cache")]
    assert [list(item.dims) for item in tables] == [[96, 8], [96, 8]]
    check_runs(graph, tmp_path / "graph", decoder)


def test_two_builds_give_the_same_bytes_and_no_trace_of_the_host(tmp_path: Path) -> None:
    graphs = [load(tiny_decoder(tmp_path / name, "qwen3")).export() for name in ("one", "another")]
    assert graphs[0] == graphs[1]
    assert str(tmp_path).encode() not in graphs[0].model


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_is_the_model_that_it_was_made_of(tmp_path: Path, family: str) -> None:
    tied = family == "qwen2"
    options = {"qwen2": {"num_attention_heads": 2}, "qwen3": {"head_dim": 128}}.get(family, {})
    directory = tiny_decoder(tmp_path / "source", family, tie_word_embeddings=tied, **options)
    original = transformers.AutoModelForCausalLM.from_pretrained(directory)
    decoder = load(write_gguf(tmp_path / "model.gguf", directory))
    assert decoder.facts.stop_ids == (vocabulary()["</s>"], vocabulary()["<|im_end|>"])
    row = some_rows((20,))[0]
    import torch

    with torch.inference_mode():
        wanted = original(torch.from_numpy(row[None])).logits.numpy()
    np.testing.assert_allclose(decoder.logits(row[None]), wanted, rtol=0, atol=CLOSE)
    check_runs(decoder.export(), tmp_path / "graph", decoder)
