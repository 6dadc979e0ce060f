"""Which batches parity looks at."""

from __future__ import annotations

from edgeonnx.validate.layouts import EXTRA_PADDING, LONG_BATCH, LONG_ROW, plan_layouts


def test_every_row_runs_alone_and_unpadded() -> None:
    lengths = [3, 9, 5]
    alone = [item for item in plan_layouts(lengths, max_length=64) if item.name == "alone"]
    assert [(item.rows, item.width) for item in alone] == [((0,), 3), ((1,), 9), ((2,), 5)]


def test_batches_have_the_asked_sizes_and_every_row() -> None:
    lengths = [2 + index % 11 for index in range(40)]
    layouts = plan_layouts(lengths, max_length=64, sizes=(1, 7, 32))
    for size in (7, 32):
        batches = [item.rows for item in layouts if item.name.startswith(f"batch of {size}")]
        assert [len(rows) for rows in batches[:-1]] == [size] * (len(batches) - 1)
        assert [row for rows in batches for row in rows] == list(range(40))


def test_some_batches_go_beyond_their_longest_row_and_some_do_not() -> None:
    lengths = [2 + index % 11 for index in range(70)]
    extra = {
        item.width - max(lengths[row] for row in item.rows)
        for item in plan_layouts(lengths, max_length=64)
        if len(item.rows) > 1
    }
    assert extra == {0, EXTRA_PADDING}


def test_one_sorting_puts_rows_of_like_lengths_together() -> None:
    lengths = [(index * 37) % 50 + 2 for index in range(49)]
    ordered = [item for item in plan_layouts(lengths, max_length=64) if item.name.startswith("sorted batch of 7")]
    widest = [max(lengths[row] for row in item.rows) for item in ordered]
    assert widest == sorted(widest)
    assert sorted(row for item in ordered for row in item.rows) == list(range(49))


def test_long_rows_share_small_batches() -> None:
    lengths = [LONG_ROW + 1] * 5 + [4] * 5
    layouts = plan_layouts(lengths, max_length=256)
    together = [item for item in layouts if len(item.rows) > 1 and any(lengths[row] > LONG_ROW for row in item.rows)]
    assert [len(item.rows) for item in together] == [LONG_BATCH, 5 - LONG_BATCH]
    assert all(item.name.startswith("long batch") for item in together)


def test_no_batch_is_wider_than_the_model_takes() -> None:
    assert max(item.width for item in plan_layouts([8, 8, 3], max_length=8)) == 8


def test_rows_of_one_length_are_padded_too() -> None:
    layouts = plan_layouts([10] * 40, max_length=64)
    padded = {row for item in layouts for row in item.rows if item.width > 10}
    assert padded == set(range(40))


def test_rows_that_fill_the_model_are_not_padded() -> None:
    assert all("padded" not in item.name for item in plan_layouts([8] * 20, max_length=8))


def test_the_name_says_whether_there_is_padding() -> None:
    lengths = [2 + index % 11 for index in range(40)]
    for item in plan_layouts(lengths, max_length=64):
        assert ("padded" in item.name) == any(lengths[row] < item.width for row in item.rows)
