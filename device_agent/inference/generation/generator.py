"""One thread that generates text for many clients at once with one decoder.

Between two steps, sequences come and go: whoever waits longest begins as soon as there is a row and memory for it, its
prompt is read in pieces with a step of the others after each, and who is done, or gone, leaves at once. So no sequence
waits for the end of another, and none stops another for longer than a piece of a prompt takes.

A sequence fails alone. When the execution provider fails, a session on the next one takes over: the caches are lost,
and every sequence is read again, prompt and answer so far, and goes on where it was.

What a client is told comes in this thread, by its request's sink.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from device_agent.inference.generation.admission import Pace, check, decide
from device_agent.inference.generation.batch import Batch
from device_agent.inference.generation.decoder import Decoder
from device_agent.inference.generation.request import Failed, Finished
from device_agent.inference.generation.sampling import own_error
from device_agent.inference.generation.sequence import Answer, Sequence
from device_agent.inference.generation.state import Totals
from device_agent.inference.session import DeviceMemoryError
from edgeonnx.bundle.continuation import replay_function
from edgeonnx.errors import (
    EdgeOnnxError,
    NotReadyError,
    ProviderLostError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    import numpy as np
    from numpy.typing import NDArray

    from device_agent.inference.generation.batch import Chosen
    from device_agent.inference.generation.memory import Memory
    from device_agent.inference.generation.request import Event, GenerationRequest, Sink
    from device_agent.inference.generation.state import GeneratorLimits, GeneratorState
    from device_agent.inference.generation.text import TextStream
    from device_agent.inference.session import Session
    from edgeonnx.spec.generation import Generation

    Told = tuple[Sequence, list[Event]]

    class Text(Protocol):
        """The part of `GenerationText` that is needed here."""

        def stream(self) -> TextStream:
            """Tokens to text, for one answer."""
            ...


logger = logging.getLogger("edgeonnx.agent")

_ABANDONED: list[Batch] = []
"""Caches on devices that do not answer. Freeing them calls the device, which ends the process; so they stay."""


class Handle:
    """A request that was taken."""

    def __init__(self, generator: Generator, sequence: Sequence) -> None:
        self._generator = generator
        self._sequence = sequence

    def cancel(self) -> None:
        """Its client left: it gives its place back before the next token. From any thread, and more than once."""
        self._generator._cancel(self._sequence)


class Generator:
    """Generates text with a decoder.

    Args:
        session: The session on its graph.
        generation: What the bundle says of it.
        text: Its tokenizer.
        limits: What it may take.
        replace: Gives the session that takes the place of one whose provider failed, or raises an EdgeOnnxError. None:
            nothing takes its place.
        name: Of the model, for the thread's name.
        memory: Where caches lie; None: where the session's provider works.
    """

    def __init__(
        self,
        session: Session,
        generation: Generation,
        text: Text,
        limits: GeneratorLimits,
        *,
        replace: Callable[[ProviderLostError], Session] | None = None,
        name: str = "model",
        memory: Memory | None = None,
    ) -> None:
        self.limits = limits
        self._generation = generation
        self._text = text
        self._replace = replace
        self._memory = memory
        self._session = session
        self._batch = Batch(session, generation.cache, limits, memory=memory)
        self._stop_ids = frozenset(generation.stop_ids)
        self._pace = Pace()
        self._totals = Totals()
        self._waiting: deque[Sequence] = deque()
        self._changed = threading.Condition()
        """Guards what waits; told when something came, or somebody left."""
        self._telling = threading.RLock()
        """Held while a client is told, so that nothing follows its last event."""
        self._closing = False
        self._shortest = 1
        """Tokens that the running sequence which is nearest to its end may still generate."""
        self._thread = threading.Thread(target=self._serve, name=f"{name}-generator", daemon=True)
        self._thread.start()

    # From any thread

    def submit(self, request: GenerationRequest, sink: Sink) -> Handle:
        """Ask for an answer.

        Args:
            request: What is asked.
            sink: Takes its events, in the generator's thread; it must be quick, and must not raise.

        Raises:
            InvalidRequestError: An empty prompt, a token that the model does not have, or no token asked for.
            RequestTooLargeError: The prompt leaves no room for an answer, in the context or in memory.
            OverloadedError: Too many wait, or its first token cannot come in its time.
            NotReadyError: The generator is closed.
        """
        table = self._batch.table
        limit = check(request, vocabulary=self._batch.decoder.vocabulary, context=self.limits.context, fits=table.fits)
        answer = Answer(self._text.stream(), request.stop, tell=request.top_logprobs is not None)
        stop_ids = frozenset[int]() if request.ignore_stop_ids else self._stop_ids
        with self._changed:
            if self._closing:
                raise NotReadyError("the model is being unloaded")
            refusal = decide(
                tokens=len(request.prompt),
                seconds=request.deadline,
                ahead=sum(each.length - each.cached for each in self._waiting) + self._unread(),
                waiting=len(self._waiting),
                free=max(0, table.active - table.sequences),
                max_waiting=self.limits.max_waiting,
                pace=self._pace,
                shortest=self._shortest,
            )
            if refusal is not None:
                self._totals.refused += 1
                raise refusal
            self._totals.requests += 1
            sequence = Sequence(
                request=request,
                sink=sink,
                number=self._totals.requests,
                limit=limit,
                stop_ids=stop_ids,
                answer=answer,
                submitted=time.perf_counter(),
            )
            self._waiting.append(sequence)
            self._changed.notify()
        return Handle(self, sequence)

    def _unread(self) -> int:
        filling = self._batch.table.filling
        owner = None if filling is None else filling.owner
        return 0 if owner is None else max(0, owner.length - owner.cached)

    def _cancel(self, sequence: Sequence) -> None:
        with self._changed:
            sequence.gone = True
            self._changed.notify()

    def state(self) -> GeneratorState:
        """What it does now, and what it did so far."""
        batch, totals = self._batch, self._totals
        cache = batch.decoder.cache
        active = batch.table.sequences
        with self._changed:
            return totals.state(
                active=active,
                waiting=len(self._waiting),
                idle=sum(row is not None for row in batch.table) - active,
                rows=cache.rows,
                places=cache.places,
                cache_bytes=cache.nbytes,
                cache_limit=self.limits.cache_bytes,
            )

    def replay(self, inputs: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float32]]:
        """Run golden inputs as sequences are served, on caches of their own; see `edgeonnx.bundle.continuation`.

        Args:
            inputs: `input_ids` and `attention_mask`, int64 (rows, tokens), padded on the right.

        Returns:
            `logits`: float32 (rows, vocabulary), after each row's last token.

        Raises:
            InferenceError: ONNX Runtime failed.
        """
        decoder = Decoder(self._session, self._generation.cache, memory=self._memory)
        rows, width = next(iter(inputs.values())).shape
        decoder.reserve(rows, width)
        return replay_function(decoder.extend, decoder.step)(inputs)

    def close(self, timeout: float | None = None) -> bool:
        """Take no more requests, finish those that were taken, then end the thread. May be called again.

        Args:
            timeout: Seconds to wait; then every sequence that is left fails with NotReadyError. None: no limit.

        Returns:
            False if a run goes on in the thread after that time. The thread ends with it.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            with self._changed:
                left = [*self._waiting, *self._batch.active]
            error = NotReadyError("the model was unloaded before the answer was ready")
            self._tell((sequence, [Failed(error)]) for sequence in left)
            for sequence in left:
                self._cancel(sequence)
            self._thread.join(min(1.0, timeout or 1.0))
        return not self._thread.is_alive()

    # The thread

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._batch.table.sequences):
                    if self._closing:
                        return
                    self._changed.wait()
            try:
                self._turn()
            except ProviderLostError as error:
                self._recover(error)
            except Exception as error:
                logger.exception("generating text failed")
                self._fail_active(own_error(error, "generating text failed"))

    def _turn(self) -> None:
        """Let sequences go and come, read a piece of a prompt, and give each running sequence a token."""
        batch = self._batch
        self._sweep(time.perf_counter())
        self._begin()
        if batch.table.filling is not None:
            began = time.perf_counter()
            tokens, chosen = batch.read()
            seconds = time.perf_counter() - began
            self._pace.read(tokens, seconds)
            self._totals.prompts += 1
            self._totals.prompt_seconds += seconds
            if chosen is not None:
                self._take([chosen])
        while batch.crowded():
            self._preempt()
        self._shortest = min((each.limit - each.length for each in batch.active), default=1)
        if batch.table.running:
            began = time.perf_counter()
            found = batch.step()
            seconds = time.perf_counter() - began
            self._pace.stepped(seconds)
            self._totals.steps += 1
            self._totals.step_seconds += seconds
            self._take(found)

    def _sweep(self, now: float) -> None:
        """End the sequences whose client left, or whose time is over."""
        over = [each for each in self._batch.active if each.over(now)]
        for sequence in reversed(over):
            self._batch.leave(self._batch.row_of(sequence))
        with self._changed:
            waiting = [each for each in self._waiting if each.over(now)]
            for sequence in waiting:
                self._waiting.remove(sequence)
        self._tell((sequence, sequence.cut_short(now)) for sequence in [*over, *waiting])

    def _begin(self) -> None:
        """Let the sequence that waits longest begin, if there is a row and memory for it."""
        with self._changed:
            sequence = self._waiting[0] if self._waiting else None
        # Only this thread takes from the queue, so nobody has to wait while rows are copied.
        if sequence is None or not self._batch.can_begin(sequence):
            return
        reused = self._batch.begin(sequence)
        with self._changed:
            self._waiting.popleft()
        if sequence.began is None:
            sequence.began = time.perf_counter()
            sequence.reused = min(reused, len(sequence.request.prompt))
            self._totals.prompt_tokens += len(sequence.request.prompt)
            self._totals.cached_tokens += sequence.reused

    def _take(self, found: Iterable[Chosen]) -> None:
        """Tell clients of their tokens, and let go who is done: before the client knows, so that its place is free."""
        now = time.perf_counter()
        going: list[Told] = []
        ended: list[Told] = []
        rows: list[tuple[int, bool]] = []
        for row, sequence, choice in found:
            if isinstance(choice, EdgeOnnxError):
                rows.append((row, False))
                ended.append((sequence, [Failed(choice)]))
                continue
            self._totals.generated_tokens += 1
            try:
                events, reason = sequence.push(choice, now)
            except Exception as error:  # noqa: BLE001 - a constraint may raise anything, and it is one sequence's
                rows.append((row, True))
                ended.append((sequence, [Failed(own_error(error, "the answer's form failed"))]))
                continue
            if reason is not None:
                rows.append((row, True))
                ended.append((sequence, events))
            elif events:
                going.append((sequence, events))
        self._tell(going)
        for row, sound in reversed(rows):  # the last one first: rows before it stay what they are
            self._batch.leave(row, keep=sound)
        self._tell(ended)

    def _tell(self, told: Iterable[Told]) -> None:
        """Tell clients of events."""
        wakes: dict[Callable[[], object], None] = {}
        with self._telling:
            for sequence, events in told:
                if not sequence.ended and (wake := self._tell_one(sequence, events)) is not None:
                    wakes[wake] = None
        for wake in wakes:
            wake()

    def _tell_one(self, sequence: Sequence, events: list[Event]) -> Callable[[], object] | None:
        last = events[-1]
        if isinstance(last, Finished | Failed):
            sequence.ended = True
            self._totals.finished[last.reason if isinstance(last, Finished) else "failed"] += 1
        try:
            return sequence.sink(events)
        except Exception:
            logger.exception("a client's sink failed; its request is cancelled")
            sequence.gone = True
            return None

    def _preempt(self) -> None:
        """The youngest sequence gives its memory to the older ones; it is the next to begin again."""
        youngest = max(self._batch.active, key=lambda sequence: sequence.number)
        self._batch.leave(self._batch.row_of(youngest))
        self._again([youngest])
        self._totals.preempted += 1

    def _again(self, sequences: Iterable[Sequence]) -> None:
        """Let sequences that had begun wait, before all others, until they are read again."""
        with self._changed:
            for sequence in sorted(sequences, key=lambda each: -each.number):
                sequence.cached = 0
                if sequence not in self._waiting:  # it may have failed while it began
                    self._waiting.appendleft(sequence)

    def _recover(self, error: ProviderLostError) -> None:
        """Go on with a session on another provider."""
        active = self._batch.active
        try:
            if self._replace is None:
                raise error
            session = self._replace(error)
            batch = Batch(session, self._generation.cache, self.limits, memory=self._memory)
        except EdgeOnnxError as failure:
            self._fail_active(failure)
            return
        if self._batch.decoder.cache.memory.device != "cpu" and not isinstance(error, DeviceMemoryError):
            _ABANDONED.append(self._batch)
        with self._changed:
            self._session, self._batch = session, batch
        self._totals.recovered += 1
        self._pace = Pace()
        self._again(active)
        with self._changed:
            large = [each for each in self._waiting if not batch.table.fits(each.limit)]
            for sequence in large:
                self._waiting.remove(sequence)
        self._tell((sequence, [Failed(error)]) for sequence in large)

    def _fail_active(self, error: EdgeOnnxError) -> None:
        active = self._batch.active
        with contextlib.suppress(Exception):  # what failed may fail again: the table is empty in any case
            self._batch.clear()
        self._tell((sequence, [Failed(error)]) for sequence in active)
