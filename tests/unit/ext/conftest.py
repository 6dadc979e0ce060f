"""Every kernel test runs over both twins."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest
from edgeonnx_ext import WordPieceModel, _kernels

from tests.support.texts import minilm_tokenizer_json


def compiled(name: str) -> ModuleType:
    """Return a compiled module; only EDGEONNX_EXT_PURE=1 excuses that it is missing."""
    if os.environ.get("EDGEONNX_EXT_PURE") == "1":
        pytest.skip("EDGEONNX_EXT_PURE=1 asks for the plain twins")
    return import_module(f"edgeonnx_ext.{name}")


@pytest.fixture(params=["compiled", "reference"])
def twin(request: pytest.FixtureRequest) -> SimpleNamespace:
    """All kernels of one kind, by name."""

    class Kernels(SimpleNamespace):
        def __getattr__(self, name: str) -> object:
            native, plain = _kernels.TWINS[name]
            if request.param == "compiled":
                return getattr(compiled(native), name)
            return getattr(import_module(f"edgeonnx_ext.reference.{plain}"), name)

    return Kernels(kind=request.param)


@pytest.fixture(scope="session")
def minilm() -> WordPieceModel:
    return WordPieceModel.from_tokenizer_json(minilm_tokenizer_json())


@pytest.fixture(scope="session")
def minilm_json() -> bytes:
    return minilm_tokenizer_json()
