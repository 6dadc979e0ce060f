from __future__ import annotations

import numpy as np
import pytest

from device_agent.inference.generation.planning import MIN_REUSE, Copy, Move, Table, Trim, chunk_of, common


def table(**changes: object) -> Table[str]:
    """Three sequences, five rows, 1,000 tokens, counted one by one."""
    known = {"active": 3, "rows": 5, "budget": 1000, "lazy": True, "rounded": lambda tokens: tokens}
    return Table(**{**known, **changes})  # type: ignore[arg-type]


def tokens(*values: int, size: int = 20) -> np.ndarray:
    """A sequence that begins with these, then counts on."""
    return np.array([*values, *range(1000 + values[-1], 1000 + values[-1] + size - len(values))], dtype=np.int64)


def run(rows: Table[str], owner: str, first: int, *, length: int = 20, promise: int = 100) -> list[Move]:
    """A sequence begins, and its prompt is read."""
    assert rows.can_begin(promise)
    _, moves = rows.begin(owner, tokens(first, size=length), length, promise)
    rows[rows.running].length = length
    rows.join()
    return moves


def owners(rows: Table[str]) -> list[str | None]:
    return [None if row is None else row.owner or "idle" for row in rows]


@pytest.mark.parametrize(
    ("remaining", "expected"), [(1, [1]), (2, [2]), (64, [64]), (65, [65]), (66, [64, 2]), (129, [64, 65])]
)
def test_a_prompt_is_never_cut_so_that_one_token_is_left(remaining: int, expected: list[int]) -> None:
    found = []
    while remaining:
        found.append(chunk_of(remaining, 64))
        remaining -= found[-1]
    assert found == expected


def test_what_two_sequences_have_in_common() -> None:
    assert common(tokens(1, 2, 3), tokens(1, 2, 4)) == 2
    assert common(tokens(1, 2, 3), tokens(1, 2, 3)) == 20
    assert common(tokens(1, 2, 3), tokens(1, 2, 3)[:2]) == 2
    assert common(tokens(1), tokens(2)) == 0
    assert common(tokens(1), tokens(2)[:0]) == 0


def test_sequences_take_rows_one_after_the_other() -> None:
    rows = table()
    assert [run(rows, name, index) for index, name in enumerate("abc")] == [[], [], []]
    assert owners(rows) == ["a", "b", "c", None, None]
    assert not rows.can_begin(1), "three are the most"


def test_only_one_prompt_is_read_at_a_time() -> None:
    rows = table()
    rows.begin("a", tokens(1), 20, 100)
    assert not rows.can_begin(1)


def test_the_last_one_moves_into_a_hole_and_what_stood_there_is_kept() -> None:
    rows = table()
    for index, name in enumerate("abc"):
        run(rows, name, index)
    assert rows.leave(0) == [Copy(0, 3, 20), Copy(2, 0, 20), Trim(2, 0)]
    assert owners(rows) == ["c", "b", None, "idle", None]


def test_the_last_one_leaves_without_a_copy() -> None:
    rows = table()
    run(rows, "a", 1)
    run(rows, "b", 2)
    assert rows.leave(1) == []
    assert owners(rows) == ["a", "idle", None, None, None]


def test_the_row_that_is_being_read_follows() -> None:
    rows = table()
    run(rows, "a", 1)
    run(rows, "b", 2)
    rows.begin("c", tokens(3), 20, 100)
    rows[2].length = 8
    assert rows.leave(0, keep=False) == [Copy(1, 0, 20), Copy(2, 1, 8), Trim(2, 0)]
    assert owners(rows)[:3] == ["b", "c", None]
    assert rows.filling is rows[1]


def test_a_prompt_that_is_given_up_stays_as_a_beginning_for_others() -> None:
    rows = table()
    rows.begin("a", tokens(3), 20, 100)
    rows[0].length = 16
    assert rows.leave(0) == []
    assert rows.begin("b", tokens(3), 20, 100) == (16, [Trim(0, 16)])


