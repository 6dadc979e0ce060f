"""Integer variants are only measured where their products are exact."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edgeonnx.errors import UsageError
from edgeonnx.pipeline import variants
from edgeonnx.pipeline.recipe import RECIPES


def _host(monkeypatch: pytest.MonkeyPatch, *instruction_sets: str) -> None:
    host = SimpleNamespace(architecture="x86_64", instruction_sets=frozenset(instruction_sets))
    monkeypatch.setattr(variants, "host_profile", lambda: host)


def test_eight_bits_are_refused_where_they_saturate(monkeypatch: pytest.MonkeyPatch) -> None:
    _host(monkeypatch, "avx2")
    with pytest.raises(UsageError) as caught:
        variants.check_host(RECIPES["cpu-int8"])
    assert "--target avx2" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["cpu-int8-avx2", "cpu-fp32", "cpu-int8-weights"])
def test_what_cannot_saturate_is_measured_anywhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _host(monkeypatch, "avx2")
    variants.check_host(RECIPES[name])
