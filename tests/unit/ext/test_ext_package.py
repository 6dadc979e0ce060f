from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import edgeonnx_ext
import pytest

EXT_ROOT = Path(edgeonnx_ext.__file__).parents[1]
pure = pytest.mark.skipif(os.environ.get("EDGEONNX_EXT_PURE") == "1", reason="EDGEONNX_EXT_PURE=1 asks for the twins")


def run_python(code: str, **environment: str) -> str:
    variables = {**os.environ, "PYTHONPATH": str(EXT_ROOT), **environment}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=True)
    return result.stdout.strip()


@pure
def test_the_compiled_kernels_really_loaded() -> None:
    from edgeonnx_ext import _pooling, _wordpiece

    assert edgeonnx_ext.HAS_NATIVE
    assert edgeonnx_ext.NATIVE_PROBLEM is None
    for module in (_pooling, _wordpiece):
        assert Path(module.__file__).suffix == ".so"
    assert edgeonnx_ext.WordPieceTokenizer is _wordpiece.WordPieceTokenizer
    assert edgeonnx_ext.masked_mean_into is _pooling.masked_mean_into


def test_an_environment_variable_forces_the_plain_twins() -> None:
    code = "import edgeonnx_ext as e; print(e.HAS_NATIVE, e.WordPieceTokenizer.__module__, e.NATIVE_PROBLEM)"
    expected = "False edgeonnx_ext.reference.wordpiece EDGEONNX_EXT_PURE=1 is set"
    assert run_python(code, EDGEONNX_EXT_PURE="1") == expected


def test_a_kernel_that_does_not_load_is_replaced_and_named() -> None:
    code = (
        "import sys; sys.modules['edgeonnx_ext._pooling'] = None\n"
        "import edgeonnx_ext as e; print(e.HAS_NATIVE, e.masked_mean_into.__module__, e.NATIVE_PROBLEM)"
    )
    shown = run_python(code, EDGEONNX_EXT_PURE="0")
    assert shown.startswith("False edgeonnx_ext.reference.pooling edgeonnx_ext._pooling does not load")


def test_importing_it_imports_numpy_alone() -> None:
    code = (
        "import sys, edgeonnx_ext; "
        "print(sorted({'edgeonnx', 'device_agent', 'tokenizers', 'transformers', 'torch', 'onnx'} & set(sys.modules)))"
    )
    assert run_python(code) == "[]"


def test_what_all_names_is_there() -> None:
    assert all(hasattr(edgeonnx_ext, name) for name in edgeonnx_ext.__all__)
