"""A decoder's session and its caches: a prompt into a row, or one token into each of many rows.

Inputs, outputs and caches are bound to memory that stays, so that a step hands ONNX Runtime nothing but addresses;
past and present caches are the same memory and are written in place. See `edgeonnx.spec.generation` for the contract.

Continuations and steps have a binding each, so that a prompt which is read between two steps leaves that of the steps
as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from device_agent.inference.generation.cache import Cache
from device_agent.inference.generation.memory import memory_of
from edgeonnx.errors import RuntimeUnavailableError
from edgeonnx.spec.generation import INPUT_IDS, LOGITS, MASK

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnxruntime as ort
    from numpy.typing import NDArray

    from device_agent.inference.generation.memory import Memory
    from device_agent.inference.session import Session
    from edgeonnx.spec.generation import CacheShape

HOST = "cpu"
_DTYPES: dict[object, np.dtype[np.generic]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
}


class Decoder:
    """A decoder that keeps the caches of several sequences; it belongs to one thread.

    Args:
        session: A session on a graph of the contract.
        shape: Its caches.
        memory: Where they lie; None: where the session's provider works.

    Attributes:
        cache: The caches; `Cache.reserve` gives them rows and places.
        vocabulary: Number of logits of a token.

    Raises:
        RuntimeUnavailableError: The graph is not of the contract.
    """

    def __init__(self, session: Session, shape: CacheShape, *, memory: Memory | None = None) -> None:
        self._session = session
        raw = session.raw
        dtype, self.vocabulary = _read_graph(raw, shape)
        self.cache = Cache(
            shape, dtype, memory or memory_of(session.providers[0], cuda=session.cuda, index=session.gpu)
        )
        self._names = list(zip(shape.past_names, shape.present_names, strict=True))
        self._one = raw.io_binding()
        self._many = raw.io_binding()
        self._bound = 0
        """Rows that the binding of steps is for; 0: none."""
        self._host = self.cache.memory.device == HOST
        self._ones: NDArray[np.int64] = np.ones(0, dtype=np.int64)
        self._masks: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._places: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._ids: NDArray[np.int64] = np.zeros((0, 1), dtype=np.int64)
        self._logits: NDArray[np.float32] = np.zeros((0, 1, self.vocabulary), dtype=np.float32)

    def reserve(self, rows: int, places: int) -> None:
        """Have caches for so many rows of so many tokens; see `Cache.reserve`."""
        if self.cache.reserve(rows, places):
            self._bound = 0
        places = self.cache.places
        if len(self._ones) < places:
            self._ones = np.ones(places, dtype=np.int64)
            self._places = np.arange(places, dtype=np.int64)

    def extend(self, row: int, ids: Sequence[int] | NDArray[np.int64], start: int) -> NDArray[np.float32]:
        """Put tokens into one row.

        Args:
            row: The row.
            ids: The tokens, at least one.
            start: How many tokens stand in the row before them.

        Returns:
            float32 (vocabulary,): the logits of the token that follows; valid, and the caller's to change, until the
            next call.

        Raises:
            ProviderLostError: The execution provider failed.
            InferenceError: ONNX Runtime failed.
        """
        tokens = np.ascontiguousarray(ids, dtype=np.int64).reshape(1, -1)
        total = start + tokens.shape[1]
        self.reserve(row + 1, total)
        io = self._one
        io.bind_input(INPUT_IDS, HOST, 0, np.int64, tokens.shape, tokens.ctypes.data)
        self._bind_caches(io, row, 1)
        self._make_buffers(1)
        self._bind_logits(io, 1)
        self._run(io, self._ones[:total].reshape(1, -1))
        self.cache.wrote(row, total)
        logits: NDArray[np.float32] = self._logits[0, 0]
        return logits

    def step(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        """Put one token into each of the first rows.

        Args:
            ids: int64 (rows,): the tokens.
            lengths: int64 (rows,): how many tokens stand in each row before them.

        Returns:
            float32 (rows, vocabulary): the logits of the tokens that follow; valid, and the caller's to change, until
            the next call.

        Raises:
            ProviderLostError: The execution provider failed.
            InferenceError: ONNX Runtime failed.
        """
        count, width = len(ids), int(lengths.max()) + 1
        self.reserve(count, width)
        self._make_buffers(count)
        io = self._many
        self._ids[:count, 0] = ids
        if self._bound != count:
            self._bind_caches(io, 0, count)
            self._bind_logits(io, count)
        if self._bound != count or not self._host:  # what lies elsewhere is copied there when it is bound
            io.bind_input(INPUT_IDS, HOST, 0, np.int64, (count, 1), self._ids.ctypes.data)
        self._bound = count
        self._run(io, self._mask(lengths, count, width))
        for row, length in enumerate(lengths.tolist()):
            self.cache.wrote(row, length + 1)
        return self._logits[:count, 0]

    def _make_buffers(self, count: int) -> None:
        """Have memory for the ids and the logits of so many rows; it stays, as they are bound to it."""
        if len(self._ids) < count:
            self._ids = np.zeros((count, 1), dtype=np.int64)
            self._logits = np.zeros((count, 1, self.vocabulary), dtype=np.float32)
            self._bound = 0

    def _mask(self, lengths: NDArray[np.int64], count: int, width: int) -> NDArray[np.int64]:
        """int64 (count, width): in each row a one for each token, the new one too."""
        if count == 1:
            return self._ones[:width].reshape(1, -1)
        if len(self._masks) < count * width:
            self._masks = np.zeros(count * self.cache.places, dtype=np.int64)
        mask = self._masks[: count * width].reshape(count, width)
        np.less_equal(self._places[:width], lengths[:, None], out=mask)
        return mask

    def _bind_caches(self, io: ort.IOBinding, first: int, count: int) -> None:
        cache, device, index = self.cache, self.cache.memory.device, self.cache.memory.index
        size = (count, cache.shape.heads, cache.places, cache.shape.head_size)
        for (past, present), address in zip(self._names, cache.addresses(first), strict=True):
            io.bind_input(past, device, index, cache.dtype.type, size, address)
            io.bind_output(present, device, index, cache.dtype.type, size, address)

    def _bind_logits(self, io: ort.IOBinding, count: int) -> None:
        io.bind_output(LOGITS, HOST, 0, np.float32, (count, 1, self.vocabulary), self._logits.ctypes.data)

    def _run(self, io: ort.IOBinding, mask: NDArray[np.int64]) -> None:
        io.bind_input(MASK, HOST, 0, np.int64, mask.shape, mask.ctypes.data)
        self._session.run_bound(io)


def _read_graph(session: ort.InferenceSession, shape: CacheShape) -> tuple[np.dtype[np.generic], int]:
    """Element type of the caches, and size of the vocabulary."""
    inputs = {node.name: node for node in session.get_inputs()}
    outputs = {node.name: node for node in session.get_outputs()}
    expected = {INPUT_IDS, MASK, *shape.past_names}, {LOGITS, *shape.present_names}
    first = inputs.get(shape.past_names[0])
    logits = outputs.get(LOGITS)
    if (set(inputs), set(outputs)) != expected or first is None or logits is None:
        raise RuntimeUnavailableError(
            "the graph has other inputs or outputs than a decoder with these caches",
            expected=f"{INPUT_IDS}, {MASK}, {LOGITS} and the caches of {shape.layers} layers",
            found=", ".join([*inputs, *outputs])[:400],
        )
    vocabulary = logits.shape[-1]
    if first.type not in _DTYPES or logits.type != "tensor(float)" or not isinstance(vocabulary, int):
        raise RuntimeUnavailableError(
            "the graph's logits or caches are of another kind than a decoder's",
            expected="logits float (batch, 1, vocabulary), caches float or float16",
            found=f"logits {logits.type} {logits.shape}, caches {first.type}",
        )
    return _DTYPES[first.type], vocabulary
