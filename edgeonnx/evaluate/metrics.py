"""The vocabulary of metrics: the names that evidence, thresholds and options share, and what is good.

| metric | better | what it is |
|---|---|---|
| `cosine_mean`, `cosine_p1`, `cosine_min` | higher | cosine to the source's vector: mean, 1st percentile, minimum |
| `rank_correlation` | higher | Spearman's rho of the source's order and the variant's: of similarities, or of scores |
| `agreement` | higher | share of rows (or tokens) with the source's class |
| `score_correlation` | higher | Pearson's r of the source's and the variant's scores |
| `score_diff_mean`, `score_diff_max` | lower | difference of scores to the source: mean, maximum |
| `accuracy`, `macro_f1`, `pearson` | higher | the variant's answers held against the labels |
| `source_accuracy`, `source_macro_f1`, `source_pearson` | | the source's own; no threshold can be on them |
| `metric_drop` | lower | points that the variant loses on the labels (accuracy or Pearson's r, times 100) |
| `top1` | higher | share of positions with the source's most probable next token |
| `kl_mean` | lower | Kullback-Leibler divergence from the source's distribution of the next token, in nats, mean |
| `kl_p99`, `kl_max` | lower | the same: 99th percentile, maximum |
| `perplexity` | lower | exp of the mean negative log-probability of the tokens that really follow |
| `perplexity_ratio` | lower | the variant's perplexity over the source's |
| `invariance_min` | higher | smallest cosine of a text's answer alone and in a batch |
| `invariance_diff` | lower | largest scaled difference of the same |

Every value is finite, since evidence is JSON. Where any answer is not a number, each metric takes the worst value in
this table: one broken answer must not be averaged away among good ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.spec.manifest import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

WORST_DIFF = 1e6
"""Stands for a difference to what is not a number: beyond that of any model that works."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What is known of a metric without measuring it.

    Attributes:
        at_least: Whether a threshold bounds it from below (higher is better).
        lowest: Smallest value that it can have.
        highest: Largest value that it can have.
        option: The command line's option that sets its bound.
    """

    at_least: bool
    lowest: float
    highest: float
    option: str

    @property
    def worst(self) -> float:
        """The value of answers that are not numbers."""
        return self.lowest if self.at_least else self.highest


def _cosine(option: str) -> Metric:
    return Metric(at_least=True, lowest=-1.0, highest=1.0, option=option)


def _share(option: str) -> Metric:
    return Metric(at_least=True, lowest=0.0, highest=1.0, option=option)


def _difference(option: str) -> Metric:
    return Metric(at_least=False, lowest=0.0, highest=WORST_DIFF, option=option)


METRICS: dict[str, Metric] = {
    "cosine_mean": _cosine("--min-cosine-mean"),
    "cosine_p1": _cosine("--min-cosine-p1"),
    "cosine_min": _cosine("--min-cosine"),
    "rank_correlation": _cosine("--min-rank-correlation"),
    "agreement": _share("--min-agreement"),
    "score_correlation": _cosine("--min-score-correlation"),
    "score_diff_mean": _difference("--max-score-diff-mean"),
    "score_diff_max": _difference("--max-score-diff"),
    "accuracy": _share("--min-accuracy"),
    "macro_f1": _share("--min-macro-f1"),
    "pearson": _cosine("--min-pearson"),
    "metric_drop": Metric(at_least=False, lowest=-200.0, highest=200.0, option="--max-metric-drop"),
    "top1": _share("--min-top1"),
    "kl_mean": _difference("--max-kl"),
    "kl_p99": _difference("--max-kl-p99"),
    "kl_max": _difference("--max-kl-max"),
    "perplexity": _difference("--max-perplexity"),
    "perplexity_ratio": _difference("--max-perplexity-ratio"),
    "invariance_min": _cosine("--min-invariance"),
    "invariance_diff": _difference("--max-invariance-diff"),
}
COSINES = ("cosine_mean", "cosine_p1", "cosine_min")
DIFFERENCES = ("score_diff_mean", "score_diff_max")
LANGUAGE = ("top1", "kl_mean", "kl_p99", "kl_max", "perplexity", "perplexity_ratio")
INVARIANCE = ("invariance_min", "invariance_diff")


def is_regression(task: Task, activation: str | None, outputs: int) -> bool:
    """Whether a model for text classification gives values and no classes.

    Args:
        task: The task.
        activation: `softmax`, `sigmoid` or `identity` on the logits, or None if it is not known.
        outputs: Number of scores of a row.
    """
    return task is Task.TEXT_CLASSIFICATION and (outputs == 1 or activation == "identity")


def task_metrics(task: Task, *, labelled: bool, regression: bool = False) -> tuple[str, ...]:
    """The metrics that are measured for a task and that a threshold may bound.

    Args:
        task: The task.
        labelled: Whether the texts have labels.
        regression: See `is_regression`.
    """
    if task is Task.EMBEDDING:
        return (*COSINES, "rank_correlation", *INVARIANCE)
    if task is Task.FEATURE_EXTRACTION:
        return (*COSINES, *INVARIANCE)
    if task is Task.TEXT_RANKING:
        return ("rank_correlation", *DIFFERENCES, *INVARIANCE)
    if task is Task.TEXT_GENERATION:
        return (*LANGUAGE, *INVARIANCE)
    leader, labels = ("score_correlation", ("pearson",)) if regression else ("agreement", ("accuracy", "macro_f1"))
    if task is Task.TOKEN_CLASSIFICATION:
        labels = ("accuracy",)
    return (leader, *DIFFERENCES, *((*labels, "metric_drop") if labelled else ()), *INVARIANCE)


def rounded(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics as evidence holds them, all finite.

    Six places, differences three digits, perplexities five: what is beyond is the noise of float32. What is not a
    number takes the metric's worst value.
    """
    result = {}
    for name, value in metrics.items():
        known = METRICS[name.removeprefix("source_")]
        if not math.isfinite(value):
            result[name] = known.worst
        elif "perplexity" in name:
            result[name] = min(float(f"{value:.5g}"), WORST_DIFF)
        elif known.highest == WORST_DIFF:
            result[name] = min(float(f"{value:.2e}"), WORST_DIFF)
        else:
            result[name] = round(float(value), 6)
    return result
