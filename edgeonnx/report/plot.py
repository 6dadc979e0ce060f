"""Plots as inline SVG, without a library and without a script: a scatter plot with a front, and horizontal bars.

Lengths are user units of the `viewBox`; one unit is a CSS pixel where the plot is shown at its own width. Colours come
from the page's classes, so that one picture serves light, dark and paper. All text is escaped here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from edgeonnx.errors import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeonnx.report.figures import Point

WIDTH = 760
FONT = 12
CHARACTER = 6.8
"""Width of a character at that size, on the large side: labels that are kept apart by it do not touch."""

SCATTER_HEIGHT = 400
LEFT, RIGHT, TOP, BOTTOM = 86, 24, 16, 56
MARK = 5.0

BAR_HEIGHT = 14
BAR_STEP = 22
BAR_AXIS = 26
VALUE_WIDTH = 150
MAX_NAME = 46


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: its name, its length, the text at its end, and whether it stands out."""

    name: str
    value: float
    text: str
    marked: bool = False


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle that a label or a mark takes."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether the two overlap."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def within(self, other: Box) -> bool:
        """Whether this one lies inside the other."""
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.top <= self.top
            and self.bottom <= other.bottom
        )


def ticks(low: float, high: float, count: int) -> tuple[float, ...]:
    """Round numbers for an axis: all multiples of 1, 2 or 5 times a power of ten between `low` and `high`.

    The step is the "nice number" of P. Heckbert, "Nice Numbers for Graph Labels", Graphics Gems (1990).

    Args:
        low: Start of the axis.
        high: End of the axis; not below `low`.
        count: About how many are wanted, at least 1.

    Raises:
        ValueError: The bounds are not finite, or the wrong way round.
    """
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise ValueError(f"no axis from {low} to {high}")
    if low == high:
        return (low,)
    step, decimals = _step(high - low, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(index * step, decimals) for index in range(first, last + 1))


def _step(span: float, count: int) -> tuple[float, int]:
    """Distance of the ticks on an axis of that length, and the decimals that it needs."""
    rough = span / max(count, 1)
    exponent = math.floor(math.log10(rough))
    base = rough / 10.0**exponent
    nice = next(number for number, limit in ((1, 1.5), (2, 3.0), (5, 7.0), (10, math.inf)) if base < limit)
    return nice * 10.0**exponent, max(0, -exponent)


def tick_texts(values: Sequence[float]) -> tuple[str, ...]:
    """The numbers of an axis, all with the decimals that their distance needs."""
    if len(values) < 2:
        return tuple(f"{value:,.6g}" for value in values)
    step = values[1] - values[0]
    decimals = next((count for count in range(12) if abs(round(step, count) - step) < step * 1e-6), 12)
    return tuple(f"{value:,.{decimals}f}" for value in values)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis: a range of values on a range of user units."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a value lies."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def scatter(points: Sequence[Point], *, title: str, description: str, x_label: str, y_label: str) -> str:
    """Points with names, those of the front joined by a line. The x axis starts at 0, so that widths compare.

    Args:
        points: The points; finite, x not negative.
        title: What the picture is, for those who do not see it.
        description: What it shows, for the same.
        x_label: Name of the x axis, with its unit.
        y_label: Name of the y axis.

    Returns:
        An `svg` element; an empty text if there is no point.
    """
    if not points:
        return ""
    x = Axis(low=0.0, high=max(point.x for point in points) * 1.12 or 1.0, start=LEFT, end=WIDTH - RIGHT)
    low, high = min(point.y for point in points), max(point.y for point in points)
    margin = (high - low) * 0.12 or abs(high) * 0.01 or 1.0
    y = Axis(low=low - margin, high=high + margin, start=SCATTER_HEIGHT - BOTTOM, end=TOP)
    front = sorted((point for point in points if point.front), key=lambda point: point.x)
    line = " ".join(f"{x.at(point.x):.1f},{y.at(point.y):.1f}" for point in front)
    parts = [
        *_axes(x, y, x_label, y_label),
        *([f'<polyline class="front" points="{line}"/>'] if len(front) > 1 else []),
        *(_mark(point, x.at(point.x), y.at(point.y)) for point in points),
        *_labels(points, x, y),
    ]
    return _svg("scatter", SCATTER_HEIGHT, title, description, parts)


