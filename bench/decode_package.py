"""Seconds and memory that `edgeonnx package` takes for a language model, parent and children together."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.decode_figures import Goal

SECONDS = 180.0
GIGABYTES = 4.0
SAMPLE_SECONDS = 0.1


def package_goals(source: Path) -> list[Goal]:
    """Package the model as a user would, once."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "edgeonnx.cli.main", "package", str(source), "--name", "smollm2"]
        command += ["--version", "1.0.0", "--out", folder]
        begun = time.perf_counter()
        with subprocess.Popen(command) as process:
            most = 0
            while process.poll() is None:
                most = max(most, tree_bytes(process.pid))
                time.sleep(SAMPLE_SECONDS)
        seconds = time.perf_counter() - begun
    if process.returncode != 0:
        raise SystemExit(f"edgeonnx package ended with {process.returncode}")
    return [
        Goal(what="edgeonnx package, seconds", value=seconds, bound=SECONDS, at_least=False, unit=" s", digits=0),
        Goal(what="edgeonnx package, memory", value=most / 1e9, bound=GIGABYTES, at_least=False, unit=" GB"),
    ]


def tree_bytes(root: int) -> int:
    """Resident memory of a process and all below it. Pages that several share count several times: an upper bound."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
    total, left = 0, [root]
    while left:
        process = left.pop()
        left += parents.get(process, [])
        with suppress(OSError):
            pages = Path(f"/proc/{process}/statm").read_text(encoding="utf-8").split()[1]
            total += int(pages) * os.sysconf("SC_PAGE_SIZE")
    return total
