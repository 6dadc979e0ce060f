"""The sequences that a decoder works on: rows of its caches, a piece of a prompt, a step for all that run.

It belongs to one thread, and knows no clock, no queue and no client: what it does is decided by `planning.Table`, and
what comes of it are the choices of tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from device_agent.inference.generation.decoder import Decoder
from device_agent.inference.generation.memory import HostMemory
from device_agent.inference.generation.planning import Copy, Table, chunk_of
from device_agent.inference.generation.sampling import choose
from edgeonnx.errors import EdgeOnnxError, InferenceError, ProviderLostError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as SequenceOf

    from numpy.typing import NDArray

    from device_agent.inference.generation.memory import Memory
    from device_agent.inference.generation.planning import Move
    from device_agent.inference.generation.sampling import Choice
    from device_agent.inference.generation.sequence import Sequence
    from device_agent.inference.generation.state import GeneratorLimits
    from device_agent.inference.session import Session
    from edgeonnx.spec.generation import CacheShape

HEADROOM = 128
"""Tokens beyond what is known for which a sequence is promised memory: it asks again when they are used up."""


class Chosen(NamedTuple):
    """The next token of an active sequence, or why there is none."""

    row: int
    sequence: Sequence
    choice: Choice | EdgeOnnxError


class Batch:
    """The active sequences of a decoder.

    Args:
        session: The session.
        shape: Its caches.
        limits: What they may take.
        memory: Where they lie; None: where the session's provider works.
    """

    def __init__(
        self, session: Session, shape: CacheShape, limits: GeneratorLimits, *, memory: Memory | None = None
    ) -> None:
        rows = limits.max_sequences + (limits.idle_rows if limits.prefix_reuse else 0)
        self.decoder = _open(session, shape, rows, limits.context, memory)
        self.chunk = limits.prompt_chunk
        cache = self.decoder.cache
        self.table: Table[Sequence] = Table(
            active=limits.max_sequences,
            rows=rows,
            budget=limits.cache_bytes // cache.token_bytes,
            lazy=cache.memory.lazy,
            rounded=cache.rounded,
            reuse=limits.prefix_reuse,
        )
        self._ids = np.zeros(limits.max_sequences, dtype=np.int64)
        self._lengths = np.zeros(limits.max_sequences, dtype=np.int64)

    @property
    def active(self) -> list[Sequence]:
        """The active sequences, in the order of their rows. It may be read in any thread."""
        return [sequence for _, sequence in self._owned()]

    def _owned(self) -> Iterator[tuple[int, Sequence]]:
        for index, row in enumerate(self.table):
            if row is not None and row.owner is not None:
                yield index, row.owner

    def row_of(self, sequence: Sequence) -> int:
        """The row of an active sequence."""
        return next(index for index, owner in self._owned() if owner is sequence)

    def can_begin(self, sequence: Sequence) -> bool:
        """Whether a sequence may begin now."""
        if self.table.can_begin(_promise(sequence)):
            return True
        if self.table.sequences:
            return False
        # Rows that are all as long as the longest ever was may be too long now: begin with none.
        self.clear()
        return self.table.can_begin(_promise(sequence))

    def begin(self, sequence: Sequence) -> int:
        """Give a sequence a row; `can_begin` was asked before.

        Returns:
            How many of its tokens stand in the caches already.
        """
        reused, moves = self.table.begin(sequence, sequence.tokens, sequence.length, _promise(sequence))
        self._apply(moves)
        sequence.cached = reused
        return reused

    def read(self) -> tuple[int, Chosen | None]:
        """Read a piece of the prompt that is being read.

        Returns:
            How many tokens were read, and the first token of the answer if that was the last piece: the sequence runs
            from then on.

        Raises:
            ProviderLostError: The execution provider failed.
        """
        index, row = self.table.running, self.table.filling
        if row is None or row.owner is None:
            raise RuntimeError("no prompt is being read")
        sequence = row.owner
        size = chunk_of(sequence.length - sequence.cached, self.chunk)
        end = sequence.cached + size
        try:
            logits = self.decoder.extend(index, sequence.tokens[sequence.cached : end], sequence.cached)
        except ProviderLostError:
            raise
        except InferenceError as error:
            return size, Chosen(index, sequence, error)
        sequence.cached = row.length = end
        if end < sequence.length:
            return size, None
        self.table.join()
        (choice,) = choose(logits.reshape(1, -1), [sequence.sampler], [sequence.history])
        return size, Chosen(index, sequence, choice)

    def step(self) -> list[Chosen]:
        """Give each running sequence its next token; there is memory for it (see `crowded`).

        Raises:
            ProviderLostError: The execution provider failed.
        """
        sequences = [sequence for _, sequence in self._owned()][: self.table.running]
        count = len(sequences)
        ids, lengths = self._ids[:count], self._lengths[:count]
        for index, sequence in enumerate(sequences):
            ids[index], lengths[index] = sequence.tokens[sequence.cached], sequence.cached
        try:
            logits = self.decoder.step(ids, lengths)
        except ProviderLostError:
            raise
        except InferenceError as error:
            return self._each(sequences, error)
        for index, sequence in enumerate(sequences):
            sequence.cached = self.table[index].length = sequence.cached + 1
        choices = choose(logits, [each.sampler for each in sequences], [each.history for each in sequences])
        return [Chosen(index, *pair) for index, pair in enumerate(zip(sequences, choices, strict=True))]

    def _each(self, sequences: SequenceOf[Sequence], error: InferenceError) -> list[Chosen]:
        """A step that failed, for each sequence alone: the failure may be of one of them."""
        found = []
        for index, sequence in enumerate(sequences):
            try:
                if len(sequences) == 1:
                    raise error
                token = sequence.tokens[sequence.cached : sequence.cached + 1]
                logits: NDArray[np.float32] = self.decoder.extend(index, token, sequence.cached)
            except ProviderLostError:
                raise
            except InferenceError as own:
                found.append(Chosen(index, sequence, own))
                continue
            sequence.cached = self.table[index].length = sequence.cached + 1
            (choice,) = choose(logits.reshape(1, -1), [sequence.sampler], [sequence.history])
            found.append(Chosen(index, sequence, choice))
        return found

    def crowded(self) -> bool:
        """Give running sequences memory for their next token; True if one of them has to wait for it."""
        for index in range(self.table.running):
            row = self.table[index]
            if row.length < row.promise or row.owner is None:
                continue
            moves = self.table.grow(index, min(row.owner.limit, row.promise + HEADROOM))
            if moves is None:
                return True
            self._apply(moves)
        return False

    def leave(self, row: int, *, keep: bool = True) -> None:
        """A sequence gives its row back; see `Table.leave`. Rows before it stay what they are."""
        self._apply(self.table.leave(row, keep=keep))

    def clear(self) -> None:
        """Forget all sequences and give their memory back."""
        cache = self.decoder.cache
        self.table.clear()
        if cache.memory.lazy:
            for row in range(cache.rows):
                cache.trim(row)
        else:
            cache.clear()

    def _apply(self, moves: SequenceOf[Move]) -> None:
        cache = self.decoder.cache
        for move in moves:
            if isinstance(move, Copy):
                self.decoder.reserve(move.target + 1, max(self.table.places, move.length))
                cache.copy(move.source, move.target, move.length)
            elif move.row < cache.rows:
                cache.trim(move.row, move.length)


def _open(session: Session, shape: CacheShape, rows: int, places: int, memory: Memory | None) -> Decoder:
    """A decoder that has its caches' addresses already, where they take no memory."""
    decoder = Decoder(session, shape, memory=memory)
    if decoder.cache.memory.lazy:
        try:
            decoder.reserve(rows, places)
        except MemoryError:  # addresses are limited here (`ulimit -v`, strict accounting): the caches grow as needed
            return Decoder(session, shape, memory=HostMemory(lazy=False))
    return decoder


def _promise(sequence: Sequence) -> int:
    return min(sequence.limit, sequence.length + HEADROOM)