def _axes(x: Axis, y: Axis, x_label: str, y_label: str) -> list[str]:
    bottom, parts = SCATTER_HEIGHT - BOTTOM, []
    across, up = ticks(x.low, x.high, 7), ticks(y.low, y.high, 6)
    for value, text in zip(up, tick_texts(up), strict=True):
        place = f"{y.at(value):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{place}" x2="{WIDTH - RIGHT}" y2="{place}"/>')
        parts.append(f'<text class="end" x="{LEFT - 8}" y="{place}" dy="0.35em">{text}</text>')
    for value, text in zip(across, tick_texts(across), strict=True):
        place = f"{x.at(value):.1f}"
        parts.append(f'<line class="axis" x1="{place}" y1="{bottom}" x2="{place}" y2="{bottom + 5}"/>')
        parts.append(f'<text class="middle" x="{place}" y="{bottom + 20}">{text}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}"/>')
    centre, height = (LEFT + WIDTH - RIGHT) / 2, (TOP + bottom) / 2
    parts.append(f'<text class="middle name" x="{centre:.1f}" y="{SCATTER_HEIGHT - 10}">{_text(x_label)}</text>')
    parts.append(
        f'<text class="middle name" transform="translate(16 {height:.1f}) rotate(-90)">{_text(y_label)}</text>'
    )
    return parts


def _mark(point: Point, x: float, y: float) -> str:
    """A dot for a variant, a ring for a candidate that passed, a cross for one that did not; its figures on hover."""
    told = f"<title>{_text(point.name)}: {point.x:,.1f}, {point.y:.6f}</title>"
    if point.kind == "variant":
        return f'<circle class="variant" cx="{x:.1f}" cy="{y:.1f}" r="{MARK + 1.5}">{told}</circle>'
    if point.kind == "passed":
        return f'<circle class="passed" cx="{x:.1f}" cy="{y:.1f}" r="{MARK}">{told}</circle>'
    arm = MARK - 0.5
    cross = f"M{x - arm:.1f} {y - arm:.1f}L{x + arm:.1f} {y + arm:.1f}M{x - arm:.1f} {y + arm:.1f}L{x + arm:.1f} "
    return f'<path class="failed" d="{cross}{y - arm:.1f}">{told}</path>'


def _labels(points: Sequence[Point], x: Axis, y: Axis) -> list[str]:
    """Names beside their points, the important ones first.

    A variant's name may cover marks if it must, but no other name. A candidate's that finds no free place is left out;
    it stands in the mark's own title.
    """
    frame = Box(left=LEFT, top=0, right=WIDTH, bottom=SCATTER_HEIGHT - BOTTOM)
    marks = [_around(x.at(point.x), y.at(point.y), MARK + 1.5) for point in points]
    names: list[Box] = []
    parts = []
    for point in sorted(points, key=lambda point: (point.kind != "variant", not point.front, -point.x)):
        name = _cut(point.name)
        place, width = (x.at(point.x), y.at(point.y)), len(name) * CHARACTER
        box = place_label(*place, width, frame, [*marks, *names])
        if box is None and point.kind == "variant":
            box = place_label(*place, width, frame, names)
        if box is not None:
            names.append(box)
            style = ' class="strong"' if point.kind == "variant" else ""
            parts.append(f'<text{style} x="{box.left:.1f}" y="{box.bottom - 3.5:.1f}">{_text(name)}</text>')
    return parts


