"""What a variant must reach before it ships, by task and precision, and the error when it does not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgeonnx.errors import GateError, UsageError
from edgeonnx.evaluate.metrics import METRICS, task_metrics
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.report import Threshold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgeonnx.spec.evidence import SearchPoint, WorstText
    from edgeonnx.spec.report import Verdict

# Why these numbers. Measured on MiniLM over thousands of real texts:
# - int8 by row with migrated outliers reaches a cosine of 0.9989 in the mean and 0.9905 at the least, plain
#   dynamic int8 0.991 and 0.924, badly calibrated static int8 0.926 and 0.617. The bounds lie after the first.
# - Invariance: scales over the whole batch give 0.92, scales by row 1.0. 0.9999 is an angle of 0.8 degrees: room for a
#   quantization step that falls on the other side because a sum was made in another order.
# The rest is judgement, to be overridden where it does not fit:
# - fp32 repeats the source up to rounding: parity has proven that, the gate only states it. fp16 keeps 11 significant
#   bits and bf16 8, so bf16 may differ eight times as much; int4 has a sixteenth of the steps of int8.
# - Token vectors are not averaged over a text, so they scatter more, and single tokens count less: in low precision
#   their 1st percentile is bounded, not the minimum.
# - Classes change only near the border between two: 3 of 100 texts, or 2 of 100 tokens, may be that near; and a mean
#   difference of 0.02 in a probability is below what a user of the score acts on.
# - A decoder's answer is a chain of choices, so the first one counts: `top1` bounds how often it is another one. The
#   divergence bounds what sampling sees, and the perplexity that the model's knowledge is still there. int4 is asked
#   for what users of 4-bit models accept; int8 for what no reader of an answer would notice.
# - Half a point of the task's own metric is the most that a smaller model may cost without somebody saying so.
_COSINES: dict[str, dict[str, float]] = {
    "fp32": {"cosine_mean": 0.99999, "cosine_min": 0.99999},
    "fp16": {"cosine_mean": 0.9999, "cosine_min": 0.9999},
    "bf16": {"cosine_mean": 0.999, "cosine_min": 0.995},
    "int8": {"cosine_mean": 0.998, "cosine_min": 0.98},
    "int4": {"cosine_mean": 0.98, "cosine_min": 0.9},
}
_TOKEN_COSINES: dict[str, dict[str, float]] = {
    "fp32": {"cosine_mean": 0.99999, "cosine_min": 0.99999},
    "fp16": {"cosine_mean": 0.9999, "cosine_p1": 0.9999},
    "bf16": {"cosine_mean": 0.999, "cosine_p1": 0.995},
    "int8": {"cosine_mean": 0.99, "cosine_p1": 0.95},
    "int4": {"cosine_mean": 0.95, "cosine_p1": 0.85},
}
_SIMILARITY_RANKS = {"fp32": 0.9999, "fp16": 0.9999, "bf16": 0.998, "int8": 0.99, "int4": 0.95}
_AGREEMENT = {"fp32": 0.999, "fp16": 0.995, "bf16": 0.99, "int8": 0.97, "int4": 0.93}
_TOKEN_AGREEMENT = {"fp32": 0.999, "fp16": 0.995, "bf16": 0.99, "int8": 0.98, "int4": 0.95}
_SCORE_DIFF = {"fp32": 0.0001, "fp16": 0.002, "bf16": 0.01, "int8": 0.02, "int4": 0.05}
_SCORE_CORRELATION = {"fp32": 0.9999, "fp16": 0.9999, "bf16": 0.999, "int8": 0.995, "int4": 0.98}
_SCORE_RANKS = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.995, "int8": 0.98, "int4": 0.95}
_INVARIANCE = {"fp32": 0.99999, "fp16": 0.9999, "bf16": 0.999, "int8": 0.9999, "int4": 0.999}
_METRIC_DROP = {"fp32": 0.1, "fp16": 0.5, "bf16": 0.5, "int8": 0.5, "int4": 1.0}
_TOP1 = {"fp32": 0.999, "fp16": 0.99, "bf16": 0.97, "int8": 0.97, "int4": 0.9}
_KL = {"fp32": 1e-4, "fp16": 1e-3, "bf16": 0.01, "int8": 0.01, "int4": 0.1}
_PERPLEXITY_RATIO = {"fp32": 1.001, "fp16": 1.005, "bf16": 1.01, "int8": 1.01, "int4": 1.1}
PRECISIONS = tuple(_COSINES)


def default_thresholds(
    task: Task, precision: str, *, labelled: bool, regression: bool = False
) -> tuple[Threshold, ...]:
    """What a variant must reach if the user says nothing.

    Args:
        task: What the model is for.
        precision: One of `PRECISIONS`.
        labelled: Whether the texts have labels.
        regression: Whether a model for text classification gives values; see `metrics.is_regression`.

    Raises:
        UsageError: The precision is not known.
    """
    if precision not in PRECISIONS:
        raise UsageError("no such precision", expected=f"one of {', '.join(PRECISIONS)}", found=precision)
    bounds = {**_bounds(task, precision, regression=regression), "invariance_min": _INVARIANCE[precision]}
    if labelled and "metric_drop" in task_metrics(task, labelled=True, regression=regression):
        bounds["metric_drop"] = _METRIC_DROP[precision]
    return tuple(_threshold(name, value) for name, value in bounds.items())


def _bounds(task: Task, precision: str, *, regression: bool) -> dict[str, float]:
    if task is Task.EMBEDDING:
        return {**_COSINES[precision], "rank_correlation": _SIMILARITY_RANKS[precision]}
    if task is Task.FEATURE_EXTRACTION:
        return _TOKEN_COSINES[precision]
    if task is Task.TEXT_RANKING:
        return {"rank_correlation": _SCORE_RANKS[precision]}
    if task is Task.TEXT_GENERATION:
        ratio = _PERPLEXITY_RATIO[precision]
        return {"top1": _TOP1[precision], "kl_mean": _KL[precision], "perplexity_ratio": ratio}
    if regression:
        return {"score_correlation": _SCORE_CORRELATION[precision]}
    agreement = _TOKEN_AGREEMENT if task is Task.TOKEN_CLASSIFICATION else _AGREEMENT
    return {"agreement": agreement[precision], "score_diff_mean": _SCORE_DIFF[precision]}


def _threshold(name: str, value: float) -> Threshold:
    if METRICS[name].at_least:
        return Threshold(metric=name, at_least=value)
    return Threshold(metric=name, at_most=value)


def with_overrides(
    thresholds: Sequence[Threshold], overrides: Mapping[str, float], *, metrics: Sequence[str]
) -> tuple[Threshold, ...]:
    """Thresholds with the user's own bounds in place of the defaults, or besides them.

    Args:
        thresholds: The defaults.
        overrides: Bounds by metric.
        metrics: The metrics that are measured (`metrics.task_metrics`).

    Raises:
        UsageError: A metric is not measured here, or no value of it could keep the bound.
    """
    for name, value in overrides.items():
        if name not in metrics:
            hint = "it needs texts with labels: --texts FILE" if _needs_labels(name) else None
            raise UsageError(
                f"the metric {name} is not measured for this task",
                where="thresholds",
                expected=f"one of {', '.join(metrics)}",
                found=name,
                hint=hint,
            )
        _check_bound(name, value)
    chosen = {bound.metric: bound for bound in thresholds}
    return tuple({**chosen, **{name: _threshold(name, value) for name, value in overrides.items()}}.values())


def _needs_labels(name: str) -> bool:
    return name in ("accuracy", "macro_f1", "pearson", "metric_drop")


def _check_bound(name: str, value: float) -> None:
    metric = METRICS[name]
    if not (math.isfinite(value) and metric.lowest <= value <= metric.highest):
        raise UsageError(
            f"the bound of {name} is out of range",
            where=metric.option,
            expected=f"{metric.lowest:g} to {metric.highest:g}",
            found=f"{value:g}",
        )


def gate_error(
    variant: str, verdict: Verdict, worst: Sequence[WorstText], *, tried: Sequence[SearchPoint] = ()
) -> GateError:
    """The error for a variant that does not reach its thresholds.

    Args:
        variant: Name of the variant.
        verdict: Of the candidate that came nearest; at least one threshold is not kept.
        worst: Its worst texts, the worst first.
        tried: The candidates of the search, for the record.
    """
    failed = [(bound, value) for bound, value in verdict.judged if not bound.passes(value)]
    options = ", ".join(METRICS[bound.metric].option for bound, _ in failed if bound.metric in METRICS)
    searched = any(point.kept for point in tried)
    candidates = f"none of {len(tried)} candidates" if len(tried) > 1 else "it does not"
    return GateError(
        f"the variant is not near enough to the source model: {candidates} keep{'s' * (len(tried) > 1)} the thresholds",
        where=variant,
        expected="; ".join(str(bound) for bound, _ in failed),
        found="; ".join(f"{bound.metric} {value:g}" for bound, value in failed),
        details=(
            *(_worst(item) for item in worst),
            *(_tried(point, [bound.metric for bound, _ in failed], searched=searched) for point in tried),
        ),
        hint=f"nothing was written; relax with {options}, give the search more time, or leave this variant out",
    )


def _worst(item: WorstText) -> str:
    if item.expected is None:
        return f"worst text: {item.text!r} ({item.tokens} tokens): {item.score:g}"
    return f"after {item.text[-60:]!r} the source says {item.expected!r}, the variant {item.found!r}: {item.score:g}"


def _tried(point: SearchPoint, names: Sequence[str], *, searched: bool) -> str:
    figures = ", ".join(f"{name} {point.metrics[name]:g}" for name in names if name in point.metrics)
    kept = f": {point.kept} groups in higher precision" if searched else ""
    return f"tried {point.name}{kept}{f': {figures}' if figures else ''}"