def test_what_failed_is_not_kept() -> None:
    rows = table()
    run(rows, "a", 1)
    assert rows.leave(0, keep=False) == [Trim(0, 0)]
    assert owners(rows) == [None] * 5


def test_a_prompt_takes_over_a_row_that_begins_alike() -> None:
    rows = table()
    run(rows, "a", 1)
    rows.leave(0)
    assert rows.begin("b", tokens(1, size=40), 40, 100) == (20, [Trim(0, 20)])


def test_two_tokens_at_least_are_left_to_read() -> None:
    rows = table()
    run(rows, "a", 1)
    rows.leave(0)
    assert rows.begin("b", tokens(1), 20, 100) == (18, [Trim(0, 18)])


def test_a_running_row_is_copied_from() -> None:
    rows = table()
    run(rows, "a", 1)
    assert rows.begin("b", tokens(1, size=15), 15, 100) == (13, [Copy(0, 1, 13)])


def test_a_row_of_which_little_is_common_is_set_aside_and_copied_from() -> None:
    rows = table()
    run(rows, "a", 1, length=50)
    rows.leave(0)
    other = np.concatenate([tokens(1, size=10), tokens(7)])
    reused, moves = rows.begin("b", other, len(other), 100)
    assert (reused, moves) == (10, [Copy(0, 1, 50), Trim(0, 0), Copy(1, 0, 10)])
    assert owners(rows)[:2] == ["b", "idle"]


def test_too_few_tokens_are_not_worth_a_copy() -> None:
    rows = table()
    run(rows, "a", 1)
    other = np.concatenate([tokens(1, size=MIN_REUSE - 1), tokens(7)])
    assert rows.begin("b", other, len(other), 100) == (0, [])


def test_without_reuse_nothing_is_kept() -> None:
    rows = table(reuse=False)
    run(rows, "a", 1)
    assert rows.leave(0) == [Trim(0, 0)]
    assert rows.begin("b", tokens(1), 20, 100) == (0, [])


def test_idle_rows_are_given_up_for_memory_the_oldest_first() -> None:
    rows = table(budget=140)
    for index, name in enumerate("abc"):
        run(rows, name, index, promise=40)
    for _ in range(3):
        rows.leave(rows.running - 1)  # c, then b, then a
    assert owners(rows) == ["idle", "idle", "idle", None, None]
    _, moves = rows.begin("d", tokens(9), 20, 100)
    assert Trim(2, 0) in moves, "c left first"
    assert rows.tokens <= 140


def test_a_sequence_waits_while_the_memory_is_promised() -> None:
    rows = table(budget=150)
    run(rows, "a", 1, promise=100)
    assert not rows.can_begin(51)
    assert rows.can_begin(50)
    rows.leave(0)
    assert rows.can_begin(150), "what is idle is given up"


def test_a_promise_grows_while_there_is_memory() -> None:
    rows = table(budget=150)
    run(rows, "a", 1, promise=60)
    run(rows, "b", 2, promise=60)
    assert rows.grow(0, 90) == []
    assert rows.grow(1, 61) is None
    rows.leave(0)
    assert rows.grow(0, 130) is not None, "b has row 0 now, and a's is given up"
    assert rows.tokens <= 150


def test_rows_that_are_all_as_long_count_whole() -> None:
    rows = table(lazy=False, budget=400, rounded=lambda tokens: -(-tokens // 100) * 100)
    run(rows, "a", 1, promise=50)
    assert rows.tokens == 100
    assert not rows.can_begin(201), "two rows of 300 are too much"
    assert rows.can_begin(200)
    run(rows, "b", 2, promise=200)
    assert rows.tokens == 400
    assert not rows.can_begin(1)


def test_rows_beyond_the_memory_are_given_up_when_rows_become_longer() -> None:
    rows = table(lazy=False, budget=400, rounded=lambda tokens: -(-tokens // 100) * 100)
    for index, name in enumerate("abc"):
        run(rows, name, index, promise=50)
    rows.leave(2)
    rows.leave(1)
    moves = rows.grow(0, 150)
    assert moves == [Trim(2, 0)], "two rows of 200 are the most"
    assert rows.tokens <= 400
