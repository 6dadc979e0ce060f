"""How the next token of a decoder is chosen: the parameters of `sample_into` and `probabilities_into`.

The uniform numbers come from the caller, one a row and step, so that a result is a pure function of its arguments. For
a sequence whose answer does not depend on what runs beside it, give it a generator of its own:

    generator = numpy.random.default_rng(seed)
    uniforms[row] = generator.random()
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

# Outside of these the float32 arithmetic of the formulas leaves its range.
LEAST_FACTOR = 1e-6
MOST_FACTOR = 1e6


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """The filters of transformers' generation, in the order in which they are applied.

    Attributes:
        repetition_penalty: Divides the positive scores, and multiplies the negative ones, of tokens that stand in the
            history; 1 does nothing. From 1e-6 to 1e6.
        temperature: Divides the scores; from 1e-6 to 1e6. 0 takes the token of the largest score (of equal ones the
            lowest id), and the filters that follow do nothing.
        top_k: Keep the tokens that reach the k-th largest score; 0 keeps all.
        top_p: Keep the fewest of the most probable tokens whose probabilities add up to at least top_p, from 0 to 1;
            1 keeps all, and the most probable token always stays.
        min_p: Keep the tokens whose probability is at least min_p times that of the most probable one, from 0 to 1.

    Raises:
        TypeError: Not a number.
        ValueError: A number out of range.
    """

    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        _expect_between("repetition_penalty", self.repetition_penalty, LEAST_FACTOR, MOST_FACTOR)
        if self.temperature != 0:
            _expect_between("temperature", self.temperature, LEAST_FACTOR, MOST_FACTOR, "0, or ")
        if operator.index(self.top_k) < 0:
            raise ValueError(f"top_k: expected 0 (all tokens) or more, found {self.top_k}")
        _expect_between("top_p", self.top_p, 0, 1)
        _expect_between("min_p", self.min_p, 0, 1)


def _expect_between(name: str, value: float, least: float, most: float, other: str = "") -> None:
    if not least <= value <= most:
        raise ValueError(f"{name}: expected {other}a number from {least:g} to {most:g}, found {value!r}")
