"""How fast decoders are on this machine: the time of a prompt, and tokens per second of one sequence.

As in `edgeonnx.evaluate.speed`, graphs that are to be compared are measured together, round by round in turn, and the
best round counts: noise only ever makes one slower.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.spec.timings import DecodingTiming

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgeonnx.model.decoder import HostDecoder

    Clock = Callable[[], float]

PROMPT_TOKENS = 128
NEW_TOKENS = 64
SECONDS = 1.0
MIN_ROUNDS = 2


def measure_decoding(
    decoders: Mapping[str, HostDecoder],
    prompt: Sequence[int],
    *,
    threads: int,
    tokens: int = NEW_TOKENS,
    seconds: float = SECONDS,
    clock: Clock = time.perf_counter,
) -> dict[str, DecodingTiming]:
    """Measure several graphs in turn, with the same prompt.

    Args:
        decoders: Graphs, opened with `threads` threads, by name.
        prompt: Token ids.
        threads: Threads of one run; it is reported, not set.
        tokens: Tokens that each graph then generates greedily.
        seconds: Time for each graph; `MIN_ROUNDS` rounds are always made, however long they take.
        clock: Seconds, from any start.

    Raises:
        ValidationError: A graph does not run.
    """
    names = list(decoders)
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for decoder in decoders.values():
        decoder.reserve(1, len(prompt) + tokens)
        _round(decoder, prompt, 1, clock)  # the first run of a shape allocates; it is no speed
    start = last = clock()
    while names:
        for name in names:
            took[name].append(_round(decoders[name], prompt, tokens, clock))
        now = clock()
        if len(took[names[0]]) >= MIN_ROUNDS and now - start + (now - last) > seconds * len(names):
            break
        last = now
        names = [*names[1:], names[0]]
    return {name: _timing(threads, len(prompt), tokens, took[name]) for name in decoders}


def _round(decoder: HostDecoder, prompt: Sequence[int], tokens: int, clock: Clock) -> tuple[float, float]:
    """Seconds of the prompt, and of all steps together."""
    start = clock()
    logits = decoder.extend(0, prompt, 0)[-1]
    middle = clock()
    for place in range(len(prompt), len(prompt) + tokens):
        logits = decoder.step(np.array([int(logits.argmax())]), np.array([place]))[0]
    return middle - start, clock() - middle


def _timing(threads: int, prompt: int, tokens: int, rounds: Sequence[tuple[float, float]]) -> DecodingTiming:
    steps = max(min(seconds for _, seconds in rounds), 1e-9)  # a clock may be too coarse for a tiny graph
    return DecodingTiming(
        threads=threads,
        prompt_tokens=prompt,
        new_tokens=tokens,
        prompt_ms=min(seconds for seconds, _ in rounds) * 1e3,
        tokens_per_second=tokens / steps,
    )
