"""Declares the Cython extensions; everything else stands in pyproject.toml."""

from __future__ import annotations

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

# EDGEONNX_EXT_DEBUG=1 builds with bounds checks, line tracing and assertions, for the tests of the extension itself.
DEBUG = os.environ.get("EDGEONNX_EXT_DEBUG") == "1"

COMPILE_ARGS = ["-O0", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-fno-math-errno", "-g0"]
DIRECTIVES = {
    "language_level": "3",
    "binding": True,
    "embedsignature": False,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "cdivision": True,
    "linetrace": DEBUG,
}

EXTENSIONS = [
    Extension(
        f"edgeonnx_ext.{name}",
        [f"ext/edgeonnx_ext/{name}.pyx"],
        extra_compile_args=COMPILE_ARGS,
        define_macros=[("CYTHON_TRACE_NOGIL", "1")] if DEBUG else [],
        # A machine without a C compiler still gets a working install: the plain twins in _reference.py take over,
        # and edgeonnx_ext.HAS_NATIVE says so.
        optional=True,
    )
    for name in ("_wordpiece", "_pooling")
]

setup(ext_modules=cythonize(EXTENSIONS, compiler_directives=DIRECTIVES, build_dir="build/cython"))
