"""A decoder on the build host: prompts, continuations and steps over caches that are written in place.

These are the runs of `edgeonnx.spec.generation`, bound as a device binds them: past and present caches are the same
memory. The logits may be those of every position, as while a graph is worked on, or of the last one, as it ships.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.bundle.continuation import replay_function
from edgeonnx.bundle.golden import MASK_INPUT
from edgeonnx.errors import ValidationError, first_line
from edgeonnx.model.runtime import open_session
from edgeonnx.spec.generation import INPUT_IDS, LOGITS, MASK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import onnxruntime as ort
    from numpy.typing import NDArray

    from edgeonnx.spec.generation import CacheShape

HOST = "cpu"
_CACHE_TYPES: dict[str | None, type[np.float32 | np.float16]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}


class HostDecoder:
    """A decoder with its caches.

    Args:
        session: A session on a graph of the contract.
        shape: Its caches.

    Raises:
        ValidationError: The graph lacks the caches, or its logits have no fixed number.
    """

    def __init__(self, session: ort.InferenceSession, shape: CacheShape) -> None:
        self._session = session
        self._shape = shape
        self._dtype = _cache_type(session, shape)
        logits = next((output for output in session.get_outputs() if output.name == LOGITS), None)
        if logits is None or len(logits.shape) != 3 or not isinstance(logits.shape[2], int):
            raise ValidationError(
                "the graph has other outputs than a decoder",
                expected=f"{LOGITS} (batch, sequence or 1, vocabulary)",
                found="none" if logits is None else str(logits.shape),
            )
        self.vocabulary: int = logits.shape[2]
        self._last_only = logits.shape[1] == 1
        self._caches: list[NDArray[np.generic]] = []

    def reserve(self, rows: int, places: int) -> None:
        """Make the caches anew, all empty.

        Args:
            rows: Sequences.
            places: Tokens of the longest of them.
        """
        size = (rows, self._shape.heads, places, self._shape.head_size)
        self._caches = [np.zeros(size, dtype=self._dtype) for _ in self._shape.past_names]

    def prompts(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        """Put prompts into the first rows, whose caches then hold these and nothing else.

        Args:
            ids: int64 (rows, tokens), padded on the right.
            mask: int64 (rows, tokens): ones, then zeros.

        Returns:
            float32 (rows, tokens or 1, vocabulary).
        """
        return self._run(0, ids, mask)

    def extend(self, row: int, ids: Sequence[int], start: int) -> NDArray[np.float32]:
        """Put tokens into one row.

        Args:
            row: The row.
            ids: The tokens, at least one.
            start: How many tokens stand in the row before them.

        Returns:
            float32 (tokens or 1, vocabulary): the logits after each token, or after the last one.
        """
        tokens = np.asarray(ids, dtype=np.int64).reshape(1, -1)
        logits: NDArray[np.float32] = self._run(row, tokens, np.ones((1, start + tokens.shape[1]), dtype=np.int64))[0]
        return logits

    def step(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        """Put one token into each of the first rows.

        Args:
            ids: int64 (rows,): the tokens.
            lengths: int64 (rows,): how many tokens stand in each row before them.

        Returns:
            float32 (rows, vocabulary): the logits after them.
        """
        mask = (np.arange(int(lengths.max()) + 1) <= lengths[:, None]).astype(np.int64)
        return self._run(0, ids.reshape(-1, 1), mask)[:, 0]

    def replay(self, inputs: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float32]]:
        """Run a golden set's inputs as sequences are served; see `edgeonnx.bundle.continuation`."""
        rows, places = inputs[MASK_INPUT].shape
        self.reserve(rows, places)
        return replay_function(lambda row, ids, start: self.extend(row, ids, start)[-1], self.step)(inputs)

    def _run(self, first: int, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        ids, mask = np.ascontiguousarray(ids, dtype=np.int64), np.ascontiguousarray(mask, dtype=np.int64)
        rows, tokens = ids.shape
        logits = np.empty((rows, 1 if self._last_only else tokens, self.vocabulary), dtype=np.float32)
        binding = self._session.io_binding()
        for name, value in ((INPUT_IDS, ids), (MASK, mask)):
            binding.bind_input(name, HOST, 0, np.int64, value.shape, value.ctypes.data)
        names = zip(self._shape.past_names, self._shape.present_names, self._caches, strict=True)
        for past, present, cache in names:
            part = cache[first : first + rows]
            binding.bind_input(past, HOST, 0, self._dtype, part.shape, part.ctypes.data)
            binding.bind_output(present, HOST, 0, self._dtype, part.shape, part.ctypes.data)
        binding.bind_output(LOGITS, HOST, 0, np.float32, logits.shape, logits.ctypes.data)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise ValidationError(
                "ONNX Runtime cannot run the graph", where=f"{rows} x {tokens} tokens", found=first_line(error)
            ) from error
        return logits


def open_decoder(
    model: Path, tensors: Path | None, shape: CacheShape, *, threads: int | None = None, spinning: bool = False
) -> HostDecoder:
    """Open a decoder; see `edgeonnx.model.runtime.open_session`.

    Raises:
        ValidationError: ONNX Runtime does not load it, or it is no decoder with these caches.
        RuntimeUnavailableError: onnxruntime is not installed.
    """
    return HostDecoder(open_session(model, tensors, threads=threads, spinning=spinning), shape)


def _cache_type(session: ort.InferenceSession, shape: CacheShape) -> type[np.float32 | np.float16]:
    """float32 or float16, as all caches of the graph are."""
    types = {item.name: item.type for item in session.get_inputs()}
    found = {types.get(name) for name in shape.past_names}
    kind = found.pop() if len(found) == 1 else None
    if kind not in _CACHE_TYPES:
        raise ValidationError(
            "the graph has other caches than its decoder",
            expected=f"{len(shape.past_names)} inputs past_key_values.<layer>.key and .value, float or float16",
            found=", ".join(sorted(name for name in types if name not in (INPUT_IDS, MASK))) or "none",
        )
    return _CACHE_TYPES[kind]
