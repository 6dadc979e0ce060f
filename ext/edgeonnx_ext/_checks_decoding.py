"""The checks of arguments that both twins of the decoding kernel share."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import numpy as np

from edgeonnx_ext import _checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    IdArray: TypeAlias = NDArray[np.int32] | NDArray[np.int64]
    Items: TypeAlias = list[Any] | tuple[Any, ...] | IdArray

_EXPECTED: Final = "a sequence of int, or an int32 or int64 array (n,)"
_INT64: Final = np.iinfo(np.int64)


def id_items(ids: Any, name: str) -> Items:
    """Return `ids` as a list, a tuple, or an int32 or int64 array (n,), C-contiguous.

    Raises:
        TypeError: Not a sequence, or an array of another dtype.
        ValueError: An array of another number of dimensions, or not C-contiguous.
    """
    if isinstance(ids, np.ndarray):
        if ids.dtype not in (np.int32, np.int64):
            raise TypeError(f"{name}: expected dtype int32 or int64, found {ids.dtype}")
        _checks.array(name, ids, ids.dtype, 1)
        return ids
    if isinstance(ids, list | tuple):
        return ids
    if isinstance(ids, str | bytes | bytearray):
        raise TypeError(f"{name}: expected {_EXPECTED}, found {type(ids).__name__}")
    try:
        return tuple(ids)
    except TypeError as error:
        raise TypeError(f"{name}: expected {_EXPECTED}, found {type(ids).__name__}") from error


def id_array(items: Sequence[Any], name: str) -> NDArray[np.int64]:
    """Return the integers `items` as an int64 array (n,); those beyond int64 become its limits, which no token has.

    Raises:
        TypeError: An item is not an integer.
    """
    numbers = np.empty(len(items), dtype=np.int64)
    for position, item in enumerate(items):
        number = index(item, f"{name}[{position}]")
        numbers[position] = max(int(_INT64.min), min(number, int(_INT64.max)))
    return numbers


def index(value: Any, name: str) -> int:
    """Return `value` as an int.

    Raises:
        TypeError: It is not an integer.
    """
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name}: expected an integer, found {type(value).__name__}") from error


def batch_rows(batch: Any) -> Sequence[Any]:
    """Return the rows of `batch`.

    Raises:
        TypeError: Not a sequence, or an array of another dtype.
        ValueError: An array of another number of dimensions, or not C-contiguous.
    """
    if isinstance(batch, np.ndarray):
        if batch.dtype not in (np.int32, np.int64):
            raise TypeError(f"batch: expected dtype int32 or int64, found {batch.dtype}")
        _checks.array("batch", batch, batch.dtype, 2)
        return list(batch)
    if isinstance(batch, str | bytes | bytearray):
        raise TypeError(f"batch: expected a sequence of sequences of ids, found {type(batch).__name__}")
    try:
        return tuple(batch)
    except TypeError as error:
        raise TypeError(f"batch: expected a sequence of sequences of ids, found {type(batch).__name__}") from error


def raise_unknown_id(name: str, token_id: Any, size: int) -> NoReturn:
    """Raise the ValueError for an id without token; `tokenizers` would leave it out and say nothing.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        f"{name}: expected the id of a token, found {operator.index(token_id)}, which the vocabulary (ids up to "
        f"{size - 1}) does not have. Decode with the tokenizer of the model that made the ids."
    )
