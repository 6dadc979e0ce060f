"""How near a decoder's next-token distributions are to the source's, over thousands of positions of real text.

Three figures tell different things. Top-1 agreement: how often a greedy answer would go another way. The divergence:
how far the whole distribution moved, which is what sampling sees. Perplexity: how well the model still predicts what
really follows.

A distribution over a vocabulary is large, so windows of text pass one by one, and the source's distributions lie in
files, not in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from edgeonnx_ext import log_softmax_into

from edgeonnx.errors import ValidationError
from edgeonnx.evaluate.metrics import METRICS, rounded
from edgeonnx.evaluate.texts import spread
from edgeonnx.spec.evidence import WorstText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Logits = Callable[[NDArray[np.int64]], NDArray[np.float32]]
    """int64 (1, tokens) to float32 (1, tokens, vocabulary)."""

WINDOW = 256
"""Tokens of a window: enough context for most of what a model knows, and little memory."""
MIN_WINDOW = 32
"""What is left over of a long text is dropped if it is shorter: without context all models are equally bad."""
POSITIONS = 2048
"""About so many positions are measured, in windows that are evenly spread over the texts, if there are as many. A share
of 0.97 of so many has a standard error of 0.004."""
CONTEXT_TOKENS = 24
"""So many tokens before a position are shown with it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LanguageReference:
    """The source's log-probabilities of the next token, at every position of some windows of text.

    Attributes:
        windows: Token ids of each window.
        files: For each window a file with float32 (tokens, vocabulary), in NumPy's format.
    """

    windows: tuple[tuple[int, ...], ...]
    files: tuple[Path, ...]

    @property
    def positions(self) -> int:
        """Positions of all windows."""
        return sum(map(len, self.windows))

    def each(self) -> Iterator[tuple[tuple[int, ...], NDArray[np.float32]]]:
        """Each window with its log-probabilities; only one window's are in memory."""
        for window, file in zip(self.windows, self.files, strict=True):
            yield window, np.load(file, allow_pickle=False)


@dataclass(frozen=True, kw_only=True)
class LanguageResult:
    """What was measured of one graph.

    Attributes:
        metrics: `top1`, `kl_mean`, `kl_p99`, `kl_max`, `perplexity`, `source_perplexity`, `perplexity_ratio`.
        worst: The positions with the largest divergence, those with another first token before the others; `score` is
            exp(-divergence), so that 1 is equal.
    """

    metrics: dict[str, float]
    worst: tuple[WorstText, ...]


