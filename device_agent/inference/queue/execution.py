"""One batch through the runtime: rows padded together, outputs given back to the requests that they belong to.

An error of a batch may come from one request's rows. So each request of a batch that failed is run alone, once, and
only those fail that fail alone.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from device_agent.inference.rows import write_batch
from edgeonnx.errors import ProviderLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from device_agent.inference.queue.batching import Piece
    from device_agent.inference.queue.tickets import Ticket
    from device_agent.inference.rows import Array, Ids

    Pair = tuple[Ticket, Piece]


class Runs(Protocol):
    """What runs batches: `device_agent.inference.engine.Engine`, or a fake in tests."""

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the graph's inputs."""
        ...

    @property
    def provider(self) -> str:
        """The execution provider that runs now."""
        ...

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Run a batch; see `Engine.run`."""
        ...


class Work:
    """A batch that is to be run.

    Attributes:
        batch: Requests, and their rows in the batch.
        full: Whether it was taken from a queue that held more.
        began: When it was taken.
        rows: Rows of the batch.
        tokens: Their tokens, without padding.
        width: Tokens of the longest row.
        inputs: The padded batch, where it was prepared.
    """

    __slots__ = ("batch", "began", "full", "inputs", "rows", "tokens", "width")

    def __init__(self, batch: Sequence[Pair], full: bool = False, began: float = 0.0) -> None:
        self.batch = batch
        self.full = full
        self.began = began
        self.inputs: dict[str, Ids] | None = None
        if len(batch) == 1:
            piece = batch[0][1]
            self.rows, self.tokens, self.width = len(piece.rows), piece.tokens, piece.width
        else:
            self.rows = sum(len(piece.rows) for _, piece in batch)
            self.tokens = sum(piece.tokens for _, piece in batch)
            self.width = max(piece.width for _, piece in batch)

    def prepare(self, engine: Runs) -> None:
        """Pad the batch already; an error is left to the run, which raises it again."""
        with contextlib.suppress(Exception):
            self.inputs = self.padded(engine)

    def padded(self, engine: Runs) -> dict[str, Ids]:
        """The rows as one padded batch, int64 (rows, width) by input."""
        return write_batch([(ticket.rows, piece.rows) for ticket, piece in self.batch], self.width, engine.inputs)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of the runtime that gave outputs.

    Attributes:
        rows: Rows of the batch.
        tokens: Their tokens, without padding.
        padded: Longest row x rows.
        seconds: Time in the runtime.
        alone: Whether it repeats a batch of several requests for one of them.
    """

    rows: int
    tokens: int
    padded: int
    seconds: float
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a batch gave one request of it.

    Attributes:
        ticket: The request.
        piece: Its rows in the batch.
        outputs: Outputs by name, each (its rows in the batch, ...); None if the call failed.
        error: Why it failed.
        call: The call that gave the outputs.
    """

    ticket: Ticket
    piece: Piece
    outputs: Mapping[str, Array] | None = None
    error: Exception | None = None
    call: Call | None = None


def execute(engine: Runs, work: Work, is_wanted: Callable[[Ticket], bool]) -> list[Outcome]:
    """Run a batch; if that fails, each request of it alone.

    Args:
        engine: Runs it.
        work: The batch.
        is_wanted: Whether anybody still waits for a request. Asked before it is run alone; one for which nobody waits
            has no outcome.

    Returns:
        What came of each request, in their order. Nothing is raised: every failure belongs to requests.
    """
    try:
        return _together(engine, work)
    except Exception as error:  # noqa: BLE001 - see above
        # Without a provider, each would fail alone for the same reason.
        if len(work.batch) == 1 or isinstance(error, ProviderLostError):
            return [Outcome(ticket, piece, error=error) for ticket, piece in work.batch]
    return [_alone(engine, pair) for pair in work.batch if is_wanted(pair[0])]


def _alone(engine: Runs, pair: Pair) -> Outcome:
    try:
        return _together(engine, Work([pair]), alone=True)[0]
    except Exception as error:  # noqa: BLE001 - see `execute`
        return Outcome(*pair, error=error)


def _together(engine: Runs, work: Work, *, alone: bool = False) -> list[Outcome]:
    batch = work.batch
    inputs = work.inputs or work.padded(engine)
    wanted = _union([ticket.outputs for ticket, _ in batch])
    began = time.perf_counter()
    outputs = engine.run(inputs, wanted)
    call = Call(work.rows, work.tokens, work.rows * work.width, time.perf_counter() - began, alone)
    if len(batch) == 1:
        return [Outcome(*batch[0], outputs, call=call)]
    outcomes = []
    at = 0
    for ticket, piece in batch:
        own = slice(at, at := at + len(piece.rows))
        # Copies: a view would keep the whole batch in memory for as long as the slowest client reads.
        values = {name: value[own].copy() for name, value in outputs.items() if ticket.wants(name)}
        outcomes.append(Outcome(ticket, piece, values, call=call))
    return outcomes


def _union(wanted: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """The outputs that a batch must compute: those that any of its requests wants; None for all."""
    first = wanted[0]
    if all(outputs == first for outputs in wanted):
        return first
    names: dict[str, None] = {}
    for outputs in wanted:
        if outputs is None:
            return None
        names.update(dict.fromkeys(outputs))
    return tuple(names)
