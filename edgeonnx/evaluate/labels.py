"""The user's labels against the answers of source and variant: what quantizing costs in the task's own metric.

A label is a class name of the model (case matters) or a class index; a list of class names where a text has several
classes (a model with sigmoid scores) or where each token has one; a number where the model gives values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.errors import UsageError, printable
from edgeonnx.evaluate.numerics import is_flat, macro_f1, pearson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edgeonnx.evaluate.numerics import Classes, Floats
    from edgeonnx.evaluate.texts import Label

NOT_COUNTED = ""
"""The label of a token that does not count: special tokens, and the later pieces of a word."""
UNLABELLED = -1
POINTS = 100.0


def class_metrics(truth: Classes, source: Floats, variant: Floats) -> dict[str, float]:
    """Accuracy and macro F1 of answers with one class a row.

    Args:
        truth: int64 (rows,): the labels' class indices.
        source: (rows, classes): the source model's scores.
        variant: The same of the variant.
    """
    classes = np.arange(source.shape[-1])
    wanted = truth[:, None] == classes
    return _compared(
        {
            prefix: {
                "accuracy": float((scores.argmax(axis=-1) == truth).mean()),
                "macro_f1": macro_f1(wanted, scores.argmax(axis=-1)[:, None] == classes),
            }
            for prefix, scores in (("", variant), ("source_", source))
        },
        "accuracy",
    )


def set_metrics(truth: NDArray[np.bool_], source: Floats, variant: Floats, limit: float) -> dict[str, float]:
    """Accuracy (all classes of a row right) and macro F1 of answers with any number of classes a row.

    Args:
        truth: bool (rows, classes).
        source: (rows, classes): the source model's scores.
        variant: The same of the variant.
        limit: A class is given from this score on.
    """
    return _compared(
        {
            prefix: {
                "accuracy": float(((scores >= limit) == truth).all(axis=-1).mean()),
                "macro_f1": macro_f1(truth, scores >= limit),
            }
            for prefix, scores in (("", variant), ("source_", source))
        },
        "accuracy",
    )


def token_metrics(truth: Classes, source: Floats, variant: Floats) -> dict[str, float]:
    """Accuracy over the tokens that count.

    Args:
        truth: int64 (tokens,): class indices, `UNLABELLED` where a token does not count.
        source: (tokens, classes): the source model's scores.
        variant: The same of the variant.
    """
    counted = truth != UNLABELLED
    return _compared(
        {
            prefix: {"accuracy": float((scores.argmax(axis=-1) == truth)[counted].mean())}
            for prefix, scores in (("", variant), ("source_", source))
        },
        "accuracy",
    )


def value_metrics(truth: Floats, source: Floats, variant: Floats) -> dict[str, float]:
    """Pearson's correlation of values with the labels.

    Args:
        truth: (rows,).
        source: (rows,): the source model's values.
        variant: The same of the variant.
    """
    return _compared(
        {"": {"pearson": pearson(truth, variant)}, "source_": {"pearson": pearson(truth, source)}}, "pearson"
    )


def _compared(sides: dict[str, dict[str, float]], leader: str) -> dict[str, float]:
    figures = {f"{prefix}{name}": value for prefix, side in sides.items() for name, value in side.items()}
    return {**figures, "metric_drop": POINTS * (figures[f"source_{leader}"] - figures[leader])}


def read_classes(labels: Sequence[Label], names: Sequence[str], classes: int, texts: Sequence[str]) -> Classes:
    """Class index of each row: int64 (rows,).

    Raises:
        UsageError: A label is no class of the model.
    """
    return np.array([_index(label, names, classes, _where(texts, row)) for row, label in enumerate(labels)], np.int64)


def read_sets(labels: Sequence[Label], names: Sequence[str], classes: int, texts: Sequence[str]) -> NDArray[np.bool_]:
    """Classes of each row: bool (rows, classes). A label that is no list stands for a single class.

    Raises:
        UsageError: A label is no class of the model.
    """
    truth = np.zeros((len(labels), classes), dtype=np.bool_)
    for row, label in enumerate(labels):
        for item in label if isinstance(label, tuple) else (label,):
            truth[row, _index(item, names, classes, _where(texts, row))] = True
    return truth


def read_tokens(
    labels: Sequence[Label], names: Sequence[str], classes: int, texts: Sequence[str], tokens: Sequence[int]
) -> Classes:
    """Class index of each token of all rows, one after the other: int64 (all tokens,).

    Args:
        labels: For each row a list with a class name a token, special tokens included; see `NOT_COUNTED`.
        names: The model's class names.
        classes: Their number.
        texts: For messages.
        tokens: Tokens of each row.

    Raises:
        UsageError: A label is no class of the model, there is not one for each token, or none counts.
    """
    truth: list[int] = []
    for row, (label, count) in enumerate(zip(labels, tokens, strict=True)):
        where = _where(texts, row)
        if not isinstance(label, tuple) or len(label) != count:
            raise UsageError(
                "the labels do not fit the tokens",
                where=where,
                expected=f"a list of {count} class names, one a token, special tokens included",
                found=f"{len(label)} class names" if isinstance(label, tuple) else repr(label),
                hint='label tokens, not words; "" stands for a token that does not count',
            )
        truth += [UNLABELLED if item == NOT_COUNTED else _index(item, names, classes, where) for item in label]
    if all(item == UNLABELLED for item in truth):
        raise UsageError("no token has a label that counts")
    return np.array(truth, np.int64)


def read_values(labels: Sequence[Label], texts: Sequence[str]) -> Floats:
    """Value of each row: float64 (rows,).

    Raises:
        UsageError: A label is no number, or all are the same, so that nothing correlates with them.
    """
    for row, label in enumerate(labels):
        if isinstance(label, str | tuple):
            raise UsageError(
                "the model gives values, and the label is no number", where=_where(texts, row), found=_show(label)
            )
    values = np.array(labels, dtype=np.float64)
    if is_flat(values):
        raise UsageError("all labels are the same", expected="labels that a value can correlate with")
    return values


def _where(texts: Sequence[str], row: int) -> str:
    return f"label of text {row + 1}, {_show(texts[row])}"


def _show(value: object, limit: int = 60) -> str:
    text = printable(repr(value))
    return text if len(text) <= limit else f"{text[:limit]}..."


def _index(label: Label, names: Sequence[str], classes: int, where: str) -> int:
    if isinstance(label, str) and label in names:
        return list(names).index(label)
    if isinstance(label, int | float) and float(label).is_integer() and 0 <= label < classes:
        return int(label)
    shown = ", ".join(printable(name) for name in list(names)[:20])
    raise UsageError(
        "is no class of the model",
        where=where,
        expected=f"{f'one of {shown}' if shown else 'a class index'}, or an index from 0 to {classes - 1}",
        found=_show(label),
        hint="class names are case sensitive",
    )
