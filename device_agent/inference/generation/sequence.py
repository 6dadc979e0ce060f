"""One sequence on its way: its tokens, its text, and what its client is told.

Text comes out in pieces that are final: whole characters, and nothing that a stop text may still take back. A token
whose log probability is told goes with the piece in which its text ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from device_agent.inference.generation.request import Delta, Failed, Finished, TokenLogprob
from device_agent.inference.generation.sampling import Sampler
from device_agent.inference.generation.stops import StopFilter
from edgeonnx.errors import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from device_agent.inference.generation.request import Event, GenerationRequest, Reason, Sink
    from device_agent.inference.generation.sampling import Choice
    from device_agent.inference.generation.text import TextStream


@dataclass(slots=True, eq=False)
class _Told:
    """A token that waits for its text to be final: its text is `answer[begin:end]`."""

    choice: Choice
    begin: int
    end: int


class Answer:
    """Tokens in, final pieces of text out.

    Args:
        stream: Tokens to text.
        stops: The stop texts.
        tell: Whether the log probabilities of tokens are told.
    """

    def __init__(self, stream: TextStream, stops: Collection[str], *, tell: bool) -> None:
        self._stream = stream
        self._filter = StopFilter(stops) if stops else None
        self._tell = tell
        self._waiting: deque[_Told] = deque()
        self._decoded = 0
        self._given = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop text was found: the answer is whole."""
        return self._filter is not None and self._filter.stopped

    def push(self, choice: Choice) -> Delta | None:
        """Take the next token; a piece of text comes back if one is final."""
        try:
            text = self._stream.push(choice.token)
        except ValueError:  # a model may have more logits than its tokenizer has tokens: such a one spells nothing
            text = ""
        if self._tell:
            self._waiting.append(_Told(choice, self._decoded, self._decoded + len(text)))
        self._decoded += len(text)
        return self._delta(text if self._filter is None else self._filter.push(text))

    def finish(self) -> Delta | None:
        """The rest of the text, as no token follows."""
        if self.stopped:
            return self._delta("", final=True)
        text = self._stream.finish()
        self._decoded += len(text)
        if self._waiting:
            self._waiting[-1].end = self._decoded
        if self._filter is not None:
            text = self._filter.push(text)
            if not self._filter.stopped:
                text += self._filter.finish()
        return self._delta(text, final=True)

    def _delta(self, text: str, *, final: bool = False) -> Delta | None:
        self._given += len(text)
        if not text and not final:
            return None
        tokens = []
        while self._waiting:
            told = self._waiting[0]
            if told.end > self._given and not (final or self.stopped):
                break
            self._waiting.popleft()
            if told.begin < self._given or not self.stopped:
                choice = told.choice
                tokens.append(
                    TokenLogprob(token=choice.token, logprob=choice.logprob or 0.0, top=choice.top, offset=told.begin)
                )
        return Delta(text=text, tokens=tuple(tokens)) if text or tokens else None


@dataclass(eq=False, slots=True, kw_only=True)
class Sequence:
    """A request on its way through the generator. Only the generator's thread changes it, except for `gone`.

    Attributes:
        request: The request.
        sink: Takes its events.
        number: Its place in the order of arrival.
        limit: Most tokens of prompt and answer.
        stop_ids: Tokens that end the answer.
        answer: Its text.
        submitted: When it arrived, by `time.perf_counter`.
        sampler: How its tokens are drawn.
        tokens: int64 (limit,): prompt and answer.
        length: How many of them are known.
        cached: How many of them stand in the caches.
        reused: How many of the prompt's an earlier sequence had left there.
        began: When it had a place first.
        first: When its first token came.
        gone: Whether its client left.
        ended: Whether its last event was told.
    """

    request: GenerationRequest
    sink: Sink
    number: int
    limit: int
    stop_ids: frozenset[int]
    answer: Answer
    submitted: float
    sampler: Sampler = field(init=False)
    tokens: NDArray[np.int64] = field(init=False)
    length: int = field(init=False)
    cached: int = 0
    reused: int = 0
    began: float | None = None
    first: float | None = None
    gone: bool = False
    ended: bool = False

    def __post_init__(self) -> None:
        prompt = self.request.prompt
        self.sampler = Sampler(self.request)
        self.tokens = np.zeros(self.limit, dtype=np.int64)
        self.tokens[: len(prompt)] = prompt
        self.length = len(prompt)

    @property
    def generated(self) -> int:
        """Tokens of the answer so far."""
        return self.length - len(self.request.prompt)

    def over(self, now: float) -> bool:
        """Whether nobody waits for it any more: its client left or was told its last event, or its time is over."""
        return self.gone or self.ended or now >= self.submitted + self.request.deadline

    @property
    def history(self) -> NDArray[np.int64]:
        """int64 (length,): prompt and answer so far."""
        return self.tokens[: self.length]

    def push(self, choice: Choice, now: float) -> tuple[list[Event], Reason | None]:
        """Take the token that was chosen.

        Returns:
            What to tell of it, and why the answer is whole now, or None.

        Raises:
            Exception: What the request's constraint raises.
        """
        if self.first is None:
            self.first = now
        self.tokens[self.length] = choice.token
        self.length += 1
        self.sampler.accept(choice.token)
        reason: Reason | None = None
        delta = None
        if choice.token in self.stop_ids:
            reason = "stop"
        else:
            delta = self.answer.push(choice)
            constraint = self.request.constraint
            if self.answer.stopped or (constraint is not None and constraint.finished):
                reason = "stop"
            elif self.length == self.limit:
                reason = "length"
        events: list[Event] = [] if delta is None else [delta]
        if reason is not None:
            events += self.end(reason, now)
        return events, reason

    def cut_short(self, now: float) -> list[Event]:
        """The last event where the answer is not whole: the client left, or its time is over."""
        if self.gone:
            return self.end("cancelled", now)
        expected = f"at most {self.request.deadline:.3g} s"
        return [Failed(DeadlineExceededError("the answer was not ready in time", expected=expected))]

    def end(self, reason: Reason, now: float) -> list[Event]:
        """The last events: the rest of the text, and the end."""
        rest = self.answer.finish() if reason != "cancelled" else None
        began = now if self.began is None else self.began
        first = now if self.first is None else self.first
        finished = Finished(
            reason=reason,
            prompt_tokens=len(self.request.prompt),
            completion_tokens=self.generated,
            cached_tokens=self.reused,
            queue_seconds=began - self.submitted,
            prompt_seconds=first - began,
            decode_seconds=now - first,
        )
        return [finished] if rest is None else [rest, finished]
