"""Declares the Cython extensions; everything else stands in pyproject.toml."""

from __future__ import annotations

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

# EDGEONNX_EXT_DEBUG=1 builds with bounds checks, line tracing and assertions, for the tests of the extension itself.
DEBUG = os.environ.get("EDGEONNX_EXT_DEBUG") == "1"

# A level of optimization in CFLAGS wins: the compiler takes the last one, and ours stand last.
OPTIMIZE = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O3"]
COMPILE_ARGS = ["-O0", "-g", "-UNDEBUG"] if DEBUG else [*OPTIMIZE, "-fno-math-errno", "-ffp-contract=off", "-g0"]
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

SOURCE_ROOT = Path("ext/edgeonnx_ext")
# Written in C++ for one function of its library; everything else is C.
CXX_MODULES = {"_floats"}

EXTENSIONS = [
    Extension(
        f"edgeonnx_ext.{source.stem}",
        [source.as_posix()],
        language="c++" if source.stem in CXX_MODULES else "c",
        extra_compile_args=[*COMPILE_ARGS, "-std=c++17"] if source.stem in CXX_MODULES else COMPILE_ARGS,
        define_macros=[("CYTHON_TRACE_NOGIL", "1")] if DEBUG else [],
        # A machine without a C compiler still gets a working install: the plain twins in reference/ take over, and
        # edgeonnx_ext.HAS_NATIVE says so.
        optional=True,
    )
    for source in sorted(SOURCE_ROOT.glob("*.pyx"))
]

# As many modules at once as there are processors: each takes the compiler a good while.
setup(
    ext_modules=cythonize(EXTENSIONS, compiler_directives=DIRECTIVES, build_dir="build/cython"),
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
