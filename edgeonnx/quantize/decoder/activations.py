"""What the matrices of a decoder read on real text."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from edgeonnx.errors import QuantizationError
from edgeonnx.model.runtime import open_graph
from edgeonnx.spec.generation import INPUT_IDS, LOGITS, MASK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edgeonnx.model.graph import StoredGraph

    Float = NDArray[np.float32]

MOST_BYTES = 1 << 30
"""Memory for the rows that are kept of all sites together."""
MOST_TOKENS = 256
"""Tokens of a run: its activations are all in memory at once."""
ALL_TOKENS = 3072
"""Tokens that are run in all; of more text, every second or third text is read."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Activations:
    """What the matrices of one site read.

    Attributes:
        largest: Largest magnitude per channel, over all tokens: float32 (inputs,).
        rows: A sample of tokens, float32 (rows, inputs).
    """

    largest: Float
    rows: Float


def observe(graph: StoredGraph, sources: Sequence[str], texts: Sequence[Sequence[int]]) -> dict[str, Activations]:
    """Run the float graph and look at some of its tensors.

    Args:
        graph: A decoder of the contract.
        sources: Names of the tensors, float32 (batch, sequence, width).
        texts: Token ids.

    Returns:
        Activations by name. One thread computes them, so that a machine with more cores sums alike.

    Raises:
        QuantizationError: There is not a single token.
    """
    pieces = _pieces(texts)
    if not pieces:
        raise QuantizationError("there is no text to calibrate on", expected="at least one token")
    largest: dict[str, Float] = {}
    rows: dict[str, list[Float]] = {name: [] for name in sources}
    with tempfile.TemporaryDirectory(prefix="edgeonnx-") as folder:
        run = open_graph(_with_outputs(graph, sources).write(Path(folder)), None, threads=1)
        step: int | None = None
        for piece in pieces:
            inputs = _caches(graph, 1) | {INPUT_IDS: np.array([piece]), MASK: np.ones((1, len(piece)), dtype=np.int64)}
            found = run(inputs)
            if step is None:
                row_bytes = sum(found[name].shape[-1] * 4 for name in sources)
                step = max(1, -(-sum(map(len, pieces)) * row_bytes // MOST_BYTES))
            for name in sources:
                seen = found[name][0]
                most = np.abs(seen).max(axis=0)
                largest[name] = np.maximum(largest[name], most) if name in largest else most
                rows[name].append(seen[::step].copy())
            del found
    return {name: Activations(largest=largest[name], rows=np.concatenate(rows.pop(name))) for name in list(sources)}


def _pieces(texts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Texts cut to `MOST_TOKENS`, up to `ALL_TOKENS` in all."""
    pieces: list[list[int]] = []
    left = ALL_TOKENS
    for text in texts[:: max(1, sum(map(len, texts)) // ALL_TOKENS)]:
        for start in range(0, len(text), MOST_TOKENS):
            piece = list(text[start : start + MOST_TOKENS])[:left]
            if piece:
                pieces.append(piece)
            left -= len(piece)
    return pieces


def _with_outputs(graph: StoredGraph, names: Sequence[str]) -> StoredGraph:
    """The graph with other outputs: these tensors alone."""
    model = onnx.ModelProto.FromString(graph.model)
    del model.graph.output[:]
    for name in names:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return replace(graph, model=model.SerializeToString(deterministic=True))


def _caches(graph: StoredGraph, rows: int) -> dict[str, Float]:
    """Empty caches, as the graph takes them."""
    found = {}
    for spec in graph.signature.inputs:
        if spec.name not in (INPUT_IDS, MASK, LOGITS):
            heads, size = spec.shape[1], spec.shape[3]
            assert isinstance(heads, int) and isinstance(size, int)  # noqa: S101, PT018 - the contract fixes them
            found[spec.name] = np.zeros((rows, heads, 0, size), dtype=np.float32)
    return found
