"""ext/tools/sanitize.sh: it passes what is right, sees what is wrong, and says so if the sanitizers are not alive.

One module is built, or this would take minutes; `make test-sanitized` builds all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.texts import ROOT

WORK = ROOT / ".work" / "sanitized-pooling"
WRONG = """
import sanitizer_probe


def test_a_mistake():
    sanitizer_probe.{call}
"""

pytestmark = pytest.mark.slow


def has_sanitizers() -> bool:
    if shutil.which("gcc") is None:
        return False
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False).stdout
    return Path(found.strip()).is_absolute()  # gcc gives the bare name back if there is none


def sanitize(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    if not has_sanitizers():
        pytest.skip("gcc with libasan is not installed")
    environment = {**os.environ, "PYTHON": sys.executable, "WORK": str(WORK), "MODULES": "_pooling", **variables}
    command = [str(ROOT / "ext" / "tools" / "sanitize.sh"), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=170)


def test_right_code_passes() -> None:
    done = sanitize("tests/unit/ext/test_ext_pooling.py", "-k", "compiled and formula")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "both sanitizers are alive in _pooling" in done.stdout
    assert "passed" in done.stdout


@pytest.mark.parametrize(
    ("call", "report"),
    [("over_read(8)", "heap-buffer-overflow"), ("overflow(2147483647)", "signed integer overflow")],
)
def test_a_mistake_fails_the_run_and_is_shown(tmp_path: Path, call: str, report: str) -> None:
    test = tmp_path / "test_wrong.py"
    test.write_text(WRONG.format(call=call))
    done = sanitize(test)
    assert done.returncode != 0
    assert report in done.stderr


def test_dead_sanitizers_fail_the_run() -> None:
    """A gcc that names no library to load first: the process then runs without AddressSanitizer."""
    fake = WORK / "bin"
    fake.mkdir(parents=True, exist_ok=True)
    gcc = fake / "gcc"
    gcc.write_text(f'#!/bin/sh\ncase "$1" in -print-file-name=*) ;; *) exec {shutil.which("gcc")} "$@" ;; esac\n')
    gcc.chmod(0o755)
    done = sanitize("tests/unit/ext/test_ext_pooling.py", PATH=f"{fake}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode != 0
    assert "the sanitizers are not alive" in done.stderr
