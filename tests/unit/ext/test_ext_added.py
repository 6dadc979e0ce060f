"""Added tokens: places of random ones in random texts against the `tokenizers` library, and what is refused."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from edgeonnx_ext import AddedToken, UnknownTokenizerError, WordPieceModel
from edgeonnx_ext._word_chars import WHITESPACE, is_word
from edgeonnx_ext.reference.added import next_added, sections
from edgeonnx_ext.sections import read_added_tokens
from tokenizers import AddedToken as LibraryToken
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from tests.support.texts import minilm_tokenizer_json

CHARS = "ab<>[ \u3000é_1.中\U0001f600\u00a0\t"
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def random_text(rng: random.Random, most: int) -> str:
    return "".join(rng.choice(CHARS) for _ in range(rng.randint(0, most)))


def random_tokens(rng: random.Random, flags: tuple[str, ...]) -> list[LibraryToken]:
    contents = [random_text(rng, 3) or "<x>" for _ in range(rng.randint(1, 5))]
    off = {"normalized": False}
    return [LibraryToken(content, **{**off, **{flag: rng.random() < 0.4 for flag in flags}}) for content in contents]


def random_texts(rng: random.Random, tokens: list[LibraryToken]) -> list[str]:
    def piece() -> str:
        return rng.choice([random_text(rng, 2), rng.choice(tokens).content])

    return ["".join(piece() for _ in range(6)) for _ in range(8)]


def test_places_are_those_of_the_library() -> None:
    """Both sets; without a pre-tokenizer and with an empty vocabulary, what is no added token is one unknown token."""
    rng = random.Random(20)
    read = 0
    for _ in range(400):
        tokenizer = Tokenizer(WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
        tokenizer.add_tokens(random_tokens(rng, FLAGS))
        try:
            tokens = read_added_tokens(json.loads(tokenizer.to_str()), {"[UNK]": 0}, normalizer=False)
        except UnknownTokenizerError:
            continue
        read += 1
        groups = [[token for token in tokens if token.normalized is normalized] for normalized in (False, True)]
        for text in random_texts(rng, random_tokens(rng, FLAGS) + [LibraryToken(token.content) for token in tokens]):
            expected = tokenizer.encode(text)
            found = [
                inner
                for start, end, token_id in sections(groups[0], text)
                for inner in ([(start, end, token_id)] if token_id else sections(groups[1], text, start, end))
            ]
            assert [(start, end) for start, end, _ in found] == expected.offsets, (text, tokens)
            assert [token_id or 0 for _, _, token_id in found] == expected.ids, (text, tokens)
    assert read > 200


def test_a_tokenizer_finds_them_where_the_library_does(twin: SimpleNamespace) -> None:
    rng = random.Random(21)
    read = 0
    for _ in range(12 if twin.kind == "compiled" else 4):
        tokenizer = Tokenizer.from_str(minilm_tokenizer_json().decode())
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokens = random_tokens(rng, FLAGS[:3])
        tokenizer.add_tokens(tokens)
        try:
            model = WordPieceModel.from_tokenizer_json(tokenizer.to_str().encode())
        except UnknownTokenizerError:
            continue
        read += 1
        kernel = twin.WordPieceTokenizer(model)
        texts = random_texts(rng, tokens)
        tokenized = kernel.tokenize(texts, offsets=True)
        ids = np.zeros((tokenized.rows, tokenized.width), dtype=np.int64)
        spans = np.zeros((*ids.shape, 2), dtype=np.int64)
        tokenized.write_into(ids, offsets=spans)
        fast = np.zeros_like(ids)
        kernel.tokenize(texts).write_into(fast)
        np.testing.assert_array_equal(fast, ids)
        for row, encoding in enumerate(tokenizer.encode_batch(texts)):
            assert ids[row, : len(encoding.ids)].tolist() == encoding.ids, (texts[row], model.added_tokens)
            assert list(map(tuple, spans[row, : len(encoding.ids)].tolist())) == encoding.offsets, texts[row]
    assert read > 2


def rows_of(kernel: Any, texts: list[str]) -> list[list[int]]:
    tokenized = kernel.tokenize(texts)
    ids = np.zeros((tokenized.rows, tokenized.width), dtype=np.int64)
    tokenized.write_into(ids)
    return [ids[row, :length].tolist() for row, length in enumerate(tokenized.lengths)]


def test_the_leftmost_wins_and_then_the_longest(twin: SimpleNamespace) -> None:
    tokenizer = Tokenizer.from_str(minilm_tokenizer_json().decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.add_special_tokens(["<a", "<ab", "b>c", "<abé>", "  ", "\u0158x", "\0z"])
    kernel = twin.WordPieceTokenizer(WordPieceModel.from_tokenizer_json(tokenizer.to_str().encode()))
    texts = ["<ab>c", "<a b>c", "x<abé>y", "<abe\u0301>", "<<a<ab>", "a  b   c", "<AB", "b>c<a", "<ab" * 9]
    texts += ["Xx \u0158x \u0258x", "a\0z\0", "<", "<ab"]
    assert rows_of(kernel, texts) == [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def test_a_single_first_character_is_searched_for_in_every_kind_of_text(twin: SimpleNamespace) -> None:
    tokenizer = Tokenizer.from_str(minilm_tokenizer_json().decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    kernel = twin.WordPieceTokenizer(WordPieceModel.from_tokenizer_json(minilm_tokenizer_json()))
    texts = [f"a{filler}[MASK]{filler}[MAS [{filler}[SEP]" for filler in ("b", "é", "中", "\U0001f600", "\u015b")]
    assert rows_of(kernel, texts) == [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def test_a_discarded_match_hides_what_overlaps_it() -> None:
    tokens = [AddedToken(content="ab", token_id=1, single_word=True), AddedToken(content="bc", token_id=2)]
    assert next_added(tokens, "xabc", 0, 4) is None
    assert next_added(tokens, "x abc", 0, 5) is None
    assert next_added(tokens, "xbc", 0, 3) is not None


def test_flags_decide_in_the_tokenizer_too(twin: SimpleNamespace) -> None:
    tokenizer = Tokenizer.from_str(minilm_tokenizer_json().decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    single = [LibraryToken("ab", single_word=True, normalized=False), LibraryToken("bc", normalized=False)]
    strips = [LibraryToken("<l>", lstrip=True, normalized=False), LibraryToken("<r>", rstrip=True, normalized=False)]
    tokenizer.add_tokens(single + strips)
    kernel = twin.WordPieceTokenizer(WordPieceModel.from_tokenizer_json(tokenizer.to_str().encode()))
    texts = [
        "xabc",
        "x abc",
        "ab bc",
        "(ab)",
        "\u0301ab",
        "ab\u0301",
        "abab",
        "a <l> b",
        "a <r> \u2003 <l> b",
        "<r><l> ",
    ]
    tokenized = kernel.tokenize(texts, offsets=True)
    ids = np.zeros((tokenized.rows, tokenized.width), dtype=np.int64)
    spans = np.zeros((*ids.shape, 2), dtype=np.int64)
    tokenized.write_into(ids, offsets=spans)
    for row, encoding in enumerate(tokenizer.encode_batch(texts)):
        assert ids[row, : len(encoding.ids)].tolist() == encoding.ids, texts[row]
        assert list(map(tuple, spans[row, : len(encoding.ids)].tolist())) == encoding.offsets, texts[row]


def document(*tokens: dict[str, object]) -> dict[str, Any]:
    flags = {"special": False, **dict.fromkeys(FLAGS, False)}
    return {"added_tokens": [{"id": 1 + index, **flags, **token} for index, token in enumerate(tokens)]}


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([{"content": "x", "rstrip": True}, {"content": " y"}], "added token ' y' beside one with rstrip"),
        ([{"content": "\u2003", "rstrip": True}], "beside one with rstrip"),
        (
            [{"content": "x"}, {"content": "y", "normalized": True, "single_word": True}],
            "added token 'x' that is not normalized, beside one that is, with single_word",
        ),
        ([{"content": "x", "id": 2}], "'x' with id 2 at added_tokens.0., where tokenizers assigns 1"),
    ],
)
def test_what_needs_more_than_the_text_around_it_is_refused(tokens: list[dict[str, object]], reason: str) -> None:
    with pytest.raises(UnknownTokenizerError, match=reason):
        read_added_tokens(document(*tokens), {"[UNK]": 0}, normalizer=False)


def test_two_tokens_of_one_id_are_refused() -> None:
    """With a hole at 1 in the vocabulary, counting on from its size reaches an id that is taken."""
    with pytest.raises(UnknownTokenizerError, match="added tokens 'taken' and 'new' with the id 2"):
        read_added_tokens(
            document({"content": "taken", "id": 2}, {"content": "new", "id": 2}), {"a": 0, "taken": 2}, normalizer=False
        )


def test_normalized_tokens_need_a_model_without_normalizer() -> None:
    root = document({"content": "x", "normalized": True})
    assert read_added_tokens(root, {"a": 0}, normalizer=False)[0].normalized
    with pytest.raises(UnknownTokenizerError, match=r"'x' with normalized at added_tokens\[0\]"):
        read_added_tokens(root, {"a": 0}, normalizer=True)


def test_word_characters_and_whitespace() -> None:
    assert all(map(is_word, "aZ0_éж中\u0301\u200d٣"))
    assert not any(map(is_word, " .<-\u2003\U0001f600½"))
    assert len(WHITESPACE) == 25
    assert not {"\x1c", "\u200b", "\ufeff", "a"} & WHITESPACE


@pytest.mark.slow
def test_word_characters_are_those_of_the_installed_library() -> None:
    tool = Path(__file__).resolve().parents[3] / "ext" / "tools" / "make_word_chars.py"
    result = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
