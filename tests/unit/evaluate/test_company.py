"""Whether a decoder's answer depends on its neighbours: it must not, and where it does, it is seen."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeonnx.evaluate.company import measure_company
from edgeonnx.model.decoder import HostDecoder
from edgeonnx.model.runtime import open_session
from tests.support.tiny_source import TinySource

_rng = np.random.default_rng(2)
ROWS = [_rng.integers(0, 250, size).tolist() for size in (12, 40, 20, 31, 9, 47, 64, 15)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TinySource:
    return TinySource(tmp_path_factory.mktemp("source"))


def open_as(source: TinySource, kind: type[HostDecoder]) -> HostDecoder:
    return kind(open_session(source.path, None, threads=1), source.facts.cache)


def test_a_right_graph_answers_the_same_in_company(source: TinySource) -> None:
    found = measure_company(open_as(source, HostDecoder), ROWS)
    assert found.metrics["invariance_min"] > 0.999999
    assert found.metrics["invariance_diff"] < 1e-5
    assert (found.sequences, found.runs) == (8, 4 + 3 + 1)


class Coupled(HostDecoder):
    """Steps scale with the largest logit of the whole batch, as a recipe with one scale for all rows does."""

    def step(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        logits = super().step(ids, lengths)
        steps = np.abs(logits).max() / 15
        return np.asarray(np.round(logits / steps) * steps, dtype=np.float32)


def test_coupled_rows_are_seen(source: TinySource) -> None:
    found = measure_company(open_as(source, Coupled), ROWS)
    assert found.metrics["invariance_min"] < 0.999
    assert found.metrics["invariance_diff"] > 0.01


class Broken(HostDecoder):
    """Not a number in company."""

    def prompts(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        return super().prompts(ids, mask) * np.float32(np.nan if len(ids) > 1 else 1)


def test_what_is_no_number_is_the_worst(source: TinySource) -> None:
    found = measure_company(open_as(source, Broken), ROWS[:2])
    assert found.metrics == {"invariance_min": -1.0, "invariance_diff": 1e6}


class Counting(HostDecoder):
    """Remembers how long each row was before each step."""

    seen: list[list[int]]

    def step(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        self.seen.append(lengths.tolist())
        return super().step(ids, lengths)


def test_the_last_tokens_go_in_one_after_the_other(source: TinySource) -> None:
    decoder = open_as(source, Counting)
    assert isinstance(decoder, Counting)
    decoder.seen = []
    measure_company(decoder, ROWS[:2])
    assert decoder.seen[:4] == [[8], [9], [10], [11]]
    assert decoder.seen[-4:] == [[8, 36], [9, 37], [10, 38], [11, 39]]
