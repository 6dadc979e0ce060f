"""The texts that ship, and which of them become the golden set."""

from __future__ import annotations

from edgeonnx.pipeline.texts import (
    GOLDEN_MAX_TOKENS,
    GOLDEN_ROWS,
    calibration_texts,
    golden_rows,
    pair_up,
    shipped_texts,
)


def test_the_shipped_texts_differ_in_what_a_tokenizer_can_get_wrong() -> None:
    texts = shipped_texts()
    assert len(texts) == len(set(texts)) >= 100
    joined = "".join(texts)
    ranges = {"latin": (0xC0, 0x17F), "cyrillic": (0x400, 0x4FF), "cjk": (0x4E00, 0x9FFF), "arabic": (0x600, 0x6FF)}
    for script, (first, last) in ranges.items():
        assert any(first <= ord(char) <= last for char in joined), script
    assert any(ord(char) > 0xFFFF for char in joined), "an emoji"
    assert any(char.isdigit() for char in joined)
    assert "" in texts or any(not text.strip() for text in texts) or min(map(len, texts)) <= 2
    assert max(map(len, texts)) > 1500


def test_the_order_of_the_texts_is_fixed() -> None:
    assert shipped_texts() == shipped_texts()


def test_each_text_gets_a_partner_and_never_itself() -> None:
    texts = shipped_texts()
    pairs = pair_up(texts)
    assert len(pairs) == len(texts)
    assert set(pairs) == set(texts)
    assert all(first != second for first, second in zip(texts, pairs, strict=True))


def test_golden_rows_spread_over_the_lengths() -> None:
    lengths = [2 + (index * 31) % 90 for index in range(100)]
    rows = golden_rows(lengths)
    chosen = sorted(lengths[row] for row in rows)
    assert len(rows) == len(set(rows)) == GOLDEN_ROWS
    assert (chosen[0], chosen[-1]) == (min(lengths), max(lengths))
    assert list(rows) == sorted(rows)


def test_long_rows_are_left_out() -> None:
    lengths = [GOLDEN_MAX_TOKENS + 1, 5, GOLDEN_MAX_TOKENS, 6]
    assert golden_rows(lengths) == (1, 2, 3)


def test_where_all_are_long_the_shortest_is_taken() -> None:
    assert golden_rows([300, 200, 400]) == (1,)


def test_no_calibration_text_is_a_text_that_is_compared() -> None:
    texts = calibration_texts()
    assert len(texts) == len(set(texts)) >= 200
    assert set(texts).isdisjoint(shipped_texts())
