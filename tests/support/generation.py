"""Generators on tiny decoders for tests, sinks that collect what a client is told, and sessions that fail when told."""

from __future__ import annotations

import ctypes
import functools
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from device_agent.inference.generation.generator import Generator, Handle
from device_agent.inference.generation.memory import Block, CudaMemory, HostMemory
from device_agent.inference.generation.request import Delta, Event, Failed, Finished, GenerationRequest, TokenLogprob
from device_agent.inference.generation.state import GeneratorLimits
from device_agent.inference.generation.text import GenerationText
from device_agent.inference.session import Session
from edgeonnx.errors import EdgeOnnxError
from edgeonnx.spec.generation import Generation
from edgeonnx.spec.manifest import TextProcessing
from tests.support import decoders
from tests.support.decoders import TinyDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from edgeonnx.errors import ProviderLostError

TINY = TinyDecoder()
SECONDS = 30.0
"""Longest that a test waits for an answer of a few milliseconds, on a machine that is busy."""


class Client:
    """A sink that keeps what it is told, and may do something at its n-th token.

    Args:
        at: What to do, in the generator's thread, when so many tokens were told.
    """

    def __init__(self, at: Mapping[int, Callable[[], object]] | None = None) -> None:
        self.events: list[Event] = []
        self.threads: set[int] = set()
        self._at: dict[int, list[Callable[[], object]]] = {}
        for count, action in (at or {}).items():
            self.at(count, action)
        self._done = threading.Event()

    def __call__(self, told: Sequence[Event]) -> None:
        before = len(self.tokens)
        self.events += told
        self.threads.add(threading.get_ident())
        for count in range(before + 1, len(self.tokens) + 1):
            for action in self._at.get(count, ()):
                action()
        if not isinstance(told[-1], Delta):
            self._done.set()

    def at(self, count: int, action: Callable[[], object]) -> None:
        """Do something more when so many tokens were told."""
        self._at.setdefault(count, []).append(action)

    def wait(self) -> Client:
        """Wait for the last event."""
        assert self._done.wait(SECONDS), "no last event came"
        return self

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def told(self) -> list[TokenLogprob]:
        """The tokens with their log probabilities."""
        return [token for event in self.events if isinstance(event, Delta) for token in event.tokens]

    @property
    def tokens(self) -> list[int]:
        return [token.token for token in self.told]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Delta))

    @property
    def finished(self) -> Finished:
        assert isinstance(self.events[-1], Finished), self.events[-1]
        return self.events[-1]

    @property
    def error(self) -> EdgeOnnxError:
        assert isinstance(self.events[-1], Failed), self.events[-1]
        return self.events[-1].error


class DenseMemory(HostMemory):
    """Memory of the host that takes room at once, as a GPU's does."""

    def __init__(self) -> None:
        super().__init__(lazy=False)


class TornMemory(HostMemory):
    """Memory of the host of which the first copy fails."""

    torn = False

    def settle(self) -> None:
        if not self.torn:
            self.torn = True
            raise OSError("a copy failed")


class ScarceMemory(HostMemory):
    """Memory of the host where no process may have many addresses."""

    def allocate(self, size: int) -> Block:
        if size > 1 << 20:
            raise MemoryError(f"{size:,} bytes for caches: Cannot allocate memory")
        return super().allocate(size)


class FakeOrtValue:
    """Memory of a GPU that is none."""

    def __init__(self, size: int) -> None:
        self.content = np.full(size, 0xEE, dtype=np.uint8)

    def data_ptr(self) -> int:
        return int(self.content.ctypes.data)


