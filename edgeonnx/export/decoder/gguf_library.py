"""How transformers is made to read a GGUF file: once, and without a progress bar.

It parses the file anew for the configuration, the tokenizer and the weights (hundreds of thousands of small pieces of
the vocabulary each time), and makes the table of tensor names anew for every module. Both depend on nothing but their
arguments, so they are remembered while one source is loaded: that halves the time.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

READER_MODULE = "transformers.modeling_gguf_pytorch_utils"


@contextlib.contextmanager
def gguf_reading() -> Iterator[None]:
    """Have the libraries for GGUF work quietly and once; afterwards they are as they were."""
    library, reader = importlib.import_module("gguf"), importlib.import_module(READER_MODULE)
    with contextlib.ExitStack() as stack:
        for name in ("GGUFReader", "get_tensor_name_map"):
            stack.enter_context(_replaced(library, name, functools.cache(getattr(library, name))))
        if hasattr(reader, "tqdm"):
            stack.enter_context(_replaced(reader, "tqdm", functools.partial(reader.tqdm, disable=True)))
        yield


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
