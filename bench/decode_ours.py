"""What `bench/decode.py` measures of edgeonnx itself: the agent's generator on a bundle, and the bare loop beside it.

Run by it, each in a process of its own: `python decode_ours.py generator|bare BUNDLE VARIANT THREADS
spinning|blocking`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from bench.peers.decoding import Run, serve, timed
from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.inference.generation.request import Delta, Event, Failed, Finished, GenerationRequest
from device_agent.models.loaded import LoadedDecoder
from device_agent.models.loading import load_model
from edgeonnx.spec.generation import INPUT_IDS, LOGITS, MASK

PLACES = 256
CPU = "cpu"


def load(bundle: str, variant: str, threads: int, spinning: bool) -> LoadedDecoder:
    """Load the bundle as an agent does."""
    runtime = RuntimeConfig(threads=threads, variant=variant, spinning=spinning)
    loaded = load_model(Path(bundle), AgentConfig(runtime=runtime))
    assert isinstance(loaded, LoadedDecoder)
    return loaded


class Listener:
    """Takes the events of one answer."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.first = 0.0
        self.done = 0.0
        self.finished: Finished | None = None
        self.failed: Failed | None = None
        self.ended = threading.Event()

    def __call__(self, events: Sequence[Event]) -> None:
        """Called in the generator's thread."""
        now = time.perf_counter()
        for event in events:
            if isinstance(event, Delta):
                self.first = self.first or now
                self.text.append(event.text)
                continue
            self.done = now
            self.finished = event if isinstance(event, Finished) else None
            self.failed = event if isinstance(event, Failed) else None
            self.ended.set()


class Ours:
    """The agent's generator."""

    def __init__(self, bundle: str, variant: str, threads: int, spinning: bool) -> None:
        self._generator = load(bundle, variant, threads, spinning).generator

    def generate(self, prompts: Sequence[Sequence[int]], count: int) -> Run:
        """All prompts at once.

        The first token is there when its text arrives; the time of the rest begins when the generator says that it had
        it, as a token alone may spell no text yet.
        """
        begun = time.perf_counter()
        listeners = [Listener() for _ in prompts]
        for prompt, listener in zip(prompts, listeners, strict=True):
            asked = GenerationRequest(prompt=tuple(prompt), max_tokens=count, ignore_stop_ids=True)
            self._generator.submit(asked, listener)
        for listener in listeners:
            listener.ended.wait()
            if listener.failed is not None:
                raise listener.failed.error
        ends = [each.finished for each in listeners if each.finished is not None]
        if any(each.completion_tokens != count for each in ends):
            raise ValueError(f"{[each.completion_tokens for each in ends]} tokens instead of {count}")
        seconds = max(each.done for each in listeners) - begun
        first = min(each.queue_seconds + each.prompt_seconds for each in ends)
        return Run(
            first=min(each.first for each in listeners) - begun,
            rest=seconds - first,
            seconds=seconds,
            answers=["".join(each.text) for each in listeners],
        )

    def caches(self) -> int:
        """As the generator counts them."""
        return self._generator.state().cache_bytes

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Not asked for: the bundle's evidence has what it would tell."""
        raise NotImplementedError


class Bare:
    """The least that decoding on ONNX Runtime takes: caches and logits bound once, a run and an `argmax` a token.

    The session is the agent's own, so that graph, options and threads are equal.
    """

    def __init__(self, bundle: str, variant: str, threads: int, spinning: bool) -> None:
        loaded = load(bundle, variant, threads, spinning)
        generation = loaded.manifest.generation
        assert generation is not None
        self._keep = loaded
        self._cache = generation.cache
        self._session: ort.InferenceSession = loaded.engine.session.raw
        self._vocabulary = self._session.get_outputs()[0].shape[-1]
        size = (1, self._cache.heads, PLACES, self._cache.head_size)
        self._blocks = [np.zeros(size, dtype=np.float32) for _ in self._cache.past_names]
        self._io = self._session.io_binding()

    def generate(self, prompts: Sequence[Sequence[int]], count: int) -> Run:
        """One prompt."""
        [prompt] = prompts
        return timed(self._tokens(list(prompt), count))

    def _tokens(self, prompt: list[int], count: int) -> Iterator[int]:
        mask = np.ones((1, PLACES), dtype=np.int64)
        ids, logits = self._bind(np.array([prompt], dtype=np.int64))
        length = len(prompt)
        for done in range(count):
            self._io.bind_input(MASK, CPU, 0, np.int64, (1, length), mask.ctypes.data)
            self._session.run_with_iobinding(self._io)
            token = int(logits.argmax())
            yield token
            if done == 0:
                ids, logits = self._bind(np.zeros((1, 1), dtype=np.int64))
            ids[0, 0] = token
            length += 1

    def _bind(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bind everything but the mask; the token ids and the logits, which each run reads and writes."""
        self._io.clear_binding_inputs()
        self._io.clear_binding_outputs()
        self._io.bind_input(INPUT_IDS, CPU, 0, np.int64, ids.shape, ids.ctypes.data)
        names = zip(self._cache.past_names, self._cache.present_names, self._blocks, strict=True)
        for past, present, block in names:
            self._io.bind_input(past, CPU, 0, np.float32, block.shape, block.ctypes.data)
            self._io.bind_output(present, CPU, 0, np.float32, block.shape, block.ctypes.data)
        logits = np.zeros((1, 1, self._vocabulary), dtype=np.float32)
        self._io.bind_output(LOGITS, CPU, 0, np.float32, logits.shape, logits.ctypes.data)
        return ids, logits

    def caches(self) -> int:
        """Its blocks; the generator beside it has made none yet."""
        return sum(block.nbytes for block in self._blocks)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Not asked for."""
        raise NotImplementedError


if __name__ == "__main__":
    kind, arguments = sys.argv[1], (sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "spinning")
    serve(lambda: Ours(*arguments) if kind == "generator" else Bare(*arguments))