class FakeCudart:
    """The one function of CUDA's runtime that is used, with its checks: every byte is of a known allocation."""

    def __init__(self) -> None:
        self.values: list[FakeOrtValue] = []
        self.copies = 0
        self.calls: list[str] = []
        self.code = 0

    def allocate(self, size: int, index: int) -> FakeOrtValue:
        assert index == 1
        if size > 1 << 24:
            raise RuntimeError("CUDA failure 2: out of memory")
        self.values.append(FakeOrtValue(size))
        return self.values[-1]

    def cudaMemcpy2D(  # noqa: N802 - CUDA's name
        self, target: ctypes.c_void_p, pitch: ctypes.c_size_t, source: ctypes.c_void_p, source_pitch: ctypes.c_size_t,
        width: ctypes.c_size_t, height: ctypes.c_size_t, kind: ctypes.c_int,
    ) -> int:  # fmt: skip
        assert kind.value == 3, "not from the device to the device"
        assert width.value <= min(pitch.value, source_pitch.value)
        self.copies += 1
        self.calls.append("copy")
        for piece in range(height.value):
            to, origin = (target.value or 0) + piece * pitch.value, (source.value or 0) + piece * source_pitch.value
            self._check(to, width.value)
            self._check(origin, width.value)
            ctypes.memmove(to, origin, width.value)
        return self.code

    def cudaSetDevice(self, index: ctypes.c_int) -> int:  # noqa: N802
        assert index.value == 1
        return 0

    def cudaStreamSynchronize(self, stream: ctypes.c_void_p) -> int:  # noqa: N802
        assert not stream.value
        self.calls.append("settle")
        return 0

    def _check(self, address: int, size: int) -> None:
        starts = [(value.data_ptr(), value.data_ptr() + value.content.nbytes) for value in self.values]
        assert any(start <= address and address + size <= end for start, end in starts), "outside of the memory"


def cuda_memory() -> tuple[CudaMemory, FakeCudart]:
    runtime = FakeCudart()
    return CudaMemory(runtime, 1, allocate=runtime.allocate), runtime  # type: ignore[arg-type]


class FaultySession(Session):
    """A session whose runs fail when told.

    Attributes:
        faults: Errors by the number of the run that raises them, from 0.
        runs: Runs so far.
    """

    faults: dict[int, EdgeOnnxError]
    runs = 0

    def run_bound(self, binding: object) -> None:
        number, self.runs = self.runs, self.runs + 1
        if number in self.faults:
            raise self.faults[number]
        super().run_bound(binding)


def open_session(folder: Path, tiny: TinyDecoder = TINY, kind: type[Session] = Session) -> Session:
    """A session of the agent on a tiny decoder."""
    path = folder / "model.onnx"
    if not path.exists():
        decoders.write_graph(folder, tiny)
    return kind(path, None, provider=decoders.CPU, threads=1)


@functools.cache
def text() -> GenerationText:
    """The tiny decoders' tokenizer."""
    processing = TextProcessing(tokenizer=f"sha256:{'0' * 64}/tokenizer.json", backend="bpe", max_length=256, pad_id=0)
    return GenerationText(decoders.tokenizer_json(), processing)


def make_generator(
    session: Session,
    tiny: TinyDecoder = TINY,
    *,
    stop_ids: tuple[int, ...] = (),
    replace: Callable[[ProviderLostError], Session] | None = None,
    memory: HostMemory | None = None,
    cache_tokens: int = 1 << 16,
    **limits: int | bool,
) -> Generator:
    """A generator on a tiny decoder, whose caches may take `cache_tokens` tokens; `limits` as `GeneratorLimits`."""
    generation = Generation(cache=tiny.cache, context_length=tiny.context, stop_ids=stop_ids)
    size = tiny.cache.bytes_per_token(2 if tiny.half else 4)
    wanted = GeneratorLimits(**{"context": tiny.context, "cache_bytes": cache_tokens * size, **limits})  # type: ignore[arg-type]
    return Generator(session, generation, text(), wanted, replace=replace, name="tiny", memory=memory)


def ask(generator: Generator, prompt: Iterable[int] | str, max_tokens: int = 16, **fields: object) -> Client:
    """Ask for an answer, with the log probability of each token; returns the client that waits for it."""
    client = Client()
    submit(generator, client, prompt, max_tokens, **fields)
    return client


def submit(
    generator: Generator, client: Client, prompt: Iterable[int] | str, max_tokens: int = 16, **fields: object
) -> Handle:
    """Ask for an answer on behalf of a client."""
    ids = decoders.encode(prompt) if isinstance(prompt, str) else prompt
    values = {"prompt": tuple(ids), "max_tokens": max_tokens, "top_logprobs": 0, **fields}
    return generator.submit(GenerationRequest(**values), client)  # type: ignore[arg-type]