def cut_windows(
    rows: Sequence[Sequence[int]], *, width: int = WINDOW, enough: int = POSITIONS
) -> tuple[tuple[int, ...], ...]:
    """Cut tokenized texts into windows.

    Args:
        rows: Token ids of each text.
        width: Most tokens of a window.
        enough: No more windows are taken than it needs for so many tokens.

    Returns:
        Windows of at least two tokens, so that something follows; where some are left out, evenly spread.
    """
    windows = []
    for row in rows:
        pieces = [tuple(row[start : start + width]) for start in range(0, len(row), width)]
        windows += [piece for place, piece in enumerate(pieces) if len(piece) >= (MIN_WINDOW if place else 2)]
    longest = max(map(len, windows), default=1)
    for count in range(max(1, enough // longest), len(windows)):
        chosen = tuple(windows[index] for index in spread(len(windows), count))
        if sum(map(len, chosen)) >= enough:
            return chosen
    return tuple(windows)


def build_language_reference(
    logits: Logits,
    windows: Sequence[tuple[int, ...]],
    folder: Path,
    on_window: Callable[[int, int], None] | None = None,
) -> LanguageReference:
    """Ask the source for its distributions, window by window.

    Args:
        logits: The source model.
        windows: Token ids of each window.
        folder: Holds the files of log-probabilities; it must stay while the reference is used.
        on_window: Called with (windows done, all windows), for progress.

    Raises:
        ValidationError: The source's answers are not numbers.
    """
    files = []
    for done, window in enumerate(windows, 1):
        logprobs = log_softmax(_answer(logits, window))
        if not np.isfinite(logprobs).all():
            raise ValidationError("the source model's answer is not a number", where=f"window {done} of text")
        files.append(folder / f"source-{done}.npy")
        np.save(files[-1], logprobs)
        if on_window is not None:
            on_window(done, len(windows))
    return LanguageReference(windows=tuple(windows), files=tuple(files))


def measure_language(
    logits: Logits,
    reference: LanguageReference,
    show: Callable[[Sequence[int]], str],
    *,
    worst: int,
    on_window: Callable[[int, int], None] | None = None,
) -> LanguageResult:
    """Compare a graph's distributions with the source's.

    Args:
        logits: Runs the graph.
        reference: The source's distributions.
        show: Text of some tokens, for the worst positions.
        worst: So many of them are told.
        on_window: Called with (windows done, all windows), for progress.

    Raises:
        ValidationError: The graph does not run.
    """
    found = []
    for done, (window, expected) in enumerate(reference.each(), 1):
        found.append(_compare(window, expected, log_softmax(_answer(logits, window))))
        if on_window is not None:
            on_window(done, len(reference.windows))
    divergence = np.concatenate([item.divergence for item in found])
    same = np.concatenate([item.expected == item.found for item in found])
    source = float(np.exp(-np.concatenate([item.source for item in found]).mean()))
    own = float(np.exp(-np.concatenate([item.own for item in found]).mean()))
    metrics = {
        "top1": float(same.mean()),
        "kl_mean": float(divergence.mean()),
        "kl_p99": float(np.percentile(divergence, 99)),
        "kl_max": float(divergence.max()),
        "perplexity": own,
        "source_perplexity": source,
        "perplexity_ratio": own / source,
    }
    if not np.isfinite(divergence).all():  # a broken answer has no most probable token either
        metrics |= {name: METRICS[name].worst for name in metrics if name in METRICS}
    return LanguageResult(metrics=rounded(metrics), worst=_worst(reference.windows, found, show, worst))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Compared:
    """What was found in one window.

    Attributes:
        divergence: At each position.
        expected: The source's most probable token at each position.
        found: The graph's.
        source: The source's log-probability of the token that really follows, at each position but the last.
        own: The graph's.
    """

    divergence: NDArray[np.float64]
    expected: NDArray[np.int64]
    found: NDArray[np.int64]
    source: NDArray[np.float64]
    own: NDArray[np.float64]


def _answer(logits: Logits, window: Sequence[int]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = logits(np.array([window], dtype=np.int64))[0]
    return found


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-probabilities of logits, both float32 (positions, vocabulary)."""
    rows = np.ascontiguousarray(logits)
    found = np.empty_like(rows)
    log_softmax_into(rows, found)
    return found


def _compare(window: Sequence[int], expected: NDArray[np.float32], found: NDArray[np.float32]) -> _Compared:
    """KL(source || graph) = sum over tokens of p * (log p - log q), in nats."""
    if found.shape != expected.shape:
        raise ValidationError(
            "the graph gives logits of another shape than the source",
            expected=str(expected.shape),
            found=str(found.shape),
        )
    with np.errstate(invalid="ignore"):
        divergence = (np.exp(expected) * (expected - found)).sum(axis=-1, dtype=np.float64)
    places, following = np.arange(len(window) - 1), np.asarray(window[1:], dtype=np.int64)
    return _Compared(
        divergence=np.where(divergence < 0, 0.0, divergence),  # equal distributions, but for rounding
        expected=expected.argmax(axis=-1),
        found=found.argmax(axis=-1),
        source=expected[places, following].astype(np.float64),
        own=found[places, following].astype(np.float64),
    )


def _worst(
    windows: Sequence[tuple[int, ...]],
    found: Sequence[_Compared],
    show: Callable[[Sequence[int]], str],
    count: int,
) -> tuple[WorstText, ...]:
    """Positions whose first token changed, by divergence; then the others."""
    places = [(index, place) for index, window in enumerate(windows) for place in range(len(window))]
    divergence = np.concatenate([np.nan_to_num(item.divergence, nan=np.inf) for item in found])
    changed = np.concatenate([item.expected != item.found for item in found])
    order = np.lexsort((-divergence, ~changed))[:count]
    return tuple(
        _worst_text(windows[index], found[index], place, show) for index, place in (places[item] for item in order)
    )


def _worst_text(
    window: tuple[int, ...], item: _Compared, place: int, show: Callable[[Sequence[int]], str]
) -> WorstText:
    divergence = float(item.divergence[place])
    score = float(np.exp(-divergence)) if np.isfinite(divergence) else 0.0
    return WorstText(
        text=show(window[max(0, place + 1 - CONTEXT_TOKENS) : place + 1]),
        tokens=place + 1,
        score=round(score, 6),
        expected=show([int(item.expected[place])]),
        found=show([int(item.found[place])]),
    )
