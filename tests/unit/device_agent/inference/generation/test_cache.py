from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from device_agent.inference.generation.cache import PLACES_STEP, Cache
from device_agent.inference.generation.memory import PAGE, HostMemory, Memory, memory_of
from edgeonnx.errors import ProviderLostError
from edgeonnx.spec.generation import CacheShape
from tests.support.generation import DenseMemory, cuda_memory

SHAPE = CacheShape(layers=2, heads=3, head_size=16)
FLOAT = np.dtype(np.float32)


def view(cache: Cache, block: int) -> np.ndarray:
    """A block as the array that a graph sees: (rows, heads, places, head size)."""
    size = (cache.rows, SHAPE.heads, cache.places, SHAPE.head_size)
    count = int(np.prod(size))
    kind = ctypes.c_float if cache.dtype == FLOAT else ctypes.c_uint16
    array = np.ctypeslib.as_array((kind * count).from_address(cache.addresses(0)[block]))
    return array.view(cache.dtype).reshape(size)


def fill(cache: Cache, row: int, length: int, value: int) -> None:
    for block in range(4):
        view(cache, block)[row, :, :length] = value + block
    cache.wrote(row, length)


MEMORIES: dict[str, Callable[[], Memory]] = {"host": HostMemory, "dense": DenseMemory, "cuda": lambda: cuda_memory()[0]}


@pytest.fixture(params=MEMORIES)
def memory(request: pytest.FixtureRequest) -> Memory:
    return MEMORIES[request.param]()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_keep_what_they_hold_when_the_caches_grow(memory: Memory, dtype: str) -> None:
    cache = Cache(SHAPE, np.dtype(dtype), memory)
    assert cache.reserve(2, 100)
    fill(cache, 0, 100, 1)
    fill(cache, 1, 7, 11)
    assert cache.reserve(3, cache.places + 1)
    for block in range(4):
        assert (view(cache, block)[0, :, :100] == 1 + block).all()
        assert (view(cache, block)[1, :, :7] == 11 + block).all()
    assert not cache.reserve(1, 1), "it never shrinks"


def test_a_row_is_copied_with_all_its_heads_and_layers_and_no_other_row_is_touched(memory: Memory) -> None:
    cache = Cache(SHAPE, FLOAT, memory)
    cache.reserve(3, 50)
    fill(cache, 0, 50, 1)
    fill(cache, 1, 50, 11)
    fill(cache, 2, 50, 21)
    cache.copy(0, 2, 30)
    for block in range(4):
        assert (view(cache, block)[2, :, :30] == 1 + block).all()
        assert (view(cache, block)[1, :, :50] == 11 + block).all()
        assert (view(cache, block)[0, :, :50] == 1 + block).all()


def test_neighbouring_rows_are_one_piece_of_memory(memory: Memory) -> None:
    cache = Cache(SHAPE, FLOAT, memory)
    cache.reserve(3, 50)
    row = SHAPE.heads * cache.places * SHAPE.head_size * 4
    assert [second - first for first, second in zip(cache.addresses(0), cache.addresses(1), strict=True)] == [row] * 4


def test_host_memory_takes_room_for_the_tokens_that_were_written() -> None:
    cache = Cache(SHAPE, FLOAT)
    cache.reserve(16, 1 << 16)  # 6 GiB of addresses
    assert cache.nbytes == 0
    before = resident()
    fill(cache, 3, 1000, 1)
    page = PAGE // 64
    assert cache.nbytes == -(-1000 // page) * page * SHAPE.bytes_per_token(4)
    assert resident() - before < cache.nbytes + (4 << 20)
    cache.trim(3, 100)
    assert cache.nbytes == -(-100 // page) * page * SHAPE.bytes_per_token(4)
    assert (view(cache, 0)[3, :, :100] == 1).all()
    assert (view(cache, 0)[3, :, 2 * page : 1000] == 0).all(), "the memory was given back"
    cache.trim(3)
    assert cache.nbytes == 0


def resident() -> int:
    """Bytes that this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_host_memory_is_of_small_pages() -> None:
    """A token would take a huge page in each head of each layer where the system gives them unasked."""
    cache = Cache(SHAPE, FLOAT)
    cache.reserve(4, 1 << 16)
    address = cache.addresses(0)[0]
    flags = ""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(" ")[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(bound, 16) for bound in first.split("-"))
            inside = start <= address < end
        elif inside and line.startswith("VmFlags"):
            flags = line
    assert " nh" in flags


def test_giving_a_row_back_leaves_its_neighbours_alone() -> None:
    cache = Cache(SHAPE, FLOAT)
    cache.reserve(3, 250)
    for row in range(3):
        fill(cache, row, 250, 10 * row + 1)
    cache.trim(1)
    for row in (0, 2):
        assert (view(cache, 3)[row, :, :250] == 10 * row + 4).all()


def test_a_copy_leaves_a_row_no_more_than_was_copied() -> None:
    cache = Cache(SHAPE, FLOAT)
    cache.reserve(2, 1000)
    fill(cache, 0, 100, 1)
    fill(cache, 1, 1000, 11)
    full = cache.nbytes
    cache.copy(0, 1, 100)
    assert cache.nbytes < full / 4


def test_memory_that_is_not_lazy_counts_whole() -> None:
    cache = Cache(SHAPE, FLOAT, DenseMemory())
    cache.reserve(2, 1)
    assert cache.places == PLACES_STEP
    assert cache.nbytes == 2 * PLACES_STEP * SHAPE.bytes_per_token(4)
    cache.clear()
    assert (cache.nbytes, cache.rows) == (0, 0)


def test_on_a_gpu_nothing_comes_to_the_host_and_one_call_copies_all_heads() -> None:
    memory, runtime = cuda_memory()
    cache = Cache(SHAPE, FLOAT, memory)
    cache.reserve(2, 10)
    cache.copy(0, 1, 10)
    assert runtime.calls == ["copy"] * 4 + ["settle"], "one for each layer and part, and a run may read them then"


def test_a_gpu_without_memory_is_lost() -> None:
    memory, _ = cuda_memory()
    with pytest.raises(ProviderLostError, match="no memory for the caches"):
        Cache(SHAPE, FLOAT, memory).reserve(1000, 1000)


def test_a_copy_that_a_gpu_refuses_is_told() -> None:
    memory, runtime = cuda_memory()
    cache = Cache(SHAPE, FLOAT, memory)
    cache.reserve(2, 10)
    runtime.code = 700
    with pytest.raises(ProviderLostError, match="CUDA error 700"):
        cache.copy(0, 1, 10)


def test_the_caches_lie_where_the_provider_works() -> None:
    assert memory_of("CPUExecutionProvider").device == "cpu"
    with pytest.raises(ProviderLostError, match=r"libcudart\.so\.99"):
        memory_of("CUDAExecutionProvider", cuda="99.1")
