"""Does a decoder's graph give the source model's answers, however its tokens come in?

A decoder is wrong in ways that one run does not show: positions that are off by one after the prompt, caches that a
neighbour overwrites, padding that is attended to. So the same tokens go in as a whole, padded among others, one by one,
in pieces, and side by side with rows of other lengths; and each time the logits of every position are held against the
source model's, which saw the tokens at once, alone, without a cache. A causal model answers a beginning of a row as it
answers the row, so one answer of the source serves for all of its beginnings.

Last, the source and the graph each write on their own, and must write the same tokens.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from edgeonnx.errors import ParityError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from edgeonnx.model.decoder import HostDecoder
    from edgeonnx.model.ports import SourceDecoder

    Show = Callable[[Sequence[int]], str]
    Part = tuple[int, int, NDArray[np.float32]]
    """A row, its first position, and float32 (positions, vocabulary): the logits from there on."""

TOLERANCE = 1e-4
"""Bound on a difference of logits, divided by the largest magnitude of the source's where that is above 1. Correct
exports differ by some 1e-6; a wrong position or mask by 1e-2 and more."""
ROWS = 6
TOKENS = 64
"""Tokens of a row; every position of it is compared with and without a cache."""
LONG = 300
"""One row has so many: more than a prompt that comes in one piece has on a small device."""
LENGTHS = (64, 1, 17, 5, 48, 2, 31, 9)
"""Lengths of the prompts that are padded together; none of them was traced."""
PIECES = (5, 1, 2, 4, 8, 16, 28)
SHARED_STEPS = 16
PROMPT_TOKENS = (4, 24, 13)
"""Lengths of the prompts that are answered."""
ANSWER_TOKENS = 64

HINT = "nothing was written; the export is wrong for prompts, caches or batches of this kind"


@dataclass(frozen=True, kw_only=True)
class DecoderParity:
    """What the comparison found.

    Attributes:
        texts: Number of different texts.
        positions: Number of compared positions by kind of run.
        max_abs_diff: Largest difference of two logits.
        scaled_diff: The same, divided by the largest magnitude of the source's logits there.
        answers: Number of greedy answers that were compared.
        answer_tokens: Number of their tokens.
        near_ties: Tokens at which the source's two best logits are nearer than the tolerance and the graph took the
            other one; from there on it was given the source's token.
    """

    texts: int
    positions: dict[str, int]
    max_abs_diff: float
    scaled_diff: float
    answers: int
    answer_tokens: int
    near_ties: int

    def to_dict(self) -> dict[str, object]:
        """For the evidence. Figures are rounded to two digits: beyond that they are noise of the machine."""
        return {
            "reference": "the source model on each text alone, without a cache",
            "texts": self.texts,
            "positions": dict(sorted(self.positions.items())),
            "max_abs_diff": float(f"{self.max_abs_diff:.1e}"),
            "scaled_diff": float(f"{self.scaled_diff:.1e}"),
            "greedy_answers": self.answers,
            "greedy_tokens": self.answer_tokens,
            "near_ties": self.near_ties,
        }


def check_decoder(
    source: SourceDecoder,
    decoder: HostDecoder,
    rows: Sequence[Sequence[int]],
    *,
    context_length: int,
    show: Show,
    on_check: Callable[[int, int], None] | None = None,
) -> DecoderParity:
    """Compare a float graph with logits at every position with its source.

    Args:
        source: The source model.
        decoder: The graph.
        rows: Token ids of some texts, the first of at least `LONG` tokens if there are so many.
        context_length: Most tokens of a sequence.
        show: Text of some tokens, for messages.
        on_check: Called with (checks done, all checks), for progress.

    Raises:
        ParityError: A logit or a token differs; the message names the text, the position, and what was expected.
    """
    check = _Check(source=source, decoder=decoder, show=show, rows=_cut(rows, context_length))
    runs = (check.alone, check.padded, check.one_by_one, check.in_pieces, check.side_by_side, check.long_row)
    for done, run in enumerate(runs, 1):
        try:
            check.compare(run.__name__.replace("_", " "), run())
        except ParityError:
            raise
        except ValidationError as error:  # no numbers to compare
            raise ParityError(
                error.message, where=f"{error.where}, {run.__name__.replace('_', ' ')}", found=error.found, hint=HINT
            ) from error
        if on_check is not None:
            on_check(done, len(runs) + 1)
    tokens = [
        check.answer(row, PROMPT_TOKENS[row], context_length) for row in range(min(len(rows), len(PROMPT_TOKENS)))
    ]
    if on_check is not None:
        on_check(len(runs) + 1, len(runs) + 1)
    return DecoderParity(
        texts=len(rows),
        positions=dict(check.positions),
        max_abs_diff=check.max_abs_diff,
        scaled_diff=check.scaled_diff,
        answers=len(tokens),
        answer_tokens=sum(tokens),
        near_ties=check.near_ties,
    )


def _cut(rows: Sequence[Sequence[int]], context_length: int) -> tuple[tuple[int, ...], ...]:
    """The first row long, the others short; none is longer than the context."""
    limits = [min(LONG if place == 0 else TOKENS, context_length) for place in range(len(rows))]
    return tuple(tuple(row[:limit]) for row, limit in zip(rows, limits, strict=True))


@dataclass(kw_only=True)
class _Check:
    """One comparison: the source's answers, and the kinds of runs that are held against them."""

    source: SourceDecoder
    decoder: HostDecoder
    show: Show
    rows: tuple[tuple[int, ...], ...]
    expected: list[NDArray[np.float32]] = field(default_factory=list)
    positions: Counter[str] = field(default_factory=Counter)
    max_abs_diff: float = 0.0
    scaled_diff: float = 0.0
    near_ties: int = 0

    def __post_init__(self) -> None:
        self.expected = [self.source.logits(np.array([row], dtype=np.int64))[0] for row in self.rows]

    def alone(self) -> Iterator[Part]:
        """Each row as one prompt."""
        for row, ids in enumerate(self.rows):
            self.decoder.reserve(1, len(ids))
            yield row, 0, self.decoder.extend(0, ids, 0)

    def padded(self) -> Iterator[Part]:
        """Prompts of many lengths in batches, padded on the right, with room for more in the caches."""
        prompts = [
            (place % len(self.rows), self.rows[place % len(self.rows)][:length]) for place, length in enumerate(LENGTHS)
        ]
        for size in (2, 3, 8):
            for start in range(0, len(prompts), size):
                group = prompts[start : start + size]
                ids, mask = _pad([ids for _, ids in group])
                self.decoder.reserve(len(group), ids.shape[1] + 7)
                logits = self.decoder.prompts(ids, mask)
                yield from ((row, 0, logits[place, : len(ids)]) for place, (row, ids) in enumerate(group))

    def one_by_one(self) -> Iterator[Part]:
        """The first token as the prompt, then a step for each of the others."""
        row, ids = self._short_row(0)
        self.decoder.reserve(1, len(ids))
        yield row, 0, self.decoder.extend(0, ids[:1], 0)
        for place in range(1, len(ids)):
            yield row, place, self.decoder.step(np.array(ids[place : place + 1]), np.array([place]))

    def in_pieces(self) -> Iterator[Part]:
        """A prompt and continuations of several lengths, in a row of the caches that is not the first."""
        row, ids = self._short_row(1)
        self.decoder.reserve(3, len(ids) + 1)
        start = 0
        for piece in PIECES:
            if start < len(ids):
                yield row, start, self.decoder.extend(2, ids[start : start + piece], start)
            start += piece

    def side_by_side(self) -> Iterator[Part]:
        """Rows of different lengths, each put in alone, then stepping together."""
        chosen = [(row, ids[:TOKENS]) for row, ids in enumerate(self.rows) if len(ids) > SHARED_STEPS + 1]
        if not chosen:
            return
        self.decoder.reserve(len(chosen), TOKENS)
        most = [len(ids) - SHARED_STEPS for _, ids in chosen]
        starts = np.array([max(1, count * (place + 1) // len(chosen)) for place, count in enumerate(most)])
        for place, (row, ids) in enumerate(chosen):
            yield row, 0, self.decoder.extend(place, ids[: starts[place]], 0)
        for step in range(SHARED_STEPS):
            lengths = starts + step
            tokens = np.array([ids[lengths[place]] for place, (_, ids) in enumerate(chosen)])
            logits = self.decoder.step(tokens, lengths)
            yield from ((row, int(lengths[place]), logits[place : place + 1]) for place, (row, _) in enumerate(chosen))

    def long_row(self) -> Iterator[Part]:
        """The long row, its second half as a continuation."""
        ids, half = self.rows[0], (len(self.rows[0]) + 1) // 2
        self.decoder.reserve(1, len(ids))
        yield 0, 0, self.decoder.extend(0, ids[:half], 0)
        if half < len(ids):
            yield 0, half, self.decoder.extend(0, ids[half:], half)

    def _short_row(self, place: int) -> tuple[int, tuple[int, ...]]:
        row = place % len(self.rows)
        return row, self.rows[row][:TOKENS]

    def compare(self, kind: str, parts: Iterator[Part]) -> None:
        """Hold logits against the source's.

        Raises:
            ParityError: One is further away than the tolerance.
        """
        for row, start, found in parts:
            expected = self.expected[row][start : start + len(found)]
            if found.shape != expected.shape:
                raise ParityError(
                    "the graph gives logits of another shape than the source",
                    where=kind,
                    expected=str(expected.shape),
                    found=str(found.shape),
                    hint=HINT,
                )
            diff = np.abs(expected - found).max(axis=-1)
            place = int(np.where(np.isnan(diff), np.inf, diff).argmax())
            scaled = float(diff[place]) / max(1.0, float(np.abs(expected).max()))
            if not scaled <= TOLERANCE:
                self._fail(kind, row, start + place, expected[place], found[place], scaled)
            self.max_abs_diff = max(self.max_abs_diff, float(diff[place]))
            self.scaled_diff = max(self.scaled_diff, scaled)
            self.positions[kind] += len(found)

    def _fail(
        self,
        kind: str,
        row: int,
        position: int,
        expected: NDArray[np.float32],
        found: NDArray[np.float32],
        scaled: float,
    ) -> NoReturn:
        raise ParityError(
            "the exported graph does not give the source model's logits",
            where=f"{kind}, text {row + 1}, token {position + 1} of {len(self.rows[row])}",
            expected=f"scaled difference <= {TOLERANCE:g}; most probable {self._token(expected)}",
            found=f"scaled difference {scaled:.3g}; most probable {self._token(found)}",
            details=(f"after: {self.show(self.rows[row][: position + 1])[-160:]!r}",),
            hint=HINT,
        )

    def _token(self, logits: NDArray[np.float32]) -> str:
        if np.isnan(logits).any():
            return "none: not a number"
        best = int(logits.argmax())
        return f"{self.show([best])!r} (id {best}, logit {float(logits[best]):.4g})"

    def answer(self, row: int, length: int, context_length: int) -> int:
        """Let the graph answer a prompt greedily and compare it with the source's own answer; the number of tokens.

        Raises:
            ParityError: Another token came, and the source did not hold both for equally probable.
        """
        prompt = list(self.rows[row][:length])
        count = min(ANSWER_TOKENS, context_length - len(prompt))
        if count < 1:
            return 0
        expected = self.source.generate(prompt, count)
        self.decoder.reserve(1, len(prompt) + count)
        logits = self.decoder.extend(0, prompt, 0)[-1]
        for place, token in enumerate(expected):
            found = int(logits.argmax())
            if found != token:
                self._check_tie([*prompt, *expected[:place]], row, token, found)
            logits = self.decoder.step(np.array([token]), np.array([len(prompt) + place]))[0]
        return count

    def _check_tie(self, ids: list[int], row: int, token: int, found: int) -> None:
        """Whether the source itself holds two tokens for equally probable, within the tolerance."""
        logits = self.source.logits(np.array([ids], dtype=np.int64))[0, -1]
        margin = float(logits[token] - logits[found])
        if abs(margin) <= 2 * TOLERANCE * max(1.0, float(np.abs(logits).max())):
            self.near_ties += 1
            return
        raise ParityError(
            "the exported graph answers in other words than the source model",
            where=f"greedy answer to the beginning of text {row + 1}, token {len(ids) + 1}",
            expected=f"{self.show([token])!r} (id {token})",
            found=f"{self.show([found])!r} (id {found}), which the source puts {margin:.3g} below",
            details=(f"after: {self.show(ids)[-160:]!r}",),
            hint=HINT,
        )


def _pad(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows as one batch with padding on the right: ids and mask, int64 (rows, tokens)."""
    width = max(map(len, rows))
    ids, mask = np.zeros((2, len(rows), width), dtype=np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
    return ids, mask
