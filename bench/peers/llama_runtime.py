"""llama.cpp on a GGUF file, through llama-cpp-python's low-level calls: the least that its Python binding costs.

Run by `bench/decode.py` in llama.cpp's own environment: `python llama_runtime.py FILE THREADS`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import llama_cpp
import numpy as np

from bench.peers.decoding import Run, serve, timed

CONTEXT = 1024


class Llama:
    """llama.cpp with one sequence."""

    def __init__(self, file: str, threads: int) -> None:
        self._model = llama_cpp.Llama(
            file, n_ctx=CONTEXT, n_batch=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self._context = self._model.ctx
        self._batch = llama_cpp.llama_batch_init(CONTEXT, 0, 1)

    def generate(self, prompts: Sequence[Sequence[int]], count: int) -> Run:
        """One prompt."""
        [prompt] = prompts
        self._forget()
        return timed(self._tokens(list(prompt), count))

    def _tokens(self, tokens: list[int], count: int) -> Iterator[int]:
        at = 0
        for _ in range(count):
            row = self._run(tokens, at, every=False)[-1]
            at += len(tokens)
            tokens = [int(row.argmax())]
            yield tokens[0]

    def caches(self) -> int:
        """It does not say."""
        return 0

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """At every position of one text, without a cache."""
        self._forget()
        return self._run(list(ids), 0, every=True).copy()

    def _forget(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def _run(self, tokens: list[int], at: int, *, every: bool) -> np.ndarray:
        """float32 (tokens or 1, vocabulary): a view of the runtime's memory."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens):
            batch.token[place] = token
            batch.pos[place] = at + place
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = 0
            batch.logits[place] = every or place == len(tokens) - 1
        if code := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode failed with {code}")
        rows = len(tokens) if every else 1
        vocabulary = self._model.n_vocab()
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), shape=(rows, vocabulary))


if __name__ == "__main__":
    serve(lambda: Llama(sys.argv[1], int(sys.argv[2])))
