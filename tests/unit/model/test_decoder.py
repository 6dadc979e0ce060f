"""A decoder on the build host: its runs give what the whole sequence gives, and a graph of another kind is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeonnx.errors import ValidationError
from edgeonnx.model.decoder import HostDecoder, open_decoder
from edgeonnx.spec.generation import CacheShape
from tests.support.decoders import TinyDecoder, write_graph
from tests.support.tiny_source import TinySource

IDS = [5, 80, 33, 120, 7, 7, 260, 41, 9]


@pytest.fixture
def source(tmp_path: Path) -> TinySource:
    return TinySource(tmp_path)


@pytest.fixture
def decoder(source: TinySource) -> HostDecoder:
    return open_decoder(source.path, None, source.facts.cache, threads=1)


def test_prompts_continuations_and_steps_agree_with_the_whole(source: TinySource, decoder: HostDecoder) -> None:
    expected = source.logits(np.array([IDS]))[0]
    decoder.reserve(2, 16)
    assert np.allclose(decoder.extend(1, IDS[:4], 0), expected[:4], atol=1e-4)
    assert np.allclose(decoder.extend(1, IDS[4:], 4), expected[4:], atol=1e-4)
    ids = np.array([[*IDS[:5], 0], IDS[:6]])
    logits = decoder.prompts(ids, np.array([[1] * 5 + [0], [1] * 6]))
    assert np.allclose(logits[0, :5], expected[:5], atol=1e-4)
    assert np.allclose(logits[1], expected[:6], atol=1e-4)
    stepped = decoder.step(np.array([IDS[5], IDS[6]]), np.array([5, 6]))
    assert np.allclose(stepped, expected[5:7], atol=1e-4)


def test_each_row_has_caches_of_its_own(source: TinySource, decoder: HostDecoder) -> None:
    rows = [IDS, IDS[::-1]]
    decoder.reserve(2, 16)
    for row, ids in enumerate(rows):
        decoder.extend(row, ids[:-1], 0)
    found = decoder.step(np.array([ids[-1] for ids in rows]), np.array([8, 8]))
    expected = [source.logits(np.array([ids]))[0, -1] for ids in rows]
    assert np.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("half", [False, True])
def test_a_graph_that_ships_gives_the_last_position_alone(tmp_path: Path, half: bool) -> None:
    tiny = TinyDecoder(half=half)
    decoder = open_decoder(write_graph(tmp_path, tiny), None, tiny.cache)
    decoder.reserve(1, 16)
    assert decoder.extend(0, IDS, 0).shape == (1, decoder.vocabulary)


def test_other_caches_are_refused(source: TinySource) -> None:
    with pytest.raises(ValidationError, match="other caches"):
        open_decoder(source.path, None, CacheShape(layers=3, heads=2, head_size=16))


def test_a_run_that_fails_says_how_large_it_was(source: TinySource, decoder: HostDecoder) -> None:
    decoder.reserve(1, 16)
    with pytest.raises(ValidationError) as caught:
        decoder.extend(0, [5, 10_000], 0)
    assert caught.value.where == "1 x 2 tokens"
