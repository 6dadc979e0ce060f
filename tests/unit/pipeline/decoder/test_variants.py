from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from edgeonnx.errors import GateError
from edgeonnx.pipeline.decoder.variants import make_all
from edgeonnx.pipeline.recipe import DECODERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeonnx.pipeline.decoder.variants import MadeDecoder
    from edgeonnx.pipeline.recipe import VariantRecipe

RECIPES = tuple(DECODERS.recipes[name] for name in ("cpu-int4", "cpu-int8", "cpu-fp32"))


def failing(*names: str) -> Callable[[VariantRecipe], MadeDecoder]:
    """Makes every variant but those."""

    def make(recipe: VariantRecipe) -> MadeDecoder:
        if recipe.name in names:
            raise GateError("keeps no threshold", where=recipe.name)
        return cast("MadeDecoder", recipe.name)

    return make


def test_all_that_pass_are_made_in_their_order() -> None:
    assert make_all(failing(), RECIPES, {"cpu-int4"}) == (["cpu-int4", "cpu-int8", "cpu-fp32"], {})


def test_one_that_may_be_left_out_is_and_why_is_kept() -> None:
    made, left_out = make_all(failing("cpu-int4"), RECIPES, {"cpu-int4"})
    assert made == ["cpu-int8", "cpu-fp32"]
    assert list(left_out) == ["cpu-int4"]
    assert left_out["cpu-int4"].where == "cpu-int4"


@pytest.mark.parametrize(("fails", "optional"), [("cpu-int4", set()), ("cpu-int8", {"cpu-int4"})])
def test_one_that_must_pass_ends_the_build(fails: str, optional: set[str]) -> None:
    with pytest.raises(GateError, match=fails):
        make_all(failing(fails), RECIPES, optional)
