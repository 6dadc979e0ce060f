from __future__ import annotations

import numpy as np
import pytest

from device_agent.inference.queue.batching import MOST_WIDTHS, Piece, WaitingRows


def queue_of(*requests: list[int], call_tokens: int = 12) -> WaitingRows:
    waiting = WaitingRows(call_tokens=call_tokens)
    for key, lengths in enumerate(requests):
        waiting.add(key, np.array(lengths, dtype=np.int64))
    return waiting


def rows_of(pieces: list[Piece]) -> dict[int, list[int]]:
    return {piece.key: piece.rows for piece in pieces}


def test_an_empty_queue_gives_nothing() -> None:
    assert WaitingRows().take(512) == []


def test_one_row() -> None:
    waiting = queue_of([7])
    assert waiting.take(512) == [Piece(0, [0], 7, 7)]
    assert (waiting.rows, waiting.tokens, len(waiting)) == (0, 0, 0)
    assert waiting.take(512) == []


def test_rows_of_one_length_come_in_order_of_arrival() -> None:
    waiting = queue_of(*([10] for _ in range(5)))
    assert [list(rows_of(waiting.take(20))) for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_rows_of_similar_length_come_together() -> None:
    waiting = queue_of([10], [40], [11], [41], [9])
    assert sorted(rows_of(waiting.take(512))) == [0, 2, 4]
    assert sorted(rows_of(waiting.take(512))) == [1, 3]


def test_the_nearest_rows_come_first() -> None:
    waiting = queue_of([10], [8], [9], [10])
    assert sorted(rows_of(waiting.take(30))) == [0, 2, 3]


def test_the_oldest_row_comes_although_others_suit_each_other_better() -> None:
    waiting = queue_of([200], *([20] for _ in range(30)))
    assert rows_of(waiting.take(512)) == {0: [0]}


def test_a_row_longer_than_the_budget_is_a_batch_of_its_own() -> None:
    waiting = queue_of([900], [900])
    assert rows_of(waiting.take(512)) == {0: [0]}
    assert rows_of(waiting.take(512)) == {1: [0]}


def test_longer_rows_come_in_where_they_make_the_batch_cheaper() -> None:
    # Alone, the oldest row would be a batch of 10 tokens and a call; ten rows of 12 share the call.
    waiting = queue_of([10], *([12] for _ in range(10)))
    assert len(rows_of(waiting.take(512))) == 11


def test_longer_rows_stay_out_where_shorter_ones_fill_the_batch() -> None:
    waiting = queue_of([10], *([12] for _ in range(60)), *([10] for _ in range(60)))
    assert {piece.width for piece in waiting.take(512)} == {10}


def test_much_longer_rows_stay_out() -> None:
    waiting = queue_of([10], *([14] for _ in range(10)))
    assert rows_of(waiting.take(512)) == {0: [0]}


def test_where_calls_are_dear_padding_is_cheap() -> None:
    waiting = queue_of([10], *([14] for _ in range(10)), call_tokens=400)
    assert len(rows_of(waiting.take(512))) == 11


def test_rows_of_one_request_are_split_over_batches_and_listed_in_ascending_order() -> None:
    waiting = queue_of([5, 30, 6, 31, 5, 29])
    first, second = waiting.take(512), waiting.take(512)
    assert first == [Piece(0, [1, 3, 5], 31, 90)]
    assert second == [Piece(0, [0, 2, 4], 6, 16)]


def test_a_piece_tells_its_width_and_tokens() -> None:
    waiting = queue_of([10, 9], [10])
    assert waiting.take(512) == [Piece(0, [0, 1], 10, 19), Piece(1, [0], 10, 10)]


def test_removed_rows_do_not_come() -> None:
    waiting = queue_of([10, 30], [10], [10])
    waiting.take(30)  # 30 of request 0
    waiting.remove(0)
    waiting.remove(1)
    assert (waiting.rows, waiting.tokens, len(waiting)) == (1, 10, 1)
    assert rows_of(waiting.take(512)) == {2: [0]}


def test_removing_what_does_not_wait_changes_nothing() -> None:
    waiting = queue_of([10])
    waiting.remove(9)
    assert waiting.rows == 1
    waiting.take(512)
    waiting.remove(0)
    assert (waiting.rows, waiting.tokens) == (0, 0)


def test_idle_runners_share_a_request() -> None:
    waiting = queue_of([20] * 20)
    assert [len(waiting.take(512, runners=2, least=64)[0].rows), waiting.rows] == [10, 10]
    assert len(waiting.take(512, runners=1, least=64)[0].rows) == 10


def test_a_small_request_is_not_shared() -> None:
    waiting = queue_of([20] * 3)
    assert len(waiting.take(512, runners=2, least=64)[0].rows) == 3


def test_a_share_is_never_empty() -> None:
    waiting = queue_of([50], [50])
    assert rows_of(waiting.take(512, runners=4, least=1)) == {0: [0]}


@pytest.mark.parametrize("count", [1, 1000])
def test_the_number_of_widths_that_are_weighed_is_bounded(count: int) -> None:
    # Each longer row would be worth it: with a call that costs as much as this, all padding is.
    waiting = queue_of([10], *([11 + row] for row in range(count)), call_tokens=1 << 20)
    assert max(piece.width for piece in waiting.take(1 << 20)) <= 10 + MOST_WIDTHS
