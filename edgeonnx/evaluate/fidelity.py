"""How near a variant's answers are to the source model's, on real texts.

What is measured follows from the task; `edgeonnx.evaluate.metrics` has the table of names.

| task | metrics | score of a row |
|---|---|---|
| embedding | `cosine_mean`, `cosine_p1`, `cosine_min`, `rank_correlation` of the similarities of texts | its cosine |
| feature extraction | the same cosines over all tokens | smallest cosine of its tokens |
| classification, one class a text | `agreement` of the class, `score_diff_mean`, `score_diff_max` | 1 - difference |
| classification, several classes a text | the same; `agreement` of all classes on their side of 0.5 | 1 - difference |
| regression | `score_correlation`, differences in parts of the range of the source's scores | 1 - difference |
| token classification | `agreement` and differences over all tokens | 1 - largest difference of its tokens |
| ranking | `rank_correlation` of the scores, differences (divided by their range if that is above 1) | 1 - difference |

The difference of a row (or token) is the largest one of its scores. With labels, the metrics of
`edgeonnx.evaluate.labels` come on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.errors import UsageError
from edgeonnx.evaluate import labels as held
from edgeonnx.evaluate.metrics import METRICS, WORST_DIFF, is_regression, rounded
from edgeonnx.evaluate.numerics import cosines, is_flat, pearson, similarities, spearman
from edgeonnx.spec.evidence import WorstText
from edgeonnx.spec.manifest import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from edgeonnx.evaluate.numerics import Floats
    from edgeonnx.evaluate.texts import Label
    from edgeonnx.model.ports import FloatTensors
    from edgeonnx.model.reference import Reference

    Correlation = Callable[[Floats, Floats], float]

RANKED_TEXTS = 400
"""Similarities are ranked among so many texts: 79,800 pairs."""
SCORES = "scores"
GIVEN = 0.5
"""A model with a sigmoid for each class gives the classes from this score on."""
SHOWN = 160


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How near a variant is to the source.

    Attributes:
        metrics: Figures by name, all finite.
        scores: One per text, smaller is worse; see the module's table.
        texts: The texts, pairs joined by " | ".
        tokens: Tokens of each.
    """

    metrics: dict[str, float]
    scores: tuple[float, ...]
    texts: tuple[str, ...]
    tokens: tuple[int, ...]

    def worst(self, count: int) -> tuple[WorstText, ...]:
        """The `count` texts with the lowest scores, the worst first; equal ones in their order."""
        rows = sorted(range(len(self.scores)), key=lambda row: self.scores[row])[:count]
        return tuple(
            WorstText(text=_shorten(self.texts[row]), tokens=self.tokens[row], score=self.scores[row]) for row in rows
        )


@dataclass(frozen=True, kw_only=True)
class _Figures:
    metrics: dict[str, float]
    scores: Floats


def measure_fidelity(
    task: Task,
    reference: Reference,
    answers: Sequence[FloatTensors],
    *,
    activation: str | None = None,
    labels: Sequence[Label] | None = None,
    label_names: tuple[str, ...] = (),
) -> Fidelity:
    """Compare a variant's answers with the source's.

    An answer that is not a number gives every metric its worst value, and its text the lowest score.

    Args:
        task: What the model is for.
        reference: The source's answers; at least one text.
        answers: The variant's, in the same form (`edgeonnx.evaluate.answers.answer_rows`).
        activation: `softmax`, `sigmoid` or `identity` on the logits: tells one class a text from several, and values.
        labels: The user's label of each text, for classification and regression.
        label_names: The model's class names.

    Raises:
        UsageError: A label does not fit the model, or the task takes none.
    """
    if not reference.texts or len(answers) != len(reference.texts):
        raise ValueError(f"{len(answers)} answers to {len(reference.texts)} texts")
    broken = np.array([_is_broken(*sides) for sides in zip(reference.outputs, answers, strict=True)])
    name = _judged_output(reference)
    want, have = ([_finite(row[name]) for row in side] for side in (reference.outputs, answers))
    figures = _measure(task, want, have, activation)
    metrics = dict(figures.metrics)
    if labels is not None:
        metrics |= _held_against_labels(task, want, have, activation, labels, label_names, reference.texts)
    if broken.any():
        metrics |= {name: METRICS[name].worst for name in metrics if name in METRICS}
    low = -1.0 if "cosine_min" in metrics else 1.0 - WORST_DIFF
    return Fidelity(
        metrics=rounded(metrics),
        scores=tuple(round(float(value), 6) for value in np.where(broken, low, figures.scores)),
        texts=_shown_texts(reference),
        tokens=tuple(reference.lengths),
    )


def _judged_output(reference: Reference) -> str:
    """Scores where there are some: logits may differ by a constant and mean the same."""
    names = list(reference.outputs[0])
    return SCORES if SCORES in names else names[0]


