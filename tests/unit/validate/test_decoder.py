"""Parity of decoders: the right graph passes, and each way of being wrong is found and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeonnx.errors import ParityError
from edgeonnx.model.decoder import HostDecoder
from edgeonnx.model.runtime import open_session
from edgeonnx.validate.decoder import DecoderParity, check_decoder
from tests.support.decoders import VOCABULARY
from tests.support.tiny_source import TinySource

CONTEXT = 256
_rng = np.random.default_rng(1)
ROWS = [_rng.integers(0, 250, size).tolist() for size in (300, 80, 64, 70, 12, 3)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TinySource:
    return TinySource(tmp_path_factory.mktemp("source"))


def check(
    source: TinySource, kind: type[HostDecoder] = HostDecoder, context: int = CONTEXT, rows: Sequence[list[int]] = ROWS
) -> DecoderParity:
    decoder = kind(open_session(source.path, None, threads=1), source.facts.cache)
    return check_decoder(source, decoder, rows, context_length=context, show=lambda ids: f"<{list(ids)}>")


def test_the_right_graph_passes_and_every_kind_of_run_was_made(source: TinySource) -> None:
    found = check(source)
    assert found.scaled_diff < 1e-5
    assert found.positions["one by one"] == 64
    assert found.positions["in pieces"] == 64
    assert found.positions["long row"] == 256, "as long as the context allows"
    assert found.positions["side by side"] > 4 * 16
    assert (found.answers, found.answer_tokens, found.near_ties) == (3, 3 * 64, 0)
    assert found.to_dict()["greedy_tokens"] == 192


def test_a_short_context_and_short_texts_are_enough(source: TinySource) -> None:
    found = check(source, context=10, rows=[[5, 6, 7, 8], [9]])
    assert found.answer_tokens == 6 + 9


class LatePositions(HostDecoder):
    """Every token after the prompt stands one place too far: as if a prompt's padding had counted."""

    def step(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        return super().step(ids, lengths + 1)


class ForgetfulPieces(HostDecoder):
    """A continuation does not see what stands before it."""

    def extend(self, row: int, ids: Sequence[int], start: int) -> NDArray[np.float32]:
        return super().extend(row, ids, 0)


class OneRowOnly(HostDecoder):
    """All rows of a step are taken for as long as the longest."""

    def step(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        return super().step(ids, np.full_like(lengths, lengths.max()))


class PaddingSeen(HostDecoder):
    """Padding counts as tokens, so it moves what a shorter row gives."""

    def prompts(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        found = super().prompts(ids, mask)
        found[mask.sum(axis=1) < ids.shape[1]] *= 1.01
        return found


class NotANumber(HostDecoder):
    """One logit of a long prompt is not a number."""

    def extend(self, row: int, ids: Sequence[int], start: int) -> NDArray[np.float32]:
        found = super().extend(row, ids, start)
        if len(ids) > 100:
            found[7, 3] = np.nan
        return found


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (LatePositions, "one by one, text 1, token 2 of 256"),
        (ForgetfulPieces, "in pieces, text 2, token 6 of 64"),
        (OneRowOnly, "side by side"),
        (PaddingSeen, "padded"),
        (NotANumber, "alone, text 1, token 8 of 256"),
    ],
)
def test_each_way_of_being_wrong_is_found(source: TinySource, kind: type[HostDecoder], where: str) -> None:
    with pytest.raises(ParityError) as caught:
        check(source, kind)
    assert (caught.value.where or "").startswith(where)
    assert "most probable" in str(caught.value.found)
    assert caught.value.details[0].startswith("after: ")


class Rewritten(TinySource):
    """A source whose own answer has another token at one place."""

    change: Callable[[list[int]], list[int]]

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        return self.change(super().generate(ids, count))


def test_another_word_in_an_answer_is_found(tmp_path: Path) -> None:
    source = Rewritten(tmp_path)
    source.change = lambda tokens: [*tokens[:9], (tokens[9] + 1) % len(VOCABULARY), *tokens[10:]]
    with pytest.raises(ParityError, match="in other words") as caught:
        check(source)
    assert caught.value.where == "greedy answer to the beginning of text 1, token 14"
    assert "which the source puts" in str(caught.value.found)


class Tied(TinySource):
    """A source for which two tokens are equally probable, always, and which takes the second."""

    twin = VOCABULARY["the"]

    def logits(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        found = super().logits(ids)
        if ids.shape[1] < 30:  # where an answer is decided, and nothing else is compared
            found[..., self.twin] = found.max(axis=-1) - 1e-6
        return found

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        first = super().generate(ids, 1)
        row = [*ids, self.twin]
        return [self.twin, *super().generate(row, count - 1)] if first[0] != self.twin else super().generate(ids, count)


def test_a_near_tie_is_told_and_does_not_fail(tmp_path: Path) -> None:
    found = check(Tied(tmp_path), rows=[row for row in ROWS if len(row) > 30])
    assert found.near_ties > 0
