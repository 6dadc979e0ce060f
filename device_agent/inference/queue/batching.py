"""Which rows run together. Pure: lengths in, batches out; no clock, no thread.

A batch costs its longest row times its rows, whatever the shorter rows hold, and something for the call itself. Hence:

- The oldest row is in every batch. So a row is in a batch after at most as many batches as there were older rows,
  whatever comes after it.
- Beside it come rows of similar length from the whole queue, the nearest first, while the batch keeps to a budget of
  tokens. A row that would bring much padding is left for a batch of its like.
- Rows longer than the oldest come in too where that makes the batch cost less for each token that it answers.
- Where several runners are free, each takes an equal share, down to a least size for which a second call pays.

Rows of one request may be in several batches, and each row is in exactly one. Rows are kept by length, so that a batch
costs microseconds to find in a queue of any size.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CALL_TOKENS = 12
"""What a call of the runtime costs beyond its tokens, in tokens: MiniLM int8 took 1.0 ms + 0.10 ms a token, one
thread (`bench/batching.py`)."""

PADDING_SHARE = 4
"""A row comes in if its padding costs at most this part of a call. All of a call would be right if its next batch
held nothing else; but in a queue it meets its like. Of 1/1 to 1/6, 1/4 was the best for real texts, in a queue of 800
tokens (88.1 % useful tokens, against 83.2 % at 1/1) as in one of 16,000 (96.8 % against 96.2 %)."""

MOST_WIDTHS = 16
"""Widths beyond the oldest row's that are weighed for a batch: it bounds the time to find one."""


@dataclass(slots=True)
class Piece:
    """Rows of one request in a batch.

    Attributes:
        key: The request.
        rows: Numbers of its rows, ascending.
        width: Tokens of the longest of them.
        tokens: Tokens of all of them.
    """

    key: int
    rows: list[int]
    width: int
    tokens: int


class WaitingRows:
    """The rows that wait for a runner.

    A row is older than another if its request came before; within a request, if it is longer.

    Attributes:
        tokens: Tokens of all waiting rows, without padding.
        rows: Number of waiting rows.
    """

    def __init__(self, *, call_tokens: int = CALL_TOKENS) -> None:
        self.tokens = 0
        self.rows = 0
        self.call_tokens = call_tokens
        self._padding = call_tokens // PADDING_SHARE
        # Of each request the lengths of its waiting rows, ascending. Ordered dictionaries, because finding the first
        # key of a plain one takes time for each key that was removed before it.
        self._requests: OrderedDict[int, list[int]] = OrderedDict()
        # Of each length its rows by request, the oldest request first; a request's rows descend, and are taken from
        # the end.
        self._buckets: dict[int, OrderedDict[int, list[int]]] = {}
        self._counts: dict[int, int] = {}
        self._lengths: list[int] = []

    def __len__(self) -> int:
        """Requests of which rows wait."""
        return len(self._requests)

    def add(self, key: int, lengths: NDArray[np.int64]) -> None:
        """Append a request.

        Args:
            key: Names it; not one that waits already.
            lengths: int64 (rows,), tokens of each row; at least one row.
        """
        if len(lengths) == 1:
            length = int(lengths[0])
            self._put(length, key, [0])
            self._requests[key] = [length]
            return
        by_length: dict[int, list[int]] = {}
        for row in range(len(lengths) - 1, -1, -1):
            by_length.setdefault(int(lengths[row]), []).append(row)
        for length, rows in by_length.items():
            self._put(length, key, rows)
        self._requests[key] = sorted(by_length)

    def _put(self, length: int, key: int, rows: list[int]) -> None:
        bucket = self._buckets.get(length)
        if bucket is None:
            bucket = self._buckets[length] = OrderedDict()
            self._counts[length] = 0
            insort(self._lengths, length)
        bucket[key] = rows
        self._count(length, len(rows))

    def _count(self, length: int, rows: int) -> None:
        """Count rows of a length that came (or left, if negative); forget the length with its last row."""
        self.rows += rows
        self.tokens += rows * length
        left = self._counts[length] = self._counts[length] + rows
        if not left:
            del self._counts[length], self._buckets[length]
            del self._lengths[bisect_left(self._lengths, length)]

    def remove(self, key: int) -> None:
        """Drop what still waits of a request; nothing if nothing does."""
        for length in self._requests.pop(key, ()):
            rows = self._buckets[length].pop(key)
            self._count(length, -len(rows))

    def take(self, budget: int, *, runners: int = 1, least: int = 0) -> list[Piece]:
        """Take the next batch: the oldest row, and what suits it.

        Args:
            budget: Longest row x rows of the batch; a row that is longer by itself is a batch of its own.
            runners: Free runners, the caller included: the batch leaves the others their share of what waits.
            least: Tokens of a batch below which nothing is left for others' sake.

        Returns:
            The batch by request; empty if nothing waits.
        """
        if not self._requests:
            return []
        if runners > 1:
            budget = min(budget, max(least, -(-self.tokens // runners)))
        key, own = next(iter(self._requests.items()))
        oldest = own[-1]
        pieces: dict[int, Piece] = {}
        self._take(key, oldest, 1, pieces)
        if self.rows:
            for length, count in self._choose(oldest, budget):
                left = count
                while left:
                    left -= self._take(next(iter(self._buckets[length])), length, left, pieces)
        for piece in pieces.values():
            piece.rows.sort()
        return list(pieces.values())

    def _take(self, key: int, length: int, count: int, pieces: dict[int, Piece]) -> int:
        """Move up to `count` rows of a request and a length into the batch; how many there were."""
        bucket = self._buckets[length]
        rows = bucket[key]
        if len(rows) > count:
            moved = rows[-count:]
            del rows[-count:]
        else:
            moved = bucket.pop(key)
            lengths = self._requests[key]
            if len(lengths) == 1:
                del self._requests[key]
            else:
                lengths.remove(length)
        self._count(length, -len(moved))
        piece = pieces.get(key)
        if piece is None:
            pieces[key] = Piece(key, moved, length, length * len(moved))
        else:
            piece.rows += moved
            piece.width = max(piece.width, length)
            piece.tokens += length * len(moved)
        return len(moved)

    def _choose(self, oldest: int, budget: int) -> list[tuple[int, int]]:
        """How many rows of each length come beside the oldest row, which is taken already."""
        first = bisect_left(self._lengths, oldest)
        best: list[tuple[int, int]] = []
        best_worth = oldest / (self.call_tokens + oldest)
        if first == len(self._lengths) or self._lengths[first] != oldest:
            first -= 1  # no other row is as long: the next shorter ones are weighed at the oldest row's own width
        for at in range(first, min(first + MOST_WIDTHS, len(self._lengths))):
            if at < 0:
                continue
            width = max(oldest, self._lengths[at])
            room = budget // width - 1
            if width - oldest > self._padding or room <= 0:
                break
            chosen, rows, tokens = self._fill(at, width, room)
            worth = (oldest + tokens) / (self.call_tokens + width * (1 + rows))
            if worth > best_worth:
                best, best_worth = chosen, worth
        return best

    def _fill(self, at: int, width: int, room: int) -> tuple[list[tuple[int, int]], int, int]:
        """The longest rows from a place in `_lengths` down, while there is room and their padding is worth it."""
        chosen = []
        rows = tokens = 0
        shortest = width - self._padding
        while room and at >= 0:
            length = self._lengths[at]
            if length < shortest:
                break
            count = min(self._counts[length], room)
            chosen.append((length, count))
            rows += count
            tokens += count * length
            room -= count
            at -= 1
        return chosen, rows, tokens
