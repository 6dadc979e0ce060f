"""What every variant is measured with: texts, the source's answers to them, labels, thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from edgeonnx.evaluate.answers import answer_rows, plan_batches
from edgeonnx.evaluate.fidelity import measure_fidelity
from edgeonnx.evaluate.gate import default_thresholds, with_overrides
from edgeonnx.evaluate.invariance import measure_invariance
from edgeonnx.evaluate.metrics import is_regression, task_metrics
from edgeonnx.evaluate.refine import Candidate
from edgeonnx.evaluate.texts import read_texts
from edgeonnx.model.reference import Reference, build_reference, pad_rows
from edgeonnx.pipeline.recipe import FP32
from edgeonnx.pipeline.texts import calibration_texts, pair_up
from edgeonnx.spec.report import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from edgeonnx.evaluate.answers import Run
    from edgeonnx.evaluate.texts import UserTexts
    from edgeonnx.export.encoder import LoadedEncoder
    from edgeonnx.model.ports import IntTensors
    from edgeonnx.pipeline.recipe import VariantRecipe
    from edgeonnx.spec.report import Threshold

SHIPPED = "the texts that ship with edgeonnx"
MAX_TEXTS = 2000
"""Of a longer file of the user, so many texts, evenly spread, are measured: the source answers them one by one."""
WORST = 10
INVARIANCE_ROWS = 32
SENSITIVITY_ROWS = 48
SENSITIVITY_TOKENS = 48


@dataclass(frozen=True, kw_only=True, eq=False)
class Yardstick:
    """What variants are held against.

    Attributes:
        encoder: The source model.
        reference: Its answers, each text alone.
        calibration: Batches of other texts, int64 (rows, tokens) by input name.
        user: The user's own texts and labels, or None if the shipped texts are used.
        overrides: Bounds by metric that replace the defaults, for every variant but fp32.
    """

    encoder: LoadedEncoder
    reference: Reference
    calibration: tuple[IntTensors, ...]
    user: UserTexts | None
    overrides: Mapping[str, float]

    @property
    def labelled(self) -> bool:
        """Whether the texts have labels."""
        return self.user is not None and self.user.labels is not None

    @property
    def regression(self) -> bool:
        """Whether the model gives a value and no class."""
        return _is_regression(self.encoder)

    def thresholds(self, recipe: VariantRecipe) -> tuple[Threshold, ...]:
        """The gate of a variant."""
        return gate_of(self.encoder, recipe, self.overrides, labelled=self.labelled)

    def measure(self, run: Run, thresholds: Sequence[Threshold]) -> Candidate:
        """Measure a graph on all texts and judge it."""
        plan = self.encoder.plan
        fidelity = measure_fidelity(
            plan.task,
            self.reference,
            answer_rows(run, self.reference),
            activation=plan.activation,
            labels=self.user.labels if self.user is not None else None,
            label_names=plan.labels,
        )
        invariance = measure_invariance(
            run, self.reference, max_length=self.encoder.tokenizer.max_length, rows=INVARIANCE_ROWS
        )
        metrics = {**fidelity.metrics, **invariance.metrics}
        return Candidate(metrics=metrics, verdict=judge(metrics, thresholds), worst=fidelity.worst(WORST))

    def loss(self, run: Run) -> float:
        """How far a graph is from the source on a few short texts: 1 minus the mean of their scores."""
        plan, short = self.encoder.plan, self.short
        fidelity = measure_fidelity(plan.task, short, answer_rows(run, short), activation=plan.activation)
        return 1 - sum(fidelity.scores) / len(fidelity.scores)

    @cached_property
    def short(self) -> Reference:
        """A few of the texts, short ones: enough to rank groups of nodes by what they cost."""
        lengths = self.reference.lengths
        rows = [row for row, length in enumerate(lengths) if length <= SENSITIVITY_TOKENS] or [0]
        rows = rows[:: max(1, len(rows) // SENSITIVITY_ROWS)][:SENSITIVITY_ROWS]
        full = self.reference
        return Reference(
            texts=tuple(full.texts[row] for row in rows),
            pairs=None if full.pairs is None else tuple(full.pairs[row] for row in rows),
            inputs=tuple(full.inputs[row] for row in rows),
            outputs=tuple(full.outputs[row] for row in rows),
            pad_ids=full.pad_ids,
        )

    def to_dict(self) -> dict[str, object]:
        """For the evidence: which texts the figures are about."""
        facts: dict[str, object] = {
            "origin": SHIPPED if self.user is None else self.user.origin,
            "evaluated": len(self.reference.texts),
            "calibrated": sum(len(next(iter(batch.values()))) for batch in self.calibration),
            "labelled": len(self.reference.texts) if self.labelled else 0,
        }
        if self.user is not None:
            facts["in_file"] = self.user.total
        return facts


def _is_regression(encoder: LoadedEncoder) -> bool:
    return is_regression(encoder.plan.task, encoder.plan.activation, len(encoder.plan.labels))


def gate_of(
    encoder: LoadedEncoder, recipe: VariantRecipe, overrides: Mapping[str, float], *, labelled: bool
) -> tuple[Threshold, ...]:
    """The thresholds of a variant; overrides do not touch fp32, which parity has proven already.

    Raises:
        UsageError: An override is about a metric that this task does not have.
    """
    task, regression = encoder.plan.task, _is_regression(encoder)
    defaults = default_thresholds(task, recipe.precision, labelled=labelled, regression=regression)
    metrics = task_metrics(task, labelled=labelled, regression=regression)
    changed = with_overrides(defaults, overrides, metrics=metrics)
    return defaults if recipe == FP32 else changed


def read_user_texts(path: Path | None, *, takes_pairs: bool) -> UserTexts | None:
    """The user's texts, if there are any; see `edgeonnx.evaluate.texts`."""
    return None if path is None else read_texts(path, takes_pairs=takes_pairs, limit=MAX_TEXTS)


def user_reference(
    encoder: LoadedEncoder, user: UserTexts, pad_ids: dict[str, int], on_row: Callable[[int, int], None]
) -> Reference:
    """The source's answers to the user's texts."""
    return build_reference(encoder, user.texts, user.pairs, pad_ids, on_row=on_row)


def calibration_batches(encoder: LoadedEncoder, pad_ids: dict[str, int]) -> tuple[IntTensors, ...]:
    """The calibration texts as batches of similar lengths."""
    texts = calibration_texts()
    rows = encoder.tokenize(texts, pair_up(texts) if encoder.plan.task.takes_pairs else None)
    lengths = [row["input_ids"].shape[1] for row in rows]
    return tuple(
        pad_rows([rows[index] for index in batch], max(lengths[index] for index in batch), pad_ids)
        for batch in plan_batches(lengths)
    )
