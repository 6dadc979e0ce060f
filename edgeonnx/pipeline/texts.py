"""The texts that ship with edgeonnx: our own, in many lengths, scripts and shapes, for parity and golden sets."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GOLDEN_ROWS = 16
GOLDEN_MAX_TOKENS = 96
PAIR_SHIFT = 37


def shipped_texts() -> tuple[str, ...]:
    """The texts that models are compared on, in their fixed order."""
    return _read("texts.jsonl")


def calibration_texts() -> tuple[str, ...]:
    """The texts that ranges are calibrated on, in their fixed order; none of them is a text to compare on."""
    return _read("calibration.jsonl")


def passages() -> tuple[str, ...]:
    """Longer texts, in their fixed order: what a model that generates text is measured on."""
    return _read("passages.jsonl")


def _read(name: str) -> tuple[str, ...]:
    lines = files("edgeonnx").joinpath(f"data/{name}").read_text(encoding="utf-8").split("\n")
    return tuple(json.loads(line) for line in lines if line)


def pair_up(texts: Sequence[str]) -> tuple[str, ...]:
    """A second text for each: another one of the list, each once, so that lengths meet in many combinations."""
    return tuple(texts[(index + PAIR_SHIFT) % len(texts)] for index in range(len(texts)))


def golden_rows(lengths: Sequence[int]) -> tuple[int, ...]:
    """Rows for the golden set: evenly spread over the lengths, none so long that the replay costs much.

    Args:
        lengths: Tokens of each row.
    """
    ordered = sorted(
        (row for row, length in enumerate(lengths) if length <= GOLDEN_MAX_TOKENS), key=lambda row: lengths[row]
    )
    if len(ordered) <= GOLDEN_ROWS:
        return tuple(sorted(ordered)) or (min(range(len(lengths)), key=lambda row: lengths[row]),)
    step = (len(ordered) - 1) / (GOLDEN_ROWS - 1)
    return tuple(sorted({ordered[round(index * step)] for index in range(GOLDEN_ROWS)}))
