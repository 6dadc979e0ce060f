"""Memory for caches, on the host or on a GPU, behind one small port.

Addresses go in and out, as that is what ONNX Runtime is bound to. A copy is of pieces of equal width at equal
distances, which is what a row of a cache is: one piece for each head.

On a host with Linux, memory that nobody has written takes no room (`Memory.lazy`). So the caches have their full size
from the start: they never grow by a copy, and a long sequence costs nothing in the rows of short ones.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import TYPE_CHECKING, Protocol

import numpy as np
import onnxruntime as ort

from edgeonnx.errors import ProviderLostError

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = mmap.PAGESIZE
_MADV_NOHUGEPAGE = getattr(mmap, "MADV_NOHUGEPAGE", None)
_MADV_DONTNEED = getattr(mmap, "MADV_DONTNEED", None)
_DEVICE_TO_DEVICE = 3


class Block(Protocol):
    """A piece of memory; it is freed with this object."""

    @property
    def address(self) -> int:
        """Where it begins."""
        ...

    def release(self, start: int, size: int) -> None:
        """Give the memory of these bytes back; what stands in them is lost. It may do nothing."""
        ...


class Memory(Protocol):
    """Where caches lie.

    Attributes:
        device: ONNX Runtime's word for it: "cpu" or "cuda".
        index: Number of the device.
        lazy: Whether memory that was not written takes no room.
    """

    @property
    def device(self) -> str: ...  # noqa: D102 - see the class

    @property
    def index(self) -> int: ...  # noqa: D102

    @property
    def lazy(self) -> bool: ...  # noqa: D102

    def allocate(self, size: int) -> Block:
        """Memory of `size` bytes.

        Raises:
            ProviderLostError: A GPU has none left.
            MemoryError: The host has none left.
        """
        ...

    def copy(self, target: int, target_stride: int, source: int, source_stride: int, *, width: int, count: int) -> None:
        """Copy `count` pieces of `width` bytes. Source and target must not overlap.

        Args:
            target: Address of the first piece to write.
            target_stride: Bytes from one to the next.
            source: Address of the first piece to read.
            source_stride: Bytes from one to the next.
            width: Bytes of a piece.
            count: Number of pieces.
        """
        ...

    def settle(self) -> None:
        """Wait until the copies are done: a run may read what was copied only then."""
        ...


class _HostBlock:
    """Pages of their own, so that they can be given back piece by piece."""

    def __init__(self, size: int) -> None:
        if sys.platform == "linux":
            # Private, and promised to nobody until it is written: most of it never is.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
            self._pages = mmap.mmap(-1, size, flags=flags)
            if _MADV_NOHUGEPAGE is not None:
                # One huge page for each head of each layer would be written whole by the first token.
                self._advise(_MADV_NOHUGEPAGE, 0, size)
        else:
            self._pages = mmap.mmap(-1, size)
        self._size = size
        self.address = np.frombuffer(self._pages, dtype=np.uint8).ctypes.data

    def release(self, start: int, size: int) -> None:
        if _MADV_DONTNEED is None or sys.platform != "linux":
            return
        first, last = -(-start // PAGE) * PAGE, min(start + size, self._size) // PAGE * PAGE
        if first < last:
            self._advise(_MADV_DONTNEED, first, last - first)

    def _advise(self, advice: int, start: int, size: int) -> None:
        try:
            self._pages.madvise(advice, start, size)
        except OSError:  # a kernel without it: the memory is only less thrifty
            return


class HostMemory:
    """Memory of the host.

    Args:
        lazy: Count on it that memory takes no room before it is written; None: where the system is known to do so.
    """

    device = "cpu"
    index = 0

    def __init__(self, *, lazy: bool | None = None) -> None:
        self.lazy = sys.platform == "linux" if lazy is None else lazy

    def allocate(self, size: int) -> Block:  # noqa: D102 - see Memory
        try:
            return _HostBlock(max(1, size))
        except OSError as error:
            raise MemoryError(f"{size:,} bytes for caches: {error.strerror}") from None

    def copy(  # noqa: D102 - see Memory
        self, target: int, target_stride: int, source: int, source_stride: int, *, width: int, count: int
    ) -> None:
        for piece in range(count):
            ctypes.memmove(target + piece * target_stride, source + piece * source_stride, width)

    def settle(self) -> None:
        """Copies of the host are done when they return."""


class _DeviceBlock:
    def __init__(self, value: ort.OrtValue) -> None:
        self._value = value
        self.address = int(value.data_ptr())

    def release(self, start: int, size: int) -> None:
        """A GPU gives memory back as a whole."""


def _on_device(size: int, index: int) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_shape_and_type([size], np.uint8, "cuda", index)


class CudaMemory:
    """Memory of a GPU; what lies there is copied there, and never comes to the host.

    Args:
        runtime: CUDA's runtime library (`libcudart.so`).
        index: Number of the GPU.
        allocate: Gives `size` bytes on GPU `index` as an OrtValue.
    """

    device = "cuda"
    lazy = False

    def __init__(
        self, runtime: ctypes.CDLL, index: int = 0, *, allocate: Callable[[int, int], ort.OrtValue] = _on_device
    ) -> None:
        self.index = index
        self._runtime = runtime
        self._allocate = allocate

    def allocate(self, size: int) -> Block:  # noqa: D102 - see Memory
        try:
            return _DeviceBlock(self._allocate(max(1, size), self.index))
        except Exception as error:  # noqa: BLE001 - the binding raises types that share no base of its own
            raise ProviderLostError(
                "the GPU has no memory for the caches", expected=f"{size:,} bytes", found=str(error)[:200]
            ) from None

    def copy(  # noqa: D102 - see Memory
        self, target: int, target_stride: int, source: int, source_stride: int, *, width: int, count: int
    ) -> None:
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        self._call("cudaSetDevice", ctypes.c_int(self.index))
        self._call(
            "cudaMemcpy2D",
            pointer(target),
            size(target_stride),
            pointer(source),
            size(source_stride),
            size(width),
            size(count),
            ctypes.c_int(_DEVICE_TO_DEVICE),
        )

    def settle(self) -> None:  # noqa: D102 - see Memory
        # Copies within a GPU go on after the call, and ONNX Runtime's stream does not wait for the default one.
        self._call("cudaStreamSynchronize", ctypes.c_void_p(None))

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._runtime, function)(*arguments)
        if code != 0:
            raise ProviderLostError("the GPU did not copy a cache", found=f"CUDA error {code} of {function}")


def memory_of(provider: str, *, cuda: str = "", index: int = 0) -> Memory:
    """Where the caches of a session lie.

    Args:
        provider: The provider that runs the graph, in ONNX Runtime's spelling.
        cuda: CUDA version that ONNX Runtime was built for ("13.0").
        index: Number of the GPU.

    Raises:
        ProviderLostError: CUDA runs the graph, and its runtime library does not load.
    """
    if provider != "CUDAExecutionProvider":
        return HostMemory()
    name = f"libcudart.so.{cuda.partition('.')[0]}"
    try:
        return CudaMemory(ctypes.CDLL(name), index)
    except OSError as error:
        raise ProviderLostError("CUDA's runtime library does not load", where=name, found=str(error)[:200]) from None
