"""Builds the extension in a folder of its own, for tests that watch its memory: with sanitizers, or for valgrind.

The flags of `setup.py` stay, and ours come after them: what is tested is the code that ships, optimized less. A copy of
the package lies beside the built modules in `OUT/ext`, which goes first on PYTHONPATH; the source tree is not touched.
A second build compiles only what changed. One more module, `sanitizer_probe`, holds two deliberate mistakes, which
prove that the sanitizers see them.

Run it with `python ext/tools/build_instrumented.py {sanitized,valgrind} OUT [MODULE...]`; without modules, all.
"""

from __future__ import annotations

import argparse
import distutils.core
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from Cython.Build import cythonize
from setuptools import Extension

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = Path("ext") / "edgeonnx_ext"
COPIED: Final = {".py", ".pyi", ".pxd", ".pyx", ".bin", ".typed", ".h", ".hpp"}
SANITIZERS: Final = "-fsanitize=address,undefined"
FLAGS: Final = {
    # Python itself is compiled with -fwrapv, and so are extensions: signed overflow would then count as defined.
    "sanitized": ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv", SANITIZERS, "-fno-sanitize-recover=undefined"],
    "valgrind": ["-O1", "-g", "-fno-omit-frame-pointer"],
}
PROBE: Final = '''"""Two deliberate mistakes: if the sanitizers do not see them, they are not alive."""
from libc.stdlib cimport free, malloc


def over_read(size_t size):
    """Read one byte behind an allocation."""
    cdef unsigned char* data = <unsigned char*>malloc(size)
    cdef volatile unsigned char* watched = data
    if data == NULL:
        raise MemoryError
    cdef int found = watched[size]
    free(data)
    return found


def overflow(int number):
    """Return number + 1."""
    return number + 1
'''


def copy_tree(out: Path, modules: Sequence[str]) -> None:
    """Bring `out` to the state of the source tree; what did not change keeps its time, and is not built again."""
    sources = [ROOT / "setup.py"]
    sources += [path for path in (ROOT / PACKAGE).rglob("*") if path.is_file() and path.suffix in COPIED]
    if modules:
        sources = [path for path in sources if path.suffix != ".pyx" or path.stem in modules]
    wanted = {path.relative_to(ROOT) for path in sources}
    for place in sorted(wanted):
        source, target = ROOT / place, out / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.stat().st_mtime != source.stat().st_mtime:
            shutil.copy2(source, target)
    for found in (out / PACKAGE).rglob("*"):
        if found.suffix in COPIED and found.relative_to(out) not in wanted:
            found.unlink()
    compiled = {path.stem for path in wanted if path.suffix == ".pyx"}
    for found in (out / PACKAGE).glob("*.so"):
        if found.name.split(".")[0] not in compiled:
            found.unlink()
    probe = out / "ext" / "sanitizer_probe.pyx"
    if not probe.exists() or probe.read_text() != PROBE:
        probe.write_text(PROBE)


def build(kind: str, out: Path) -> None:
    """Build every module of `out` in place; a module that does not compile ends it, where setup.py would go on."""
    os.chdir(out)
    sys.path.insert(0, str(out))
    arguments = ["--quiet", "build_ext", "--inplace", "--build-temp", str(out / "build")]
    made = distutils.core.run_setup("setup.py", script_args=arguments, stop_after="commandline")
    probe = Extension("sanitizer_probe", ["ext/sanitizer_probe.pyx"])
    made.ext_modules += cythonize([probe], language_level="3", build_dir="build/cython", quiet=True)
    made.package_dir = {"": "ext"}
    for extension in made.ext_modules:
        extension.optional = False
        extension.extra_compile_args = [*extension.extra_compile_args, *FLAGS[kind]]
        if kind == "sanitized":
            extension.extra_link_args = [*extension.extra_link_args, SANITIZERS]
    made.run_commands()


def main() -> None:
    """Copy and build."""
    parser = argparse.ArgumentParser(description="Build the extension with other flags, in a folder of its own.")
    parser.add_argument("kind", choices=sorted(FLAGS))
    parser.add_argument("out", type=Path)
    parser.add_argument("modules", nargs="*", help="names such as _pooling; without, all")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    copy_tree(out, arguments.modules)
    build(arguments.kind, out)


if __name__ == "__main__":
    main()