def place_label(x: float, y: float, width: float, frame: Box, taken: Sequence[Box]) -> Box | None:
    """A free place for a label near its point, or None.

    Args:
        x: The point.
        y: The point.
        width: Width of the label.
        frame: Where it must lie.
        taken: What it must not cover.
    """
    gap, height = MARK + 4, FONT + 2.0
    beside, above = y - height / 2, y - gap - height
    corners = (
        (x + gap, beside),
        (x - gap - width, beside),
        (x - width / 2, above),
        (x - width / 2, y + gap),
        (x + gap / 2, above),
        (x + gap / 2, y + gap),
        (x - gap / 2 - width, above),
        (x - gap / 2 - width, y + gap),
    )
    for left, top in corners:
        box = Box(left=left, top=top, right=left + width, bottom=top + height)
        if box.within(frame) and not any(box.meets(other) for other in taken):
            return box
    return None


def _around(x: float, y: float, radius: float) -> Box:
    return Box(left=x - radius, top=y - radius, right=x + radius, bottom=y + radius)


def bars(items: Sequence[Bar], *, title: str, description: str, mark: str = "") -> str:
    """Horizontal bars from zero, one a line, with their names at the left and their figures at the end.

    Args:
        items: The bars in their order. A value below zero, or none, gives a bar without length.
        title: What the picture is, for those who do not see it.
        description: What it shows, for the same.
        mark: What stands behind the figure of a marked bar, so that colour is not needed to tell it.

    Returns:
        An `svg` element; an empty text if there is no bar.
    """
    if not items:
        return ""
    names = max(len(_cut(item.name)) for item in items) * CHARACTER + 10
    longest = max((item.value for item in items if math.isfinite(item.value)), default=0.0)
    axis = Axis(low=0.0, high=longest if longest > 0 else 1.0, start=names, end=WIDTH - VALUE_WIDTH)
    bottom = len(items) * BAR_STEP + 4
    parts = []
    marks = ticks(0.0, axis.high, 4)
    for value, text in zip(marks, tick_texts(marks), strict=True):
        place = f"{axis.at(value):.1f}"
        parts.append(f'<line class="grid" x1="{place}" y1="0" x2="{place}" y2="{bottom}"/>')
        parts.append(f'<text class="middle" x="{place}" y="{bottom + 16}">{text}</text>')
    for index, item in enumerate(items):
        parts.append(_bar(item, index * BAR_STEP + (BAR_STEP - BAR_HEIGHT) / 2, axis, mark))
    return _svg("bars", bottom + BAR_AXIS, title, description, parts)


def _bar(item: Bar, top: float, axis: Axis, mark: str) -> str:
    end = axis.at(item.value) if math.isfinite(item.value) and item.value > 0 else axis.start
    style, text = ("bar marked", f"{item.text} {mark}".rstrip()) if item.marked else ("bar", item.text)
    middle = top + BAR_HEIGHT / 2
    return (
        f"<g><title>{_text(item.name)}: {_text(text)}</title>"
        f'<text class="end code" x="{axis.start - 8:.1f}" y="{middle:.1f}" dy="0.35em">{_text(_cut(item.name))}</text>'
        f'<rect class="{style}" x="{axis.start:.1f}" y="{top:.1f}" width="{max(end - axis.start, 1.0):.1f}" '
        f'height="{BAR_HEIGHT}"/>'
        f'<text x="{end + 6:.1f}" y="{middle:.1f}" dy="0.35em">{_text(text)}</text></g>'
    )


def _svg(kind: str, height: float, title: str, description: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="plot {kind}" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}" role="img">'
        f"<title>{_text(title)}</title><desc>{_text(description)}</desc>{''.join(parts)}</svg>"
    )


def _cut(name: str) -> str:
    """A name that fits; of a long one the middle goes, since its ends tell it apart."""
    name = printable(name)
    half = (MAX_NAME - 1) // 2
    return name if len(name) <= MAX_NAME else f"{name[:half]}…{name[-half:]}"


def _text(text: str) -> str:
    return escape(printable(text))
