"""The key and value caches of all sequences: one block of memory for each layer and part, written in place.

A block has the shape (rows, heads, places, head size). A row is one sequence's place in the batch, so neighbouring
rows are one piece of memory: any run of rows can be bound as a batch of its own, without a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_agent.inference.generation.memory import PAGE, HostMemory

if TYPE_CHECKING:
    import numpy as np

    from device_agent.inference.generation.memory import Block, Memory
    from edgeonnx.spec.generation import CacheShape

PLACES_STEP = 256
"""Places are allocated in multiples of this many tokens, where memory takes room before it is written."""


class Cache:
    """The caches of a decoder.

    Args:
        shape: Layers, heads and size of a head.
        dtype: float32 or float16, as the graph takes them.
        memory: Where they lie; None: on the host.
    """

    def __init__(self, shape: CacheShape, dtype: np.dtype[np.generic], memory: Memory | None = None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.memory: Memory = HostMemory() if memory is None else memory
        self.rows = 0
        self.places = 0
        self._blocks: list[Block] = []
        self._used: list[int] = []
        """For each row how many tokens were written at most since it was released."""

    @property
    def token_bytes(self) -> int:
        """Memory of one token of one sequence."""
        return self.shape.bytes_per_token(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Memory that the caches take: where it is lazy, of the tokens that were written; pages are not split."""
        if not self.memory.lazy:
            return self.rows * self.places * self.token_bytes
        page = self._page_places
        return sum(min(-(-used // page) * page, self.places) for used in self._used) * self.token_bytes

    @property
    def _place_bytes(self) -> int:
        return self.shape.head_size * self.dtype.itemsize

    @property
    def _page_places(self) -> int:
        """Places of one head that share a page."""
        return max(1, PAGE // self._place_bytes)

    @property
    def _stride(self) -> int:
        """Bytes from one head to the next."""
        return self.places * self._place_bytes

    @property
    def _row_bytes(self) -> int:
        return self.shape.heads * self._stride

    def reserve(self, rows: int, places: int) -> bool:
        """Have at least so many rows with so many places each; what stands in the caches is kept.

        Args:
            rows: Sequences.
            places: Tokens of the longest of them.

        Returns:
            Whether the caches lie somewhere else now.

        Raises:
            MemoryError: The host has no memory left.
            ProviderLostError: The GPU has none.
        """
        rows, places = max(rows, self.rows), max(self.rounded(places), self.places)
        if (rows, places) == (self.rows, self.places):
            return False
        old_stride, old_row = self._stride, self._row_bytes
        blocks = len(self.shape.past_names)
        stride = places * self._place_bytes
        for index in range(blocks):
            # Block by block, so that only one of them is there twice.
            new = self.memory.allocate(rows * self.shape.heads * stride)
            if index >= len(self._blocks):
                self._blocks.append(new)
                continue
            old = self._blocks[index]
            for row, used in enumerate(self._used):
                self._copy_heads(
                    new.address + row * self.shape.heads * stride, stride, old.address + row * old_row, old_stride, used
                )
            self.memory.settle()
            self._blocks[index] = new
        self._used += [0] * (rows - self.rows)
        self.rows, self.places = rows, places
        return True

    def rounded(self, places: int) -> int:
        """How many places are allocated for so many tokens."""
        step = self._page_places if self.memory.lazy else PLACES_STEP  # a head has pages of its own
        return -(-places // step) * step

    def clear(self) -> None:
        """Give all memory back."""
        self._blocks.clear()
        self._used.clear()
        self.rows = self.places = 0

    def wrote(self, row: int, length: int) -> None:
        """Note that the first `length` tokens of a row were written."""
        if length > self._used[row]:
            self._used[row] = length

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one row to another, which has no more of its own then."""
        stride, row_bytes = self._stride, self._row_bytes
        for block in self._blocks:
            self._copy_heads(
                block.address + target * row_bytes, stride, block.address + source * row_bytes, stride, length
            )
        self.memory.settle()
        self.wrote(target, length)
        self.trim(target, length)

    def trim(self, row: int, length: int = 0) -> None:
        """Give back the memory of a row behind its first `length` tokens; what stands there is lost."""
        kept = -(-length * self._place_bytes // PAGE) * PAGE
        size = min(-(-self._used[row] * self._place_bytes // PAGE) * PAGE, self._stride) - kept
        if self.memory.lazy and size > 0:
            for block in self._blocks:
                for head in range(self.shape.heads):
                    block.release(row * self._row_bytes + head * self._stride + kept, size)
        self._used[row] = min(self._used[row], length)

    def addresses(self, first: int) -> list[int]:
        """The memory address of a row in each block, in the order of `CacheShape.past_names`."""
        return [block.address + first * self._row_bytes for block in self._blocks]

    def _copy_heads(self, target: int, target_stride: int, source: int, source_stride: int, length: int) -> None:
        if length:
            self.memory.copy(
                target, target_stride, source, source_stride, width=length * self._place_bytes, count=self.shape.heads
            )
