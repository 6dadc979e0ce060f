"""What every variant of a decoder is measured with: windows of text, the source's distributions, the gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.errors import UsageError
from edgeonnx.evaluate.company import measure_company
from edgeonnx.evaluate.gate import default_thresholds, with_overrides
from edgeonnx.evaluate.language import WINDOW, build_language_reference, cut_windows, measure_language
from edgeonnx.evaluate.metrics import task_metrics
from edgeonnx.evaluate.refine import Candidate
from edgeonnx.evaluate.texts import read_texts
from edgeonnx.pipeline.measure import MAX_TEXTS, SHIPPED, WORST
from edgeonnx.pipeline.recipe import FP32
from edgeonnx.pipeline.texts import passages
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.report import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from edgeonnx.evaluate.language import LanguageReference
    from edgeonnx.evaluate.texts import UserTexts
    from edgeonnx.export.decoder.load import LoadedDecoder
    from edgeonnx.model.decoder import HostDecoder
    from edgeonnx.pipeline.recipe import VariantRecipe
    from edgeonnx.spec.report import Threshold

    Show = Callable[[Sequence[int]], str]


@dataclass(frozen=True, kw_only=True, eq=False)
class DecoderYardstick:
    """What variants are held against.

    Attributes:
        reference: The source's distributions.
        company: Token ids of the sequences that are run alone and in company.
        show: Text of some tokens.
        origin: Which texts these are.
        texts: Number of texts in `origin`.
        overrides: Bounds by metric that replace the defaults, for every variant but fp32.
    """

    reference: LanguageReference
    company: Sequence[Sequence[int]]
    show: Show
    origin: str
    texts: int
    overrides: Mapping[str, float]

    def thresholds(self, recipe: VariantRecipe) -> tuple[Threshold, ...]:
        """The gate of a variant."""
        return gate_of(recipe, self.overrides)

    def measure(
        self,
        decoder: HostDecoder,
        thresholds: Sequence[Threshold],
        on_window: Callable[[int, int], None] | None = None,
    ) -> Candidate:
        """Measure a graph with logits at every position, and judge it."""

        def logits(ids: NDArray[np.int64]) -> NDArray[np.float32]:
            decoder.reserve(*ids.shape)
            return decoder.prompts(ids, np.ones_like(ids))

        found = measure_language(logits, self.reference, self.show, worst=WORST, on_window=on_window)
        metrics = {**found.metrics, **measure_company(decoder, self.company).metrics}
        return Candidate(metrics=metrics, verdict=judge(metrics, thresholds), worst=found.worst)

    def to_dict(self) -> dict[str, object]:
        """For the evidence: which texts the figures are about."""
        return {
            "origin": self.origin,
            "texts": self.texts,
            "evaluated": len(self.reference.windows),
            "positions": self.reference.positions,
            "window_tokens": max(map(len, self.reference.windows)),
        }


def gate_of(recipe: VariantRecipe, overrides: Mapping[str, float]) -> tuple[Threshold, ...]:
    """The thresholds of a variant; overrides do not touch fp32, which parity has proven already.

    Raises:
        UsageError: An override is about a metric that is not measured for text generation.
    """
    defaults = default_thresholds(Task.TEXT_GENERATION, recipe.precision, labelled=False)
    changed = with_overrides(defaults, overrides, metrics=task_metrics(Task.TEXT_GENERATION, labelled=False))
    return defaults if recipe == FP32 else changed


def read_user_texts(path: Path | None) -> UserTexts | None:
    """The user's own texts, if there are any.

    Raises:
        UsageError: The file cannot be used, or has labels.
    """
    if path is None:
        return None
    user = read_texts(path, takes_pairs=False, limit=MAX_TEXTS)
    if user.labels is not None:
        raise UsageError(
            "has labels, which say nothing about generated text",
            where=user.origin,
            hint="give plain texts: one a line, or JSONL with text alone",
        )
    return user


def open_yardstick(
    source: LoadedDecoder,
    user: UserTexts | None,
    company: Sequence[Sequence[int]],
    show: Show,
    overrides: Mapping[str, float],
    folder: Path,
    on_window: Callable[[int, int], None],
) -> DecoderYardstick:
    """Ask the source for its distributions over the texts.

    Raises:
        UsageError: No text has two tokens, so nothing follows anything.
    """
    texts = passages() if user is None else user.texts
    windows = cut_windows(source.tokenize(texts), width=min(WINDOW, source.facts.context_length))
    if not windows:
        raise UsageError(
            "has no text of two tokens or more",
            where="--texts",
            hint="give longer texts: what follows a token is what is measured",
        )
    reference = build_language_reference(source.logits, windows, folder, on_window)
    return DecoderYardstick(
        reference=reference,
        company=company,
        show=show,
        origin=SHIPPED if user is None else user.origin,
        texts=len(texts) if user is None else user.total,
        overrides=overrides,
    )
