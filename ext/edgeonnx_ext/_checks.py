"""The checks of arguments that the compiled kernels and their plain twins share, so that both raise the same errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike


def text_tuple(texts: Sequence[str], name: str = "texts") -> tuple[str, ...]:
    """Return `texts` as a tuple.

    Raises:
        TypeError: `texts` is one str, or one of its items is not a str.
    """
    if isinstance(texts, str | bytes):
        raise TypeError(f"{name}: expected a sequence of texts, found one {type(texts).__name__}. Pass [text].")
    items = tuple(texts)
    for row, item in enumerate(items):
        if not isinstance(item, str):
            raise TypeError(f"{name}[{row}]: expected a str, found {type(item).__name__}")
    return items


def pair_tuple(texts: tuple[str, ...], pairs: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return `pairs` as a tuple of as many texts as `texts`, or None.

    Raises:
        TypeError: As text_tuple.
        ValueError: Another number of texts.
    """
    if pairs is None:
        return None
    items = text_tuple(pairs, "pairs")
    if len(items) != len(texts):
        raise ValueError(f"pairs: expected one for each of the {len(texts)} texts, found {len(items)}")
    return items


def raise_surrogate(name: str, row: int, position: int, code: int) -> NoReturn:
    """Raise the ValueError for a lone surrogate, which is no Unicode text and has no token.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        f"{name}[{row}]: expected Unicode text, found the lone surrogate U+{code:04X} at character {position}. "
        "Decode the bytes with errors='replace', or repair the text."
    )


def refuse_surrogates(texts: tuple[str, ...], name: str) -> None:
    """Raise ValueError, naming row and character position, if a text holds a lone surrogate."""
    for row, text in enumerate(texts):
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise_surrogate(name, row, error.start, ord(text[error.start]))


def array(name: str, value: Any, dtype: DTypeLike, ndim: int, *, writable: bool = False) -> None:
    """Check a caller-owned buffer: NumPy array, exact dtype, C-contiguous, native, and writable if asked.

    Raises:
        TypeError: Not an ndarray, or another dtype.
        ValueError: Another number of dimensions, not C-contiguous, misaligned, or read-only.
    """
    expected = np.dtype(dtype)
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name}: expected a numpy.ndarray of {expected}, found {type(value).__name__}")
    if value.dtype != expected:
        raise TypeError(f"{name}: expected dtype {expected}, found {value.dtype}")
    if value.ndim != ndim:
        raise ValueError(f"{name}: expected {ndim} dimensions, found shape {value.shape}")
    if not value.flags.c_contiguous or not value.flags.aligned:
        raise ValueError(f"{name}: expected a C-contiguous, aligned array, found strides {value.strides}. Pass a copy.")
    if writable and not value.flags.writeable:
        raise ValueError(f"{name}: expected a writable array, found a read-only one")


def apart(**buffers: Any) -> None:
    """Raise ValueError if two of the C-contiguous `buffers` share memory."""
    names = list(buffers)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            if np.may_share_memory(buffers[name], buffers[other]):
                raise ValueError(f"{name} and {other}: expected buffers apart, found that they share memory")
