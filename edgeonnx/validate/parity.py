"""Does the graph give the source model's answers, for every text, in every batch it may share?

The reference is always the source model's answer for the text alone and unpadded: what its user would call the
answer. The graph is run over the layouts of `layouts.plan_layouts`, so one comparison proves the export and the
independence of padding and neighbours.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.bundle.golden import MASK_INPUT, Comparison, compare_outputs
from edgeonnx.errors import ParityError, ValidationError
from edgeonnx.spec.report import Threshold, judge
from edgeonnx.validate.layouts import Layout, plan_layouts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgeonnx.model.ports import FloatTensors, IntTensors
    from edgeonnx.model.reference import Reference

HINT = "nothing was written; the export is wrong for this batch size, length or padding"
DEFAULT_THRESHOLDS = (Threshold(metric="scaled_diff", at_most=1e-4),)
"""What fp32 must reach. A correct export of a BERT differs by some 1e-6 to 2e-5; a wrong one by 1e-1 and more."""


@dataclass(frozen=True, kw_only=True)
class ParityResult:
    """What the comparison found.

    Attributes:
        texts: Number of different texts.
        rows: Number of rows compared, over all layouts.
        layouts: Number of batches of each kind.
        longest: Tokens of the longest row.
        comparison: The worst figures.
    """

    texts: int
    rows: int
    layouts: dict[str, int]
    longest: int
    comparison: Comparison

    def to_dict(self) -> dict[str, object]:
        """For the evidence. Figures are rounded to two digits: beyond that they are noise of the machine."""
        return {
            "reference": "the source model on each text alone, unpadded",
            "texts": self.texts,
            "rows": self.rows,
            "batches": dict(sorted(self.layouts.items())),
            "longest_row_tokens": self.longest,
            "max_abs_diff": _rounded(self.comparison.max_abs_diff),
            "scaled_diff": _rounded(self.comparison.scaled_diff),
            "min_cosine": round(self.comparison.min_cosine, 6),
        }


def _rounded(value: float) -> float:
    return float(f"{value:.1e}")


def check_parity(
    reference: Reference,
    run: Callable[[IntTensors], FloatTensors],
    *,
    max_length: int,
    thresholds: Sequence[Threshold] = DEFAULT_THRESHOLDS,
    on_batch: Callable[[int, int], None] | None = None,
) -> ParityResult:
    """Run the graph over every layout and compare with the reference.

    Args:
        reference: The source model's answers.
        run: Runs the graph.
        max_length: The widest batch.
        thresholds: What must be reached.
        on_batch: Called with (batches done, all batches), for progress.

    Raises:
        ParityError: A threshold is not kept; the message names the worst text, output and batch.
    """
    layouts = plan_layouts(reference.lengths, max_length=max_length)
    found: list[Comparison] = []
    for index, layout in enumerate(layouts):
        found.append(_compare_batch(reference, layout, run))
        if on_batch is not None:
            on_batch(index + 1, len(layouts))
    worst = Comparison.worst(found)
    verdict = judge(worst.metrics(), thresholds)
    if not verdict.passed:
        leader = next(index for index, item in enumerate(found) if _same(item.scaled_diff, worst.scaled_diff))
        raise _parity_error(reference, layouts[leader], found[leader], verdict.failures)
    return ParityResult(
        texts=len(reference.texts),
        rows=sum(len(layout.rows) for layout in layouts),
        layouts=dict(Counter(layout.name for layout in layouts)),
        longest=max(reference.lengths),
        comparison=worst,
    )


def _compare_batch(reference: Reference, layout: Layout, run: Callable[[IntTensors], FloatTensors]) -> Comparison:
    inputs, expected = reference.batch(layout.rows, layout.width)
    try:
        return compare_outputs(expected, run(inputs), inputs[MASK_INPUT])
    except ValidationError as error:  # no numbers to compare: the run failed, or an output is missing or misshapen
        raise ParityError(
            error.message,
            where=f"{error.where or 'the graph'}, {layout.name} of {len(layout.rows)} x {layout.width} tokens",
            expected=error.expected,
            found=error.found,
            details=(f"first input of the batch: {_shorten(reference.texts[layout.rows[0]])}",),
            hint=HINT,
        ) from error


def _same(first: float, second: float) -> bool:
    return first == second or (np.isnan(first) and np.isnan(second))


def _parity_error(reference: Reference, layout: Layout, worst: Comparison, failures: tuple[str, ...]) -> ParityError:
    row = layout.rows[worst.worst_row]
    return ParityError(
        "the exported graph does not give the source model's answers",
        where=f"output {worst.worst_output}, {layout.name}, row {worst.worst_row} of {len(layout.rows)}",
        expected="; ".join(str(failure) for failure in failures),
        found=f"max_abs_diff {worst.max_abs_diff:g}, min_cosine {worst.min_cosine:g}",
        details=(
            f"worst input: {_shorten(reference.texts[row])}",
            f"its length: {reference.lengths[row]} tokens, filled up to {layout.width}",
            *(() if reference.pairs is None else (f"with the pair: {_shorten(reference.pairs[row])}",)),
        ),
        hint=HINT,
    )


def _shorten(text: str, limit: int = 160) -> str:
    shown = repr(text)
    return shown if len(shown) <= limit else f"{shown[:limit]}... ({len(text)} characters)"
