"""I/O binding: one place that tells ONNX Runtime where inputs lie and where outputs go.

What goes wrong with binding elsewhere decides the rules here:

- An input that lies on the host is copied to the device when it is *bound*, so a buffer that is filled again must be
  bound again (onnxruntime#10992). Every run binds everything anew.
- A binding keeps the outputs of its last run; with another batch size they would come back, or be written past their
  end (#10299, #10103). Every run clears the binding first, and an output is bound to memory of exactly its shape.
- A buffer that is larger than the batch shows rows of an earlier one (#8144). Memory is reused, arrays are not: each
  run sees a view of exactly its shape, and its outputs are copied out before the next run may write there.
- A binding belongs to one thread.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnxruntime as ort
    from numpy.typing import NDArray

    Array = NDArray[np.generic]
    Allocate = Callable[[int], NDArray[np.uint8]]

HOST = "cpu"
_ALIGNMENT = 64
_FLAGS = 0


class Described(Protocol):
    """An input or output as ONNX Runtime describes it: a size, a symbol, or None for each dimension."""

    name: str
    shape: Sequence[int | str | None]


def pageable(size: int) -> NDArray[np.uint8]:
    """Ordinary memory."""
    return np.empty(size, dtype=np.uint8)


class PinnedMemory:
    """Memory of the host that a GPU reads and writes by itself, so that a copy needs no step between.

    Args:
        runtime: CUDA's runtime library (`libcudart.so`).
    """

    def __init__(self, runtime: ctypes.CDLL) -> None:
        self._runtime = runtime

    def __call__(self, size: int) -> NDArray[np.uint8]:
        """Allocate; ordinary memory where the driver gives none. The memory is freed with the last array on it."""
        pointer = ctypes.c_void_p()
        code = self._runtime.cudaHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(size), _FLAGS)
        if code != 0 or not pointer.value:
            return pageable(size)
        block = (ctypes.c_uint8 * size).from_address(pointer.value)
        weakref.finalize(block, self._runtime.cudaFreeHost, ctypes.c_void_p(pointer.value))
        return np.ctypeslib.as_array(block)


def host_memory(cuda: str) -> Allocate:
    """How to allocate memory for a GPU's inputs and outputs.

    Args:
        cuda: CUDA version that ONNX Runtime was built for ("13.0"); empty: there is no GPU.
    """
    if not cuda:
        return pageable
    try:
        return PinnedMemory(ctypes.CDLL(f"libcudart.so.{cuda.partition('.')[0]}"))
    except OSError:
        return pageable


def output_shape(
    output: Sequence[int | str | None], inputs: Sequence[tuple[Sequence[int | str | None], Sequence[int]]]
) -> tuple[int, ...] | None:
    """The shape of an output, if the shapes of the inputs tell it.

    Args:
        output: Its dimensions as the graph describes them.
        inputs: For each input its dimensions as the graph describes them, and its shape in this run.

    Returns:
        The shape, or None if a symbol is unknown, or stands for different sizes.
    """
    sizes: dict[str, int] = {}
    for described, shape in inputs:
        for symbol, size in zip(described, shape, strict=False):
            if isinstance(symbol, str) and sizes.setdefault(symbol, size) != size:
                return None
    found = [dim if isinstance(dim, int) else sizes.get(dim or "") for dim in output]
    return tuple(size for size in found if size is not None) if None not in found else None


class Buffers:
    """Memory that is reused from run to run: for each name one block, as large as the largest array so far."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._blocks: dict[str, NDArray[np.uint8]] = {}

    def view(self, name: str, dtype: np.dtype[np.generic], shape: Sequence[int]) -> Array:
        """An array of exactly this shape on the block of that name; what stands in it is undefined."""
        size = math.prod(shape) * dtype.itemsize
        block = self._blocks.get(name)
        if block is None or block.nbytes < size:
            # Powers of two: a slowly growing batch must not allocate at every step.
            block = self._blocks[name] = self._allocate(max(_ALIGNMENT, 1 << (size - 1).bit_length()))
        return block[:size].view(dtype).reshape(shape)

    @property
    def nbytes(self) -> int:
        """Memory that the blocks take."""
        return sum(block.nbytes for block in self._blocks.values())


class Binding:
    """The I/O binding of a session in one thread.

    Args:
        session: The session.
        allocate: Allocates memory of the host; see `host_memory`.
    """

    def __init__(self, session: ort.InferenceSession, allocate: Allocate = pageable) -> None:
        self._session = session
        self._io = session.io_binding()
        self._buffers = Buffers(allocate)
        self._inputs: dict[str, Described] = {node.name: node for node in session.get_inputs()}
        self._outputs: dict[str, tuple[Described, np.dtype[np.generic] | None]] = {
            node.name: (node, _dtype(node.type)) for node in session.get_outputs()
        }

    def run(self, inputs: Mapping[str, Array], names: Sequence[str], options: ort.RunOptions) -> list[Array]:
        """Run the graph.

        Args:
            inputs: The inputs by name: numbers, not strings, and none of them empty.
            names: The outputs to compute.
            options: Options of the run.

        Returns:
            The outputs in the order of `names`. The caller owns them.

        Raises:
            Exception: Whatever ONNX Runtime raises.
        """
        io = self._io
        io.clear_binding_inputs()
        io.clear_binding_outputs()
        for name, array in inputs.items():
            view = self._buffers.view(f"in {name}", array.dtype, array.shape)
            np.copyto(view, array)
            io.bind_input(name, HOST, 0, array.dtype.type, array.shape, view.ctypes.data)
        bound = [self._bind_output(name, inputs) for name in names]
        io.synchronize_inputs()
        self._session.run_with_iobinding(io, options)
        io.synchronize_outputs()
        if all(view is not None for view in bound):
            return [view.copy() for view in bound if view is not None]
        return list(io.copy_outputs_to_cpu())

    def _bind_output(self, name: str, inputs: Mapping[str, Array]) -> Array | None:
        """Bind an output to memory of its shape, or let ONNX Runtime allocate it if the shape is not known."""
        described, dtype = self._outputs[name]
        shape = output_shape(
            described.shape,
            [(self._inputs[key].shape, array.shape) for key, array in inputs.items() if key in self._inputs],
        )
        if dtype is None or shape is None or 0 in shape:
            self._io.bind_output(name, HOST)
            return None
        view = self._buffers.view(f"out {name}", dtype, shape)
        self._io.bind_output(name, HOST, 0, dtype.type, shape, view.ctypes.data)
        return view


_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def _dtype(described: str) -> np.dtype[np.generic] | None:
    """NumPy's type for ONNX Runtime's (`tensor(float)`); None if NumPy has none (strings, bfloat16, sequences)."""
    name = _DTYPES.get(described.removeprefix("tensor(").removesuffix(")"))
    return None if name is None else np.dtype(name)


def bindable(inputs: Mapping[str, Array]) -> bool:
    """Whether inputs can be bound: ONNX Runtime binds no strings, and an empty array has no memory."""
    return all(array.dtype.kind in "biuf" and array.size > 0 for array in inputs.values())
