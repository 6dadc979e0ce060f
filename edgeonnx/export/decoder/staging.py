"""A folder that holds of a source exactly what may be read, for libraries that look for more by themselves.

Given a directory, transformers and the ORT GenAI builder also read adapters, pickles, or settings that lie beside a
GGUF file; given these links they cannot.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgeonnx.export.source import Source


@contextlib.contextmanager
def staged(source: Source) -> Iterator[Path]:
    """A temporary folder of links to the files that a source is made of; it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="edgeonnx-source-") as scratch:
        folder = Path(scratch)
        for name in source.read_names():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to((source.path / name).resolve())
        yield folder
