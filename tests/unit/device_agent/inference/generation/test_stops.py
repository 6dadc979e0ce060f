from __future__ import annotations

import time

import pytest

from device_agent.inference.generation.stops import StopFilter


def through(stops: list[str], *pieces: str) -> tuple[list[str], bool]:
    """What comes out piece by piece, the rest last; and whether a stop text was found."""
    found = StopFilter(stops)
    out = [found.push(piece) for piece in pieces]
    return [*out, found.finish()], found.stopped


def test_without_stop_texts_everything_goes_through_at_once() -> None:
    assert through([], "ab", "c") == (["ab", "c", ""], False)


def test_text_that_may_begin_a_stop_text_is_held_back() -> None:
    assert through(["STOP"], "a ST", "O", "N") == (["a ", "", "STON", ""], False)


def test_what_is_held_back_comes_at_the_end() -> None:
    assert through(["STOP"], "a ST") == (["a ", "ST"], False)


def test_a_stop_text_over_several_pieces_is_cut_off() -> None:
    assert through(["STOP"], "a S", "TO", "P b", "c") == (["a ", "", "", "", ""], True)


def test_a_stop_text_inside_one_piece_cuts_it() -> None:
    assert through(["\n\n"], "one\n\ntwo\n\n") == (["one", ""], True)


def test_the_stop_text_that_is_whole_first_wins() -> None:
    assert through(["abcd", "bc"], "xabcd") == (["xa", ""], True)


def test_of_two_that_end_together_the_longest_is_cut_off() -> None:
    assert through(["cd", "abcd"], "xabcd") == (["x", ""], True)


def test_a_stop_text_that_ends_another_is_found_where_the_other_fails() -> None:
    assert through(["abab", "ba"], "aba") == (["a", ""], True)


def test_a_failed_beginning_may_hold_the_next_one() -> None:
    assert through(["aab"], "aa", "ab") == (["", "a", ""], True)


@pytest.mark.parametrize("stops", [["a" * 200 + "b"], ["a" * size + "b" for size in range(1, 60)]])
def test_its_time_grows_with_the_text_and_not_with_the_stop_texts(stops: list[str]) -> None:
    began = time.thread_time()
    found = StopFilter(stops)
    text = "".join(found.push("a" * 100) for _ in range(1000)) + found.finish()
    assert text == "a" * 100_000
    assert time.thread_time() - began < 2.0  # 0.05 s; with a comparison of each stop text it would be minutes
