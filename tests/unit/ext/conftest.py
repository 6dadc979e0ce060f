"""Every kernel test runs over both twins."""

from __future__ import annotations

import importlib
import os
from types import ModuleType, SimpleNamespace

import pytest
from edgeonnx_ext import WordPieceModel, _reference

from tests.support.texts import minilm_tokenizer_json


def compiled(name: str) -> ModuleType:
    """Return a compiled module; only EDGEONNX_EXT_PURE=1 excuses that it is missing."""
    if os.environ.get("EDGEONNX_EXT_PURE") == "1":
        pytest.skip("EDGEONNX_EXT_PURE=1 asks for the plain twins")
    return importlib.import_module(f"edgeonnx_ext.{name}")


@pytest.fixture(params=["compiled", "reference"])
def twin(request: pytest.FixtureRequest) -> SimpleNamespace:
    """All kernels of one kind."""
    names = {"_wordpiece": ["WordPieceTokenizer"], "_pooling": ["masked_mean_into", "l2_normalize_into"]}
    kernels = {
        name: getattr(compiled(module) if request.param == "compiled" else _reference, name)
        for module, members in names.items()
        for name in members
    }
    return SimpleNamespace(kind=request.param, **kernels)


@pytest.fixture(scope="session")
def minilm() -> WordPieceModel:
    return WordPieceModel.from_tokenizer_json(minilm_tokenizer_json())


@pytest.fixture(scope="session")
def minilm_json() -> bytes:
    return minilm_tokenizer_json()
