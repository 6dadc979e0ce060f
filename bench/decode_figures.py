"""Figures of `bench/decode.py` and what they must reach: pure functions, tested without a runtime."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

Blocks = dict[str, list[float]]
"""Values of each round, by what was measured."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Something that must be reached.

    Attributes:
        what: For people.
        value: What was measured.
        bound: What it must reach.
        at_least: Whether `value` must be at least the bound; otherwise at most.
        unit: After the figures.
        digits: Behind the point.
    """

    what: str
    value: float
    bound: float
    at_least: bool = True
    unit: str = ""
    digits: int = 2

    @property
    def reached(self) -> bool:
        """Whether it is."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def line(self) -> str:
        """One line of the report."""
        sense = "at least" if self.at_least else "at most"
        figure = f"{self.value:.{self.digits}f}{self.unit}"
        verdict = "reached" if self.reached else "NOT reached"
        return f"{self.what:<62}{figure:>10}   must be {sense} {self.bound:g}{self.unit}: {verdict}"


@dataclass(kw_only=True)
class Measured:
    """What was found about one runtime.

    Attributes:
        label: For people.
        blocks: Its figures, round by round.
        answers: Its last answer to the prompt that all got.
        memory: What its process grew by, in bytes, and the caches' part of it.
        failed: Why it was not measured, if it was not.
    """

    label: str
    blocks: Blocks = field(default_factory=dict)
    answers: object = None
    memory: Mapping[str, int] = field(default_factory=dict)
    failed: str | None = None

    def add(self, what: str, value: float) -> None:
        """Note a figure of this round."""
        self.blocks.setdefault(what, []).append(value)

    def median(self, what: str) -> float | None:
        """The median over the rounds; None: it was not measured."""
        return statistics.median(self.blocks[what]) if self.blocks.get(what) else None


def ratio(ours: Measured, theirs: Measured, what: str, other: str | None = None) -> float | None:
    """Ours over theirs, each round by itself, so that what else the machine did hits both; the median.

    Args:
        ours: Above the line.
        theirs: Below it.
        what: The figure.
        other: Theirs, if it is another one.

    Returns:
        None where one of them was not measured.
    """
    pairs = zip(ours.blocks.get(what, ()), theirs.blocks.get(other or what, ()), strict=False)
    found = [first / second for first, second in pairs if second > 0]
    return statistics.median(found) if found else None


def best_ratio(ours: Measured, theirs: Measured, what: str, *, most: bool) -> float | None:
    """The ratio of the best rounds: of the largest figures, or of the smallest."""
    pick = max if most else min
    first, second = ours.blocks.get(what), theirs.blocks.get(what)
    return pick(first) / pick(second) if first and second else None


def row(label: str, cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"{label:<36}" + "".join(f"{cell:>12}" for cell in cells)


def cell(value: float | None, digits: int = 1) -> str:
    """A figure, or nothing."""
    return "" if value is None else f"{value:,.{digits}f}"


def weight_bytes(model: Path) -> int:
    """Bytes of a graph's weights: its own file, and its tensors in other files, each counted once.

    Args:
        model: An `.onnx` file.
    """
    graph = onnx.load(str(model), load_external_data=False).graph
    stored: set[tuple[tuple[str, str], ...]] = set()
    for tensor in graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            stored.add(tuple(sorted((entry.key, entry.value) for entry in tensor.external_data)))
    lengths = [int(dict(place).get("length", 0)) for place in stored]
    return model.stat().st_size + sum(lengths)


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The same names, beginning with another one each round: nobody is always the one after the same neighbour."""
    by %= max(len(names), 1)
    return [*names[by:], *names[:by]]
