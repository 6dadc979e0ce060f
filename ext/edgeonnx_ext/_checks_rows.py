"""The checks of arguments that the compiled tokenizers and their plain twins share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from edgeonnx_ext import _checks

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Character positions travel as int32.
MOST_CHARACTERS = 2**31 - 1


def text_length(name: str, row: int, length: int) -> None:
    """Raise ValueError for a text whose positions do not fit an int32."""
    if length > MOST_CHARACTERS:
        raise ValueError(f"{name}[{row}]: expected at most {MOST_CHARACTERS} characters, found {length}")


def thread_count(threads: int) -> int:
    """Return `threads`; raise ValueError if it is not from 1 to 256."""
    if not 1 <= threads <= 256:
        raise ValueError(f"threads: expected 1 to 256, found {threads}")
    return threads


def raise_too_short(row: int, strategy: str, budget: int) -> NoReturn:
    """Raise the ValueError for a pair whose one text that may be cut is too short to make it fit.

    Raises:
        ValueError: Always.
    """
    other = "second" if strategy == "only_first" else "first"
    raise ValueError(
        f"row {row}: expected room for at least one token of the text that {strategy!r} cuts, found that the {other} "
        f"text alone fills the {budget} places. Use 'longest_first', a larger max_length, or shorter texts."
    )


def raise_stride(row: int, stride: int, room: int) -> NoReturn:
    """Raise the ValueError for windows that would not advance.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"row {row}: expected a stride below the {room} tokens of a window, found {stride}")


@dataclass(frozen=True, kw_only=True)
class RowBuffers:
    """The checked buffers of one `write_into`, all of one dtype (int64 or int32).

    Attributes:
        arrays: Buffer by name; `offsets` is (rows, width, 2), the others (rows, width).
        wanted: int64 (rows,): which rows of the batch to write, in this order.
    """

    arrays: dict[str, NDArray[np.signedinteger[Any]]]
    wanted: NDArray[np.int64]


def row_buffers(lengths: NDArray[np.int64], rows: Any, *, has_offsets: bool, **buffers: Any) -> RowBuffers:
    """Check the buffers of `Tokenized.write_into`: nothing is written if one of them does not fit.

    Raises:
        TypeError: As `_checks.array`; or a dtype other than int64 and int32, or several.
        ValueError: As `_checks.array`; too small, of different shapes, overlapping; a row that does not exist; offsets
            that were not asked for when the texts were tokenized.
    """
    wanted = wanted_rows(rows, len(lengths))
    width = int(lengths[wanted].max(initial=0))
    given = {name: buffer for name, buffer in buffers.items() if buffer is not None}
    if "offsets" in given and not has_offsets:
        raise ValueError("offsets: expected texts that were tokenized with offsets=True, found them without")
    dtype = given["input_ids"].dtype if isinstance(given["input_ids"], np.ndarray) else np.dtype(np.int64)
    if dtype not in (np.dtype(np.int64), np.dtype(np.int32)):
        raise TypeError(f"input_ids: expected dtype int64 or int32, found {dtype}")
    for name, buffer in given.items():
        _checks.array(name, buffer, dtype, 3 if name == "offsets" else 2, writable=True)
        tail = (2,) if name == "offsets" else ()
        if buffer.shape[0] != len(wanted) or buffer.shape[1] < width or buffer.shape[2:] != tail:
            shown = ", ".join([str(len(wanted)), f"{width} or more", *map(str, tail)])
            raise ValueError(f"{name}: expected shape ({shown}), found {buffer.shape}")
    shapes = {name: buffer.shape for name, buffer in given.items()}
    if len({shape[:2] for shape in shapes.values()}) > 1:
        raise ValueError(f"expected buffers of one shape, found {shapes}")
    _checks.apart(**given)
    return RowBuffers(arrays=given, wanted=wanted)


def wanted_rows(rows: Any, count: int) -> NDArray[np.int64]:
    """Return `rows` as int64 (n,), or all of them for None.

    Raises:
        TypeError: Not integers of one dimension.
        ValueError: A row that does not exist.
    """
    if rows is None:
        return np.arange(count, dtype=np.int64)
    wanted = np.asarray(rows)
    if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
        raise TypeError(f"rows: expected integers (n,), found {wanted.dtype} of shape {wanted.shape}")
    if wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) < count:
        raise ValueError(f"rows: expected numbers from 0 to {count - 1}, found {wanted.min()} to {wanted.max()}")
    return np.ascontiguousarray(wanted, dtype=np.int64)