def _is_broken(want: FloatTensors, have: FloatTensors) -> bool:
    """Whether a number is missing in any output, also in one that is not judged: logits overflow before scores do."""
    return not all(np.isfinite(value).all() for side in (want, have) for value in side.values())


def _finite(value: NDArray[np.float32]) -> Floats:
    """A row's output without its batch axis: (values,) or (tokens, values). What is no number is judged elsewhere."""
    array = np.asarray(value, dtype=np.float64)[0]
    return np.where(np.isfinite(array), array, 0.0)


def _measure(task: Task, want: list[Floats], have: list[Floats], activation: str | None) -> _Figures:
    if task is Task.EMBEDDING:
        return _embeddings(np.stack(want), np.stack(have))
    if task is Task.FEATURE_EXTRACTION:
        return _cosine_figures([cosines(*sides) for sides in zip(want, have, strict=True)])
    if task is Task.TOKEN_CLASSIFICATION:
        starts = np.cumsum([0, *(len(row) for row in want[:-1])])
        tokens = _classes(np.concatenate(want), np.concatenate(have), several=False)
        return _Figures(metrics=tokens.metrics, scores=np.minimum.reduceat(tokens.scores, starts))
    source, variant = np.stack(want), np.stack(have)
    if task is Task.TEXT_RANKING:
        scale = np.maximum(1.0, np.ptp(source, axis=0))
        return _values("rank_correlation", spearman, source, variant, scale)
    if is_regression(task, activation, source.shape[-1]):
        scale = np.array([1.0 if is_flat(column) else float(np.ptp(column)) for column in source.T])
        return _values("score_correlation", pearson, source, variant, scale)
    return _classes(source, variant, several=activation == "sigmoid")


def _embeddings(source: Floats, variant: Floats) -> _Figures:
    found = _cosine_figures(list(cosines(source, variant)[:, None]))
    order = spearman(similarities(source[:RANKED_TEXTS]), similarities(variant[:RANKED_TEXTS]))
    return _Figures(metrics={**found.metrics, "rank_correlation": order}, scores=found.scores)


def _cosine_figures(rows: list[Floats]) -> _Figures:
    every = np.concatenate(rows)
    metrics = {
        "cosine_mean": float(every.mean()),
        "cosine_p1": float(np.percentile(every, 1)),
        "cosine_min": float(every.min()),
    }
    return _Figures(metrics=metrics, scores=np.array([row.min() for row in rows]))


def _classes(source: Floats, variant: Floats, *, several: bool) -> _Figures:
    """Scores of classes: (rows or tokens, classes)."""
    if several:
        same = ((source >= GIVEN) == (variant >= GIVEN)).all(axis=-1)
    else:
        same = source.argmax(axis=-1) == variant.argmax(axis=-1)
    return _differences({"agreement": float(same.mean())}, np.abs(source - variant).max(axis=-1))


def _values(name: str, correlate: Correlation, source: Floats, variant: Floats, scale: Floats) -> _Figures:
    """Scores that are values, (rows, columns); of several columns the worst correlation counts."""
    columns = [correlate(*sides) for sides in zip(source.T, variant.T, strict=True)]
    return _differences({name: min(columns)}, (np.abs(source - variant) / scale).max(axis=-1))


def _differences(metrics: dict[str, float], diff: Floats) -> _Figures:
    spread = {"score_diff_mean": float(diff.mean()), "score_diff_max": float(diff.max())}
    return _Figures(metrics={**metrics, **spread}, scores=1.0 - diff)


def _held_against_labels(
    task: Task,
    want: list[Floats],
    have: list[Floats],
    activation: str | None,
    labels: Sequence[Label],
    names: tuple[str, ...],
    texts: Sequence[str],
) -> dict[str, float]:
    if task not in (Task.TEXT_CLASSIFICATION, Task.TOKEN_CLASSIFICATION):
        raise UsageError(f"the task {task.value} takes no labels", hint="remove the field label")
    if len(labels) != len(texts):
        raise ValueError(f"{len(labels)} labels of {len(texts)} texts")
    classes = want[0].shape[-1]
    if task is Task.TOKEN_CLASSIFICATION:
        truth = held.read_tokens(labels, names, classes, texts, [len(row) for row in want])
        return held.token_metrics(truth, np.concatenate(want), np.concatenate(have))
    source, variant = np.stack(want), np.stack(have)
    if is_regression(task, activation, classes):
        if classes > 1:
            raise UsageError("a label is one number, and the model gives several", found=f"{classes} values a text")
        return held.value_metrics(held.read_values(labels, texts), source[:, 0], variant[:, 0])
    if activation == "sigmoid":
        return held.set_metrics(held.read_sets(labels, names, classes, texts), source, variant, GIVEN)
    return held.class_metrics(held.read_classes(labels, names, classes, texts), source, variant)


def _shown_texts(reference: Reference) -> tuple[str, ...]:
    if reference.pairs is None:
        return reference.texts
    return tuple(f"{text} | {pair}" for text, pair in zip(reference.texts, reference.pairs, strict=True))


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
