"""How torch and transformers are made to behave: quiet, and with sums in one order."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import TYPE_CHECKING

import torch
import transformers

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: sums then have one order, so golden sets do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' progress bars, warnings and logs off the user's terminal; failures still raise."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    progress_bar = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity(logging.CRITICAL)
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        transformers.utils.logging.set_verbosity(verbosity)
        if progress_bar:
            transformers.utils.logging.enable_progress_bar()
