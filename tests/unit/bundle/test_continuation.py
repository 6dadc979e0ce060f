"""How a decoder's golden set is replayed: which runs, in which order, and what comes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeonnx.bundle.continuation import replay_function
from tests.support.decoders import TinyDecoder, golden_set
from tests.support.tiny_source import TinySource


class Recorder:
    """Caches that only remember what was put into them; the logits are the row's tokens so far."""

    def __init__(self, places: int = 8) -> None:
        self.rows: dict[int, list[int]] = {}
        self.runs: list[tuple[str, int]] = []
        self._shared = np.zeros((4, places), dtype=np.float32)

    def extend(self, row: int, ids: Sequence[int], start: int) -> NDArray[np.float32]:
        held = self.rows.setdefault(row, [])
        if start == 0:
            held.clear()
        assert start == len(held)
        held.extend(ids)
        self.runs.append(("extend", len(ids)))
        return self._answer(row)

    def step(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        for row, token in enumerate(ids):
            assert lengths[row] == len(self.rows[row])
            self.rows[row].append(int(token))
            self._answer(row)
        self.runs.append(("step", len(ids)))
        return self._shared[: len(ids)]

    def _answer(self, row: int) -> NDArray[np.float32]:
        """In memory that the next run overwrites, as a device's logits are."""
        self._shared[:] = np.where(np.arange(len(self._shared))[:, None] == row, self._shared, -1)
        self._shared[row] = 0
        self._shared[row, : len(self.rows[row])] = self.rows[row]
        return self._shared[row]


def inputs(rows: list[list[int]]) -> dict[str, NDArray[np.int64]]:
    width = max(map(len, rows))
    ids = np.array([row + [99] * (width - len(row)) for row in rows], dtype=np.int64)
    return {"input_ids": ids, "attention_mask": (ids != 99).astype(np.int64)}


def test_rows_are_put_in_alone_and_step_together() -> None:
    caches = Recorder()
    rows = [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11]]
    replay_function(caches.extend, caches.step)(inputs(rows))
    assert caches.rows == {0: rows[0], 1: rows[1]}
    assert caches.runs == [("extend", 2), ("extend", 2), ("extend", 1), ("step", 2), ("step", 2), ("step", 2)]


@pytest.mark.parametrize(("rows", "steps"), [([[1, 2, 3], [4, 5]], 1), ([[1], [2, 3, 4, 5, 6]], 0), ([[1]], 0)])
def test_short_rows_leave_fewer_steps(rows: list[list[int]], steps: int) -> None:
    caches = Recorder()
    found = replay_function(caches.extend, caches.step)(inputs(rows))["logits"]
    assert [kind for kind, _ in caches.runs].count("step") == steps
    assert caches.rows == dict(enumerate(rows))
    if not steps:
        assert [row[: len(ids)].tolist() for row, ids in zip(found, rows, strict=True)] == rows


def test_a_row_begins_anew_in_the_next_replay() -> None:
    caches = Recorder()
    replay = replay_function(caches.extend, caches.step)
    replay(inputs([[1, 2, 3, 4, 5, 6, 7, 8]]))
    replay(inputs([[7, 6, 5, 4]]))
    assert caches.rows[0] == [7, 6, 5, 4]


def test_what_is_served_is_what_the_graph_gives_at_once(tmp_path: Path) -> None:
    from edgeonnx.model.decoder import open_decoder

    source = TinySource(tmp_path)
    golden = golden_set(TinyDecoder())
    found = golden.replay(open_decoder(source.path, None, source.facts.cache).replay)
    assert found.scaled_diff < 1e-5
