"""Which rows run together. Pure: lengths in, batches out; no clock, no thread.

A batch costs its longest row times its rows, whatever the shorter rows hold. So rows of similar length run together,
as many as a budget of tokens allows; but the oldest row is always among them, so none waits for a batch that suits it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Rows of one request in a batch.

    Attributes:
        key: The request.
        rows: Numbers of its rows.
    """

    key: int
    rows: list[int]


class WaitingRows:
    """The rows that wait for a runner, by request, in order of arrival.

    Attributes:
        tokens: Tokens of all waiting rows, without padding.
        rows: Number of waiting rows.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.rows = 0
        # Of each request its rows, the shortest first: rows are taken from the end.
        self._requests: OrderedDict[int, list[int]] = OrderedDict()
        self._lengths: dict[int, NDArray[np.int64]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, key: int, lengths: NDArray[np.int64]) -> None:
        """Append a request.

        Args:
            key: Names it; not one that waits already.
            lengths: int64 (rows,), tokens of each row; at least one row.
        """
        self._requests[key] = np.argsort(lengths, kind="stable").tolist()
        self._lengths[key] = lengths
        self.tokens += int(lengths.sum())
        self.rows += len(lengths)

    def remove(self, key: int) -> None:
        """Drop what still waits of a request; nothing if nothing does."""
        rows = self._requests.pop(key, None)
        if rows is None:
            return
        lengths = self._lengths.pop(key)
        self.tokens -= int(lengths[rows].sum())
        self.rows -= len(rows)

    def take(self, budget: int) -> list[Piece]:
        """Take the next batch: the oldest request's longest row, and what fits beside it.

        Args:
            budget: Longest row x rows of the batch; a row that is longer by itself is a batch of its own.

        Returns:
            The batch by request; empty if nothing waits.
        """
        if not self._requests:
            return []
        oldest = next(iter(self._requests))
        width = int(self._lengths[oldest][self._requests[oldest][-1]])
        room = max(1, budget // max(1, width))
        pieces = []
        for key in list(self._requests):
            rows, lengths = self._requests[key], self._lengths[key]
            taken: list[int] = []
            at = len(rows) - 1
            while room and at >= 0:
                if lengths[rows[at]] <= width:
                    taken.append(rows.pop(at))
                    room -= 1
                at -= 1
            if taken:
                pieces.append(Piece(key=key, rows=taken))
                self.tokens -= int(lengths[taken].sum())
                self.rows -= len(taken)
                if not rows:
                    del self._requests[key], self._lengths[key]
            if not room:
                break
        return pieces
