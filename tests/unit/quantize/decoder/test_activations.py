"""What calibration sees is what the graph computes."""

from __future__ import annotations

import numpy as np
import pytest

from edgeonnx.errors import QuantizationError
from edgeonnx.quantize.decoder import activations
from edgeonnx.quantize.decoder.activations import observe
from edgeonnx.quantize.decoder.sites import find_sites, open_model
from tests.unit.quantize.decoder.graphs import llama, logits, prompts, texts


def test_the_head_turns_what_was_seen_into_the_logits() -> None:
    graph = llama()
    head = find_sites(open_model(graph).graph)[-1]
    ids = prompts(1, 30)
    seen = observe(graph, [head.name], [ids[0].tolist()])[head.name]
    np.testing.assert_allclose(seen.rows @ head.weights()[0].T, logits(graph, ids)[0], atol=1e-4)
    np.testing.assert_array_equal(seen.largest, np.abs(seen.rows).max(axis=0))


def test_much_text_is_read_in_part_and_maxima_are_over_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = llama()
    name = find_sites(open_model(graph).graph)[0].name
    whole = observe(graph, [name], texts())[name]
    assert whole.rows.shape == (240, 64)
    np.testing.assert_array_equal(whole.largest, np.abs(whole.rows).max(axis=0))
    monkeypatch.setattr(activations, "MOST_BYTES", 100 * 64 * 4)
    thinned = observe(graph, [name], texts())[name]
    assert thinned.rows.shape == (80, 64)
    np.testing.assert_array_equal(thinned.largest, whole.largest)
    monkeypatch.setattr(activations, "ALL_TOKENS", 120)
    assert observe(graph, [name], texts())[name].rows.shape[0] <= 120


def test_no_text_is_an_error() -> None:
    with pytest.raises(QuantizationError, match="no text"):
        observe(llama(), ["0.normed1"], [[], []])
