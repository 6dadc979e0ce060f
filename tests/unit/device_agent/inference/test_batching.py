from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from device_agent.inference.batching import split_by_tokens


@given(st.lists(st.integers(1, 600), min_size=1, max_size=200), st.integers(1, 2000))
def test_every_row_is_in_one_group_and_no_group_exceeds_the_budget(lengths: list[int], budget: int) -> None:
    rows = np.array(lengths, dtype=np.int64)
    groups = split_by_tokens(rows, budget)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(rows)))
    for group in groups:
        assert len(group) == 1 or rows[group].max() * len(group) <= budget


def test_what_fits_stays_together_in_its_order() -> None:
    assert [group.tolist() for group in split_by_tokens(np.array([5, 1, 3]), 15)] == [[0, 1, 2]]


def test_rows_of_similar_length_come_together() -> None:
    groups = split_by_tokens(np.array([10, 1, 10, 1]), 20)
    assert [group.tolist() for group in groups] == [[1, 3], [0, 2]]


def test_rows_of_one_length_keep_their_order() -> None:
    groups = split_by_tokens(np.full(5, 4), 8)
    assert [group.tolist() for group in groups] == [[0, 1], [2, 3], [4]]


def test_a_row_longer_than_the_budget_is_alone() -> None:
    assert [group.tolist() for group in split_by_tokens(np.array([900, 2]), 100)] == [[1], [0]]
