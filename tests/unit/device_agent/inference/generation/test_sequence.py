from __future__ import annotations

from edgeonnx_ext import Decoder, DecoderModel, DecodeStream

from device_agent.inference.generation.request import Delta
from device_agent.inference.generation.sampling import Choice
from device_agent.inference.generation.sequence import Answer
from tests.support import decoders
from tests.support.decoders import END_OF_TURN, VOCABULARY, encode

DECODER = Decoder(DecoderModel.from_tokenizer_json(decoders.tokenizer_json()))


def answer(*stops: str, tell: bool = True) -> Answer:
    return Answer(DecodeStream(DECODER), stops, tell=tell)


def run(found: Answer, ids: list[int]) -> list[Delta]:
    """All pieces, as a sequence makes them: it ends at a stop text."""
    pieces = []
    for token in ids:
        pieces.append(found.push(Choice(token, -float(token))))
        if found.stopped:
            break
    return [piece for piece in [*pieces, found.finish()] if piece is not None]


def shown(pieces: list[Delta]) -> list[tuple[str, list[int]]]:
    return [(piece.text, [token.token for token in piece.tokens]) for piece in pieces]


def test_a_character_of_several_tokens_comes_whole_with_all_of_them() -> None:
    ids = encode("a€b")
    assert len(ids) == 5
    assert shown(run(answer(), ids)) == [("a", ids[:1]), ("€", ids[1:4]), ("b", ids[4:])]


def test_bytes_that_never_become_a_character_come_at_the_end_as_one_that_says_so() -> None:
    ids = encode("a€")[:-1]
    assert shown(run(answer(), ids)) == [("a", ids[:1]), ("\ufffd", ids[1:])]


def test_tokens_tell_where_their_text_begins() -> None:
    pieces = run(answer(), encode("the €cat"))
    told = [(token.offset, token.logprob) for piece in pieces for token in piece.tokens]
    assert [offset for offset, _ in told] == [0, 3, 4, 4, 4, 5]
    assert told[0][1] == -float(VOCABULARY["the"])


def test_a_stop_text_is_not_in_the_answer_and_nor_are_its_tokens() -> None:
    ids = encode("the cat dog")
    assert encode(" cat") == ids[1:3]
    assert shown(run(answer("at d"), ids)) == [("the", ids[:1]), (" ", ids[1:2]), ("c", []), ("", ids[2:3])]


def test_a_token_that_a_stop_text_cuts_comes_with_what_is_left_of_it() -> None:
    ids = encode("xing.")
    assert DECODER.decode(ids[1:2]) == "ing"
    assert shown(run(answer("ng"), ids)) == [("x", ids[:1]), ("i", ids[1:2])]


def test_a_token_that_was_held_back_and_cut_later_is_told_at_the_end() -> None:
    ids = encode("xing.")
    assert shown(run(answer("ng."), ids)) == [("x", ids[:1]), ("i", []), ("", ids[1:2])]


def test_what_looked_like_a_stop_text_comes_with_its_tokens() -> None:
    ids = encode("xing,")
    assert shown(run(answer("ng."), ids)) == [("x", ids[:1]), ("i", []), ("ng,", ids[1:])]


def test_special_tokens_have_no_text_and_a_token_that_the_tokenizer_lacks_has_none_either() -> None:
    ids = [*encode("a"), VOCABULARY[END_OF_TURN], len(VOCABULARY) + 5, *encode("b")]
    pieces = run(answer(tell=False), ids)
    assert shown(pieces) == [("a", []), ("b", [])]


def test_without_log_probabilities_nothing_is_kept_of_tokens() -> None:
    assert shown(run(answer(tell=False), encode("a€"))) == [("a", []), ("€", [])]
