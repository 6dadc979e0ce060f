"""The batches of parity: every row in every situation, none wider than the model takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeonnx.validate.layouts import LONG_ROW, plan_layouts

LIMITS = st.integers(2, 300)


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[int], int]:
    limit = draw(LIMITS)
    return draw(st.lists(st.integers(1, limit), min_size=1, max_size=80)), limit


@given(rows(), st.sampled_from([(1, 7, 32), (1, 2), (1, 5), (7, 32)]))
def test_every_row_is_in_every_situation(case: tuple[list[int], int], sizes: tuple[int, ...]) -> None:
    lengths, limit = case
    layouts = plan_layouts(lengths, max_length=limit, sizes=sizes)
    everything = set(range(len(lengths)))
    for item in layouts:
        assert item.rows
        assert len(set(item.rows)) == len(item.rows)
        assert max(lengths[row] for row in item.rows) <= item.width <= limit
        assert ("padded" in item.name) == any(lengths[row] < item.width for row in item.rows)
    alone = {row for item in layouts if item.name == "alone" for row in item.rows}
    assert alone == (everything if 1 in sizes else set())
    for size in sizes[1:]:
        short = {row for row in everything if lengths[row] <= LONG_ROW}
        named = [item for item in layouts if item.name.startswith(f"batch of {size}")]
        assert {row for item in named for row in item.rows} == short
    together = {row for item in layouts if "batch" in item.name for row in item.rows}
    assert together == everything
    padded = {row for item in layouts for row in item.rows if lengths[row] < item.width}
    assert padded == {row for row in everything if lengths[row] < limit}


@given(rows())
def test_a_plan_is_repeated_exactly(case: tuple[list[int], int]) -> None:
    lengths, limit = case
    assert plan_layouts(lengths, max_length=limit) == plan_layouts(tuple(lengths), max_length=limit)
