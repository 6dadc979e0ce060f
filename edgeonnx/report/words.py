"""Figures and names as people read them; one form for the page and the terminal."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from edgeonnx.errors import printable

if TYPE_CHECKING:
    from edgeonnx.spec.generation import Generation
    from edgeonnx.spec.manifest import Requirements
    from edgeonnx.spec.report import Threshold

NONE = "–"
"""Stands where there is no figure."""
SMALL = 1e-4
ALMOST_ONE = 1e-6
"""Nearer to 1 than this, a figure gets more digits: what is not exactly 1 must not look as if it were."""


def figure(value: float | None) -> str:
    """A measured figure: six decimals, so that a value just below a bound does not look equal to it."""
    if value is None:
        return NONE
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"
    if abs(value) < SMALL:
        return f"{value:.2e}"
    if value != 1 and abs(value - 1) < ALMOST_ONE:
        return f"{value:.8f}"
    return f"{value:.6f}" if abs(value) < 10 else f"{value:,.2f}"


def rate(value: float | None) -> str:
    """Texts or tokens a second: no more digits than repeat from run to run."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def milliseconds(value: float | None) -> str:
    """A latency in milliseconds, without the unit."""
    return NONE if value is None or not math.isfinite(value) else f"{value:,.2f}"


def ratio(value: float | None) -> str:
    """How many times as fast."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.2f}×"


def size(count: int | None) -> str:
    """A size in decimal megabytes, or kilobytes below one."""
    if count is None:
        return NONE
    if count == 0:
        return "0 B"
    return f"{count / 1e6:,.1f} MB" if count >= 1_000_000 else f"{count / 1e3:,.1f} kB"


def quoted(text: str | None) -> str:
    """A token's text in quotation marks: most begin with a space, and some are nothing else."""
    return json.dumps(text or "", ensure_ascii=False)


def name_of(key: str) -> str:
    """A metric's or a field's name in words: `cosine_mean` is "cosine mean"."""
    return printable(key).replace("_", " ")


def bound(threshold: Threshold) -> str:
    """A threshold without its metric: "at least 0.999"."""
    if threshold.at_most is not None:
        return f"at most {threshold.at_most:g}"
    return f"at least {threshold.at_least:g}"


def value_of(value: object) -> str:
    """Any value of the evidence in one line: numbers with their digits, a list or an object as its members."""
    if value is None or value in ("", [], {}):
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, list | tuple):
        return ", ".join(value_of(item) for item in value)
    if isinstance(value, dict):
        return "; ".join(f"{name_of(str(key))}: {value_of(item)}" for key, item in value.items())
    return printable(value)


def facts(data: dict[str, object], *, without: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Each member of an object of the evidence as its name and its value, in words."""
    return [(name_of(key), value_of(value)) for key, value in data.items() if key not in without]


def generation(how: Generation) -> dict[str, str]:
    """How text is generated with a decoder."""
    cache, sampling = how.cache, how.sampling
    return {
        "context": f"{how.context_length:,} tokens, prompt and answer together",
        "caches": f"{cache.layers} layers, {cache.heads} heads of {cache.head_size}, "
        f"{size(cache.bytes_per_token(itemsize=4))} a token",
        "stops at": ", ".join(map(str, how.stop_ids)) or "no token",
        "chat": "template of the model" if how.chat_template else "no template: completions only",
        "sampling": f"temperature {sampling.temperature:g}, top k {sampling.top_k}, top p {sampling.top_p:g}, "
        f"repetition penalty {sampling.repetition_penalty:g}",
    }


def provider(name: str) -> str:
    """An execution provider without the ending that all have: `CPU`."""
    return printable(name.removesuffix("ExecutionProvider") or name)


def requirements(needs: Requirements) -> str:
    """What a variant needs of a device besides its provider."""
    parts = [size(needs.memory_bytes) + " of memory"]
    parts += [f"the instruction set {printable(item)}" for item in needs.instruction_sets]
    if needs.integer is not None:
        parts.append(f"exact 8-bit products up to {needs.integer.activation_max} × {needs.integer.weight_max}")
    parts += [f"{printable(item)} (unknown to this release)" for item in needs.unknown]
    return ", ".join(parts)
