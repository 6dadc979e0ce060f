from __future__ import annotations

import pytest

from device_agent.config import GenerationConfig
from device_agent.models.caches import CacheBudget, CacheNeeds
from device_agent.models.memory import Room
from edgeonnx.errors import MemoryBudgetError
from edgeonnx.spec.generation import CacheShape, Generation

SHAPE = CacheShape(layers=2, heads=1, head_size=4)
EACH = 2 * 2 * 1 * 4 * 4
"""Bytes of one token."""
STEP = 256
ROW = STEP * EACH


def needs(context: int = 1024, *, itemsize: int = 4, **config: object) -> CacheNeeds:
    return CacheNeeds(
        generation=Generation(cache=SHAPE, context_length=context, stop_ids=()),
        itemsize=itemsize,
        step=STEP,
        config=GenerationConfig(**config),  # type: ignore[arg-type]
    )


def left(free: int | None) -> Room:
    return Room(free=free, reason="there is no more")


def test_all_sequences_at_their_longest_where_memory_is_plenty() -> None:
    found = needs(max_sequences=3)
    assert found.most == 3 * 4 * ROW
    for room in (left(None), left(1 << 40)):
        assert found.budget(room, "m") == CacheBudget(limit=found.most, context_length=1024)
    assert needs(itemsize=2, max_sequences=3).most == found.most // 2


def test_places_are_counted_as_they_are_allocated() -> None:
    assert needs(context=257, max_sequences=1).most == 2 * ROW
    assert needs(context=256, max_sequences=1).most == ROW


def test_half_of_what_is_left_otherwise() -> None:
    assert needs().budget(left(20 * ROW), "m") == CacheBudget(limit=10 * ROW, context_length=1024)


def test_where_even_one_sequence_is_too_long_sequences_are_shorter_and_the_reason_is_told() -> None:
    found = needs().budget(left(5 * ROW), "m")
    assert (found.limit, found.context_length) == (5 * ROW // 2, 512)
    assert "there is no more" in found.reason


def test_one_short_sequence_may_take_more_than_half() -> None:
    assert needs().budget(left(ROW), "m").context_length == 256
    with pytest.raises(MemoryBudgetError, match="do not fit") as caught:
        needs().budget(left(ROW - 1), "m")
    assert caught.value.found == f"{ROW:,} bytes for 256 tokens of {EACH:,} bytes each"


def test_the_context_that_the_operator_wants_is_not_cut() -> None:
    wanted = needs(max_context=600)
    assert wanted.least == 3 * ROW
    assert wanted.budget(left(3 * ROW), "m").context_length == 600
    with pytest.raises(MemoryBudgetError, match="for 600 tokens"):
        wanted.budget(left(3 * ROW - 1), "m")
    assert needs(context=300, max_context=600).budget(left(None), "m").context_length == 300


def test_what_the_operator_gives_the_caches() -> None:
    given = needs(cache_bytes=6 * ROW)
    assert given.budget(left(7 * ROW), "m") == CacheBudget(limit=6 * ROW, context_length=1024)
    assert needs(cache_bytes=1 << 50, max_sequences=1).budget(left(None), "m").limit == 4 * ROW
    with pytest.raises(MemoryBudgetError, match="beside the weights"):
        given.budget(left(6 * ROW - 1), "m")
    short = needs(cache_bytes=2 * ROW + 5).budget(left(None), "m")
    assert (short.context_length, short.reason) == (512, f"generation.cache_bytes is {2 * ROW + 5:,}")
    with pytest.raises(MemoryBudgetError, match=r"generation\.cache_bytes"):
        needs(cache_bytes=ROW - 1).budget(left(None), "m")


def test_a_model_of_a_short_context_needs_no_more_than_that() -> None:
    assert needs(context=32).least_context == 32
    assert needs(context=32).budget(left(ROW), "m").context_length == 32
