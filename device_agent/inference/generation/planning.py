"""Which sequence has which row of the caches, what is copied where, and what is given up. Pure: no clock, no memory.

Rows are ordered: first those of running sequences, which a step runs as one batch; then that of the prompt that is
being read, if there is one; then the others, which are vacant or *idle*: they keep what an ended sequence left, for a
prompt that begins alike. A sequence that ends leaves a hole among the running ones, and the last of them moves there:
copying a row of a few hundred tokens takes as long as a token of a prompt, while a hole would cost a row in every step.

Memory is promised, not hoped for: each active sequence has a promise of so many tokens, which grows while it runs.
Idle rows are given up, the one that was used the longest time ago first, when a promise needs their memory. Only while
a row moves, which takes milliseconds, it is there twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Tokens = NDArray[np.int64]

Owner = TypeVar("Owner")

MIN_REUSE = 8
"""Tokens that are worth a copy: it takes less time than reading one of them."""


class Copy(NamedTuple):
    """Copy the first tokens of one row to another, which has no more of its own then."""

    source: int
    target: int
    length: int


class Trim(NamedTuple):
    """Give back the memory of a row, except that of its first tokens."""

    row: int
    length: int


Move = Copy | Trim


@dataclass(slots=True, eq=False)
class Row(Generic[Owner]):
    """What stands in a row of the caches.

    Attributes:
        tokens: int64 (at least `length`,): the sequence.
        length: How many of them stand in the row.
        owner: The active sequence that it belongs to; None: the row is idle.
        promise: For how many tokens there is memory.
        used: When it was used, by the table's count.
    """

    tokens: Tokens
    length: int
    owner: Owner | None
    promise: int
    used: int


def common(first: Tokens, second: Tokens) -> int:
    """How many tokens two sequences have in common at their beginning."""
    size = min(len(first), len(second))
    if not size or first[0] != second[0]:
        return 0
    different = np.flatnonzero(first[:size] != second[:size])
    return int(different[0]) if len(different) else size


def chunk_of(remaining: int, chunk: int) -> int:
    """How many tokens of a prompt the next run reads.

    A run of one token is computed by another kernel than one of several, whose rounding differs; so none is left over,
    and a prompt gives the same numbers whatever its beginning came from.
    """
    return remaining if remaining <= chunk + 1 else chunk


@dataclass(kw_only=True)
class Table(Generic[Owner]):
    """The rows of a decoder's caches.

    Attributes:
        active: Most sequences at one time.
        rows: Most rows, idle ones too.
        budget: Tokens that all rows together may take.
        lazy: Whether memory takes room only for the tokens of a row; otherwise all rows are as long as the longest.
        rounded: Tokens for which memory is taken, for so many tokens of a row.
        reuse: Whether rows are kept for prompts that begin alike.
    """

    active: int
    rows: int
    budget: int
    lazy: bool
    rounded: Callable[[int], int]
    reuse: bool = True
    running: int = 0
    """Number of running sequences: those of the first rows."""
    filling: Row[Owner] | None = None
    """The row of the prompt that is being read; it follows the running ones."""
    places: int = 0
    """Longest row, rounded: what rows take that are all as long."""
    _rows: list[Row[Owner] | None] = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        self._rows = [None] * self.rows

    def __iter__(self) -> Iterator[Row[Owner] | None]:
        return iter(tuple(self._rows))

    def __getitem__(self, row: int) -> Row[Owner]:
        found = self._rows[row]
        if found is None:
            raise IndexError(f"row {row} is vacant")
        return found

    @property
    def sequences(self) -> int:
        """Active sequences: running ones, and the one whose prompt is read."""
        return self.running + (self.filling is not None)

    @property
    def tokens(self) -> int:
        """Tokens for which memory is taken or promised."""
        if not self.lazy:
            return self.places * max((index + 1 for index, row in enumerate(self._rows) if row), default=0)
        return sum(self._charge(row) for row in self._rows if row is not None)

    def _charge(self, row: Row[Owner]) -> int:
        return self.rounded(row.promise if row.owner is not None else row.length)

    def fits(self, tokens: int) -> bool:
        """Whether one sequence of so many tokens has room where nothing else is."""
        return self.rounded(tokens) <= self.budget

    def _has_room(self, extra: int, longest: int, sequences: int) -> bool:
        """Whether active sequences have room, once all idle rows are given up.

        Args:
            extra: Tokens beyond what is promised.
            longest: Tokens of the longest sequence.
            sequences: Number of active sequences.
        """
        if not self.lazy:
            return sequences * max(self.places, self.rounded(longest)) <= self.budget
        return extra + sum(self._charge(row) for row in self._rows[: self.sequences] if row) <= self.budget

    def can_begin(self, promise: int) -> bool:
        """Whether a sequence may begin now, with memory for `promise` tokens."""
        if self.filling is not None or self.running >= self.active:
            return False
        return self._has_room(self.rounded(promise), promise, self.running + 1)

    def begin(self, owner: Owner, tokens: Tokens, length: int, promise: int) -> tuple[int, list[Move]]:
        """Give a sequence the row after the running ones; `can_begin` was asked before.

        Args:
            owner: The sequence.
            tokens: int64 (at least `length`,): its tokens.
            length: How many of them are known, at least 1.
            promise: For how many there will be memory.

        Returns:
            How many of its first tokens stand in the row then, and how they come there. At least one is left to read,
            and never exactly one of several; see `chunk_of`.
        """
        target = self.running
        donor, reused = self._donor(tokens[:length])
        moves: list[Move] = []
        occupant = self._rows[target]
        if occupant is not None and not (donor == target and 2 * reused >= occupant.length):
            # Little of it would stay, so it is kept for others, and copied from.
            moved = self._set_aside(target, moves, spare=donor)
            donor = moved if donor == target else donor
        if donor is not None and donor != target:
            if self._make_room(self.rounded(promise), promise, moves, spare=donor):
                moves.append(Copy(donor, target, reused))
            else:
                donor = None
        self._count += 1
        if donor is not None:
            self._touch(donor)
        reused = reused if donor is not None else 0
        self._rows[target] = None
        self._make_room(self.rounded(promise), promise, moves)
        self._rows[target] = self.filling = Row(tokens, reused, owner, promise, self._count)
        if donor == target:
            moves.append(Trim(target, reused))
        if not self.lazy:
            self.places = max(self.places, self.rounded(promise))
        return reused, moves

    def _touch(self, index: int) -> None:
        row = self._rows[index]
        if row is not None:
            row.used = self._count

    def _donor(self, tokens: Tokens) -> tuple[int | None, int]:
        """The row that has most of a sequence's beginning, and how many tokens of it are worth taking."""
        if not self.reuse:
            return None, 0
        best, most = None, 0
        for index, row in enumerate(self._rows):
            if row is not None and row.length > most and (found := common(row.tokens[: row.length], tokens)) > most:
                best, most = index, found
        most = min(most, max(0, len(tokens) - 2))
        return (best, most) if most >= MIN_REUSE else (None, 0)

    def _set_aside(self, index: int, moves: list[Move], *, spare: int | None = None) -> int | None:
        """Move what stands in a row to a vacant one, so that it stays a donor; None: it is given up."""
        row = self[index]
        target = self._beyond(moves, spare=spare) if self._worth_keeping(row) else None
        self._give_up(index, moves)
        if target is not None:
            moves.insert(-1, Copy(index, target, row.length))
            self._rows[target] = row
        return target

    def _worth_keeping(self, row: Row[Owner]) -> bool:
        """Whether a row may serve another prompt."""
        return self.reuse and row.length >= MIN_REUSE

    def _give_up(self, index: int, moves: list[Move]) -> None:
        self._rows[index] = None
        moves.append(Trim(index, 0))

    def _idle(self) -> list[int]:
        """Idle rows, the one that was used the longest time ago first."""
        found = [index for index, row in enumerate(self._rows) if row is not None and row.owner is None]
        return sorted(found, key=lambda index: self[index].used)

    def _make_room(self, extra: int, longest: int, moves: list[Move], *, spare: int | None = None) -> bool:
        """Give idle rows up until there are `extra` tokens of memory; False if that was not enough."""
        if not self.lazy:
            last = self.budget // max(self.places, self.rounded(longest))
            for index in self._idle():
                if index >= last and index != spare:
                    self._give_up(index, moves)
            return spare is None or spare < last
        total = self.tokens
        for index in self._idle():
            if total + extra <= self.budget:
                break
            if index != spare:
                total -= self._charge(self[index])
                self._give_up(index, moves)
        return total + extra <= self.budget

    def join(self) -> None:
        """The prompt that was being read is read: its sequence runs from now on."""
        if self.filling is not None:
            self.running += 1
            self.filling = None

    def grow(self, index: int, promise: int) -> list[Move] | None:
        """Promise an active sequence more memory.

        Returns:
            What is given up for it; None if there is not enough even then.
        """
        row = self[index]
        extra = self.rounded(promise) - self.rounded(row.promise)
        if not self._has_room(extra, promise, self.sequences):
            return None
        moves: list[Move] = []
        self._make_room(extra, promise, moves)
        row.promise = promise
        if not self.lazy:
            self.places = max(self.places, self.rounded(promise))
        return moves

    def leave(self, index: int, *, keep: bool = True) -> list[Move]:
        """An active sequence has ended.

        Args:
            index: Its row.
            keep: What stands there may serve another prompt.

        Returns:
            What moves, so that the active rows stay together. Rows of other sequences may have changed: the last
            running one has this row then, and the prompt that is being read follows the running ones.
        """
        row = self[index]
        self._count += 1
        keep = keep and self._worth_keeping(row)
        row.owner, row.used = None, self._count
        moves: list[Move] = []
        last = self.sequences - 1
        if row is self.filling:
            self.filling = None
        else:
            self.running -= 1
        if index == last:
            if not keep:
                self._give_up(index, moves)
            return moves
        self._close_hole(index, moves, keep=keep)
        return moves

    def _close_hole(self, index: int, moves: list[Move], *, keep: bool) -> None:
        """Move the last running row into a hole, and the row that is being read after it."""
        aside = self._beyond(moves) if keep else None
        left = self[index]
        if aside is not None:
            moves.append(Copy(index, aside, left.length))
            self._rows[aside] = left
        hole = index
        for source in dict.fromkeys((self.running, self.running + (self.filling is not None))):
            if source != hole:
                moves.append(Copy(source, hole, self[source].length))
                self._rows[hole] = self._rows[source]
                hole = source
        self._give_up(hole, moves)

    def _beyond(self, moves: list[Move], *, spare: int | None = None) -> int | None:
        """A vacant row behind that which follows the active ones; an idle one is given up for it. None: there is none.

        Args:
            moves: What is given up is added.
            spare: A row that is not given up.
        """
        last = min(self.rows, self.budget // self.places) if not self.lazy and self.places else self.rows
        behind = range(self.sequences + 1, last)
        vacant = next((index for index in behind if self._rows[index] is None), None)
        if vacant is not None:
            return vacant
        idle = [index for index in behind if index != spare]
        oldest = min(idle, key=lambda index: self[index].used, default=None)
        if oldest is not None:
            self._give_up(oldest, moves)
        return oldest

    def clear(self) -> None:
        """Forget everything: the caches are empty."""
        self._rows = [None] * self.rows
        self.running, self.filling, self.places = 0, None, 0
