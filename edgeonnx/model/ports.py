"""What validation needs of a source model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    IntTensors = dict[str, NDArray[np.int64]]
    FloatTensors = dict[str, NDArray[np.float32]]


class SourceModel(Protocol):
    """A source model that answers: texts to its own tokens, tokens to its own outputs."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the graph's inputs."""

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the graph's outputs."""

    def tokenize(self, texts: Sequence[str], pairs: Sequence[str] | None) -> list[IntTensors]:
        """Each row by itself, as the source's own tokenizer gives it: int64 (1, tokens) by input name."""

    def run(self, inputs: IntTensors) -> FloatTensors:
        """int64 (rows, tokens) by input name to float32 by output name."""


class SourceDecoder(Protocol):
    """A source model that generates text."""

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, with the special tokens that the source's own tokenizer adds."""

    def logits(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """int64 (rows, tokens), no padding, to float32 (rows, tokens, vocabulary)."""

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """The `count` tokens that the source's own greedy generation puts after a prompt; stop tokens are ignored."""
