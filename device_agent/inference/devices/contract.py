"""Whether a graph keeps the contract of `edgeonnx.spec.generation`. Pure.

A graph that does not would fail at the first request, or worse, be bound to memory of another shape than it writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgeonnx.errors import ManifestError
from edgeonnx.spec.generation import INPUT_IDS, LOGITS, MASK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgeonnx.spec.generation import Generation

IDS_TYPE = "tensor(int64)"
LOGITS_TYPE = "tensor(float)"
CACHE_TYPES = {"tensor(float)": "float32", "tensor(float16)": "float16"}
"""Types of caches in ONNX Runtime's spelling, with NumPy's."""


class Described(Protocol):
    """An input or output as ONNX Runtime describes it: for each dimension a size, a symbol, or None."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def type(self) -> str:
        """Its type, such as `tensor(float)`."""

    @property
    def shape(self) -> Sequence[int | str | None]:
        """Its dimensions."""


@dataclass(frozen=True, kw_only=True)
class DecoderGraph:
    """What a graph says of itself beyond the contract.

    Attributes:
        cache_type: NumPy's name of the caches' type: `float32` or `float16`.
        vocabulary: Logits of a token.
    """

    cache_type: str
    vocabulary: int


def check_decoder(
    generation: Generation, inputs: Sequence[Described], outputs: Sequence[Described], *, where: str
) -> DecoderGraph:
    """Check the inputs and outputs of a graph.

    Args:
        generation: What the manifest says.
        inputs: The graph's inputs.
        outputs: Its outputs.
        where: The variant, for messages.

    Raises:
        ManifestError: Something is missing, too much, or of another type or shape.
    """
    cache = generation.cache
    found_in, found_out = ({each.name: each for each in side} for side in (inputs, outputs))
    _check_names("inputs", (INPUT_IDS, MASK, *cache.past_names), found_in, where)
    _check_names("outputs", (LOGITS, *cache.present_names), found_out, where)
    for name in (INPUT_IDS, MASK):
        _check(found_in[name], (IDS_TYPE,), (None, None), where)
    logits = found_out[LOGITS]
    _check(logits, (LOGITS_TYPE,), (None, None, None), where)
    vocabulary = logits.shape[-1]
    if not isinstance(vocabulary, int) or vocabulary < 1:
        raise _wrong(logits, "(batch, 1, vocabulary) with a fixed vocabulary", str(list(logits.shape)), where)
    kind = found_in[cache.past_names[0]].type
    types = (kind,) if kind in CACHE_TYPES else tuple(CACHE_TYPES)
    for name, side in (*((n, found_in) for n in cache.past_names), *((n, found_out) for n in cache.present_names)):
        _check(side[name], types, (None, cache.heads, None, cache.head_size), where)
    return DecoderGraph(cache_type=CACHE_TYPES[kind], vocabulary=vocabulary)


def _check_names(kind: str, expected: Sequence[str], found: Mapping[str, Described], where: str) -> None:
    missing = [name for name in expected if name not in found]
    surplus = [name for name in found if name not in expected]
    if missing or surplus:
        raise ManifestError(
            f"the decoder's graph has other {kind} than its manifest says",
            where=where,
            expected=f"{len(expected)}, for example {', '.join(missing[:4] or expected[:4])}",
            found=f"{len(found)}, among them {', '.join(surplus[:4] or list(found)[:4])}",
        )


def _check(found: Described, types: Sequence[str], sizes: Sequence[int | None], where: str) -> None:
    """Check a type and a shape; None stands for any size or symbol."""
    if found.type not in types:
        raise _wrong(found, " or ".join(types), found.type, where)
    if len(found.shape) != len(sizes) or any(
        size is not None and size != given for size, given in zip(sizes, found.shape, strict=True)
    ):
        shown = ", ".join("any" if size is None else str(size) for size in sizes)
        raise _wrong(found, f"the shape ({shown})", str(list(found.shape)), where)


def _wrong(each: Described, expected: str, found: str, where: str) -> ManifestError:
    return ManifestError(
        "the decoder's graph is not what its manifest says",
        where=f"{where}, {each.name}",
        expected=expected,
        found=found,
    )
