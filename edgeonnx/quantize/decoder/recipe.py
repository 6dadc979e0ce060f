"""How the weights of a decoder become integers, as data; and the recipes that a build tries, the fastest first."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Role(StrEnum):
    """What a matrix of a decoder does, found from the graph and not from names."""

    ATTENTION_IN = "attention_in"
    """Queries, keys and values."""
    ATTENTION_OUT = "attention_out"
    """Behind the attention."""
    MLP_IN = "mlp_in"
    """Gate and up projections."""
    MLP_OUT = "mlp_out"
    """The down projection."""
    HEAD = "head"
    """Makes logits; the embedding table reads the same tensor where the model ties the two."""


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """The form of one matrix.

    Attributes:
        bits: 8 or 4, of a weight.
        block_size: Weights along the input axis that share a scale: a power of two, at least 16. Activations are
            rounded to int8 in blocks of this size too.
    """

    bits: int
    block_size: int

    def to_dict(self) -> dict[str, object]:
        """For the manifest."""
        return {"bits": self.bits, "block_size": self.block_size}


@dataclass(frozen=True, kw_only=True)
class WeightRecipe:
    """How a decoder is quantized.

    Attributes:
        default: The form of every matrix that `roles` does not name.
        roles: Other forms by role.
        strengths: Strengths of the smoothing that are tried for each matrix behind a norm; empty: none.
        feedback: Whether the rounding error of a weight is made good by the weights after it, on the activations of
            the calibration text (GPTQ). Otherwise each weight is rounded by itself.
        exact: Whether matrices that lie on a grid already, as those of a quantized GGUF file, are put on that grid.
        anew: Roles whose matrices are rounded anew also where they lie on a grid: block means cost two nodes a site.
        accuracy_level: Of `MatMulNBits`: 4 multiplies int8, 1 float.
    """

    default: WeightFormat
    roles: Mapping[Role, WeightFormat] = field(default_factory=dict)
    strengths: tuple[float, ...] = (0.5, 0.65, 0.8)
    feedback: bool = True
    exact: bool = True
    anew: tuple[Role, ...] = ()
    accuracy_level: int = 4

    def format_of(self, role: Role) -> WeightFormat:
        """The form of the matrices with a role."""
        return self.roles.get(role, self.default)

    def to_dict(self) -> dict[str, object]:
        """For the manifest."""
        return {
            "weights": self.default.to_dict(),
            "roles": {role.value: form.to_dict() for role, form in self.roles.items()},
            "smoothing": list(self.strengths),
            "method": "gptq" if self.feedback else "round",
            "exact": self.exact,
            "anew": [role.value for role in self.anew],
            "accuracy_level": self.accuracy_level,
        }


_EIGHT, _EIGHT_FINE = WeightFormat(bits=8, block_size=32), WeightFormat(bits=8, block_size=16)
_EIGHT_WIDE = WeightFormat(bits=8, block_size=64)
_FOUR = WeightFormat(bits=4, block_size=32)

WEIGHT_RECIPES: dict[int, tuple[WeightRecipe, ...]] = {
    8: (
        WeightRecipe(default=_EIGHT),
        WeightRecipe(default=_EIGHT, roles={Role.HEAD: _EIGHT_FINE, Role.MLP_OUT: _EIGHT_FINE}),
        WeightRecipe(default=_EIGHT_FINE),
    ),
    4: (
        WeightRecipe(default=_FOUR, roles={Role.HEAD: _EIGHT_WIDE}, anew=(Role.ATTENTION_OUT,)),
        WeightRecipe(default=_FOUR, roles={Role.HEAD: _EIGHT}),
        WeightRecipe(
            default=_FOUR,
            roles={Role.HEAD: _EIGHT, Role.ATTENTION_IN: _EIGHT, Role.ATTENTION_OUT: _EIGHT, Role.MLP_OUT: _EIGHT},
        ),
    ),
}
"""Candidates by the bits of the weights, the fastest first. The head has 8 bits in all of them: it decides which token
is the most probable, and SmolLM2-135M with 4 bits there and floats everywhere else keeps 84 % of them."""
