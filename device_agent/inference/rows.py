"""The rows of one request before they run, and the answer to them.

Rows stay ragged until a batch is chosen: only then is it known how wide they must be. Whatever a request brought
(texts, lists of token ids, tensors), a batch sees it as a `Rows`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from edgeonnx_ext import Padding, Tokenized
    from numpy.typing import NDArray

    from edgeonnx.spec.tensor import ModelSignature, TensorSpec

    Array = NDArray[np.generic]
    Ids = NDArray[np.int64]
    Indexes = NDArray[np.intp]

INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"
TOKEN_TYPE_IDS = "token_type_ids"  # noqa: S105 - a tensor's name
TEXT_INPUTS = (INPUT_IDS, ATTENTION_MASK, TOKEN_TYPE_IDS)


class Rows(Protocol):
    """Rows of tokens that can be written, padded, into the buffers of a batch.

    Attributes:
        lengths: int64 (rows,), tokens of each row without padding.
    """

    lengths: Ids

    def write(self, rows: Sequence[int] | Indexes, buffers: Mapping[str, Ids]) -> None:
        """Write rows, filled up to the buffers' width.

        Args:
            rows: Which rows, in the order in which they are written.
            buffers: The graph's inputs by name, each int64 (len(rows), at least the longest of these rows),
                C-contiguous.
        """
        ...


class TextRows:
    """Texts that our tokenizer cut into tokens."""

    def __init__(self, tokenized: Tokenized, padding: Padding) -> None:
        self.lengths = tokenized.lengths
        self._tokenized = tokenized
        self._padding = padding

    def write(self, rows: Sequence[int] | Indexes, buffers: Mapping[str, Ids]) -> None:
        """See `Rows.write`."""
        count = len(self.lengths)
        # All of them, which is the common case, needs no look at each number: 3 microseconds instead of 13.
        whole = len(rows) == count and (count == 1 or list(rows) == list(range(count)))
        self._tokenized.write_into(
            buffers[INPUT_IDS],
            buffers.get(ATTENTION_MASK),
            buffers.get(TOKEN_TYPE_IDS),
            padding=self._padding,
            rows=None if whole else rows,
        )


class TokenRows:
    """Lists of token ids that a client made itself."""

    def __init__(self, tokens: Sequence[Sequence[int]], padding: Padding) -> None:
        self.lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
        self._tokens = tokens
        self._padding = padding

    def write(self, rows: Sequence[int] | Indexes, buffers: Mapping[str, Ids]) -> None:
        """See `Rows.write`."""
        filling = {INPUT_IDS: self._padding.pad_id, ATTENTION_MASK: 0, TOKEN_TYPE_IDS: self._padding.pad_type_id}
        for name, buffer in buffers.items():
            buffer[:] = filling[name]
        for at, row in enumerate(rows):
            tokens = self._tokens[row]
            for name, buffer in buffers.items():
                buffer[at, : len(tokens)] = tokens if name == INPUT_IDS else int(name == ATTENTION_MASK)


class TensorRows:
    """A client's own tensors.

    Args:
        tensors: The graph's inputs, int64 (rows, width) each, all of one shape.
        padding: What fills a row up to the width of a batch.
        cut: Rows end behind the last token of their mask. Otherwise they keep their full width, whatever the mask
            says: it is the client's, and may have holes.
    """

    def __init__(self, tensors: Mapping[str, Ids], padding: Padding, *, cut: bool = False) -> None:
        rows, width = next(iter(tensors.values())).shape
        self.lengths = tensors[ATTENTION_MASK].sum(axis=1) if cut else np.full(rows, width, dtype=np.int64)
        self._tensors = tensors
        self._padding = padding

    def write(self, rows: Sequence[int] | Indexes, buffers: Mapping[str, Ids]) -> None:
        """See `Rows.write`."""
        filling = {INPUT_IDS: self._padding.pad_id, ATTENTION_MASK: 0, TOKEN_TYPE_IDS: self._padding.pad_type_id}
        for name, buffer in buffers.items():
            tensor = self._tensors[name]
            width = min(tensor.shape[1], buffer.shape[1])
            buffer[:, :width] = tensor[rows, :width]
            buffer[:, width:] = filling[name]


@dataclass(kw_only=True)
class Answer:
    """The answer to one request.

    Attributes:
        outputs: Outputs by name, each (rows, ...), in the order of the request's rows. Outputs per token have the
            width of the longest row; behind the end of a shorter one stand zeros.
        lengths: int64 (rows,), tokens of each row without padding.
        tokenize_seconds: Time that tokenizing took.
        queue_seconds: Time until the first of its rows ran.
        infer_seconds: Time in `InferenceSession.run`, summed over the runs that held its rows.
        runs: Calls of `InferenceSession.run` that held its rows.
        batch_rows: Rows in all of those runs, those of other requests included.
        provider: The execution provider that ran the last of them.
    """

    outputs: dict[str, Array] = field(default_factory=dict)
    lengths: Ids
    tokenize_seconds: float = 0.0
    queue_seconds: float = 0.0
    infer_seconds: float = 0.0
    runs: int = 0
    batch_rows: int = 0
    provider: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """What a run gave for rows of a request.

    Attributes:
        rows: Numbers of the rows within the request, ascending.
        outputs: Outputs by name, each (len(rows), ...).
    """

    rows: Sequence[int]
    outputs: Mapping[str, Array]


def write_batch(parts: Sequence[tuple[Rows, Sequence[int]]], width: int, names: Sequence[str]) -> dict[str, Ids]:
    """Rows of several requests as one padded batch.

    Args:
        parts: Requests, and which of their rows: these come one after the other.
        width: Tokens of the longest of these rows.
        names: The graph's inputs.

    Returns:
        Inputs by name, int64 (rows, width), C-contiguous.
    """
    count = sum(len(rows) for _, rows in parts)
    buffers = dict(zip(names, np.empty((len(names), count, width), dtype=np.int64), strict=True))
    if len(parts) == 1:
        source, rows = parts[0]
        source.write(rows, buffers)
        return buffers
    at = 0
    for source, rows in parts:
        end = at + len(rows)
        source.write(rows, {name: buffer[at:end] for name, buffer in buffers.items()})
        at = end
    return buffers


def numbers_per_row(spec: TensorSpec, tokens: int) -> int:
    """Numbers that one row of an output holds when it is `tokens` long; the first dimension is the batch."""
    return math.prod(size if isinstance(size, int) else tokens for size in spec.shape[1:])


def per_token_outputs(signature: ModelSignature) -> frozenset[str]:
    """Names of the outputs that hold something for each token: their second dimension has no fixed size."""
    return frozenset(
        spec.name for spec in signature.outputs if len(spec.shape) > 1 and not isinstance(spec.shape[1], int)
    )


def merge(parts: Sequence[Part], lengths: Ids, per_token: Collection[str] | None = None) -> dict[str, Array]:
    """The outputs of all runs of a request, each row at its place.

    Args:
        parts: What each run gave; together every row once.
        lengths: int64 (rows,), tokens of each row of the request.
        per_token: Names of the outputs of which the second dimension is the token; None: those of three dimensions.

    Returns:
        Outputs by name as `Answer.outputs` describes them. What came whole from one run is not copied.
    """
    merged: dict[str, Array] = {}
    for name, first in parts[0].outputs.items():
        if first.ndim == 3 if per_token is None else name in per_token:
            merged[name] = _placed_tokens(name, first, parts, lengths)
        else:
            merged[name] = first if len(parts) == 1 else _placed(name, first, parts, len(lengths))
    return merged


def _placed_tokens(name: str, first: Array, parts: Sequence[Part], lengths: Ids) -> Array:
    """One output that has a value for each token: zeros behind the end of a row, whatever the runtime put there."""
    longest = int(lengths.max())
    if len(parts) == 1 and first.shape[1] == longest and first.flags.writeable:
        for row, length in enumerate(lengths):
            first[row, length:] = 0
        return first
    whole = np.zeros((len(lengths), longest, *first.shape[2:]), dtype=first.dtype)
    for part in parts:
        value = part.outputs[name]
        for at, row in enumerate(part.rows):
            whole[row, : lengths[row]] = value[at, : lengths[row]]
    return whole


def _placed(name: str, first: Array, parts: Sequence[Part], rows: int) -> Array:
    """One output that has a value for each row as a whole."""
    whole = np.empty((rows, *first.shape[1:]), dtype=first.dtype)
    for part in parts:
        whole[part.rows] = part.outputs[name]
    return whole
