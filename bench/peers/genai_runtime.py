"""ORT GenAI on a folder with `genai_config.json`.

Run by `bench/decode.py`: `python genai_runtime.py FOLDER THREADS`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import onnxruntime_genai as genai

from bench.peers.decoding import Run, serve, timed


class GenAI:
    """One model; each prompt gets a generator of its own, as the library's examples do."""

    def __init__(self, folder: str, threads: int) -> None:
        config = genai.Config(folder)
        options = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = genai.Model(config)

    def generate(self, prompts: Sequence[Sequence[int]], count: int) -> Run:
        """One prompt."""
        [prompt] = prompts
        return timed(self._tokens(list(prompt), count))

    def _tokens(self, prompt: list[int], count: int) -> Iterator[int]:
        parameters = genai.GeneratorParams(self._model)
        length = len(prompt) + count
        # A least length is how this library ignores stop tokens.
        parameters.set_search_options(do_sample=False, max_length=length, min_length=length)
        generator = genai.Generator(self._model, parameters)
        generator.append_tokens(prompt)
        for _ in range(count):
            generator.generate_next_token()
            yield int(generator.get_next_tokens()[0])

    def caches(self) -> int:
        """It does not say."""
        return 0

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Not asked for: its graphs are those of the other rows."""
        raise NotImplementedError


if __name__ == "__main__":
    serve(lambda: GenAI(sys.argv[1], int(sys.argv[2])))
