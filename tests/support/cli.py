"""The `edgeonnx` command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ESCAPE = "\x1b"


def environment(**changes: str | None) -> dict[str, str]:
    """This environment with the tree's packages and plain output settings; None removes a variable."""
    paths = [str(ROOT), str(ROOT / "ext"), os.environ.get("PYTHONPATH", "")]
    merged = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), "HF_HUB_OFFLINE": "1"}
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "COLUMNS", "GITHUB_ACTIONS"):
        merged.pop(name, None)
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = value
    return merged


def command(*arguments: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "edgeonnx.cli.main", *arguments]


def edgeonnx(*arguments: str, timeout: float = 60, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Run it to its end, with both streams piped."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        env=environment(**variables),
        timeout=timeout,
        check=False,
    )
