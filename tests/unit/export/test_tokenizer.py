"""The source's tokenizer, and the form in which it is shipped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer, Lowercase, Normalizer, Sequence
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import PreTrainedTokenizerFast

from edgeonnx.errors import CorruptSourceError, UnsupportedModelError
from edgeonnx.export.source import Source
from edgeonnx.export.tokenizer import check_vocabulary, load_tokenizer, read_tokenizer, tokenizer_document

VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "b": 5, "A": 6}


def save(folder: Path, normalizer: Normalizer | None, **options: object) -> Source:
    backend = Tokenizer(WordPiece(VOCABULARY, unk_token="[UNK]"))
    backend.normalizer = normalizer
    backend.pre_tokenizer = BertPreTokenizer()
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **{**names, **options}).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return Source(path=folder, identity="tiny", revision=None, config={"model_type": "bert"}, weights=())


@pytest.mark.parametrize(
    "options",
    [{"padding_side": "left"}, {"truncation_side": "left"}, {"pad_token": None}],
    ids=["padding on the left", "truncating on the left", "no padding token"],
)
def test_tokenizers_that_a_device_would_apply_differently_are_refused(tmp_path: Path, options: dict) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        load_tokenizer(save(tmp_path, BertNormalizer(), **options))
    assert "on the right" in str(caught.value.expected)
    assert "left" in str(caught.value.found) or "None" in str(caught.value.found)


def test_a_decoder_may_pad_on_the_left_or_not_at_all(tmp_path: Path) -> None:
    source = save(tmp_path, BertNormalizer(), padding_side="left", pad_token=None)
    assert read_tokenizer(source).pad_token_id is None


def test_a_tokenizer_is_read_from_where_its_files_were_put(tmp_path: Path) -> None:
    source = save(tmp_path / "files", BertNormalizer())
    elsewhere = replace(source, path=tmp_path)
    assert read_tokenizer(elsewhere, tmp_path / "files").pad_token_id == VOCABULARY["[PAD]"]
    with pytest.raises(CorruptSourceError):
        read_tokenizer(elsewhere)


def test_a_tokenizer_that_cannot_be_read_is_corrupt(tmp_path: Path) -> None:
    source = save(tmp_path, None)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unheard"}}')
    with pytest.raises(CorruptSourceError, match="cannot be read"):
        load_tokenizer(source)


@pytest.mark.parametrize(
    ("normalizer", "adds"),
    [
        (None, True),
        (BertNormalizer(lowercase=False), True),
        (BertNormalizer(lowercase=True), False),
        (Lowercase(), False),
        (Sequence([BertNormalizer(lowercase=False), Lowercase()]), False),
    ],
    ids=["no normalizer", "cased BERT", "uncased BERT", "Lowercase", "a sequence with Lowercase"],
)
def test_lower_casing_is_added_where_it_is_missing(tmp_path: Path, normalizer: Normalizer | None, adds: bool) -> None:
    tokenizer = load_tokenizer(save(tmp_path, normalizer))
    before = json.loads(tokenizer_document(tokenizer, lowercase=False))["normalizer"]
    after = tokenizer_document(tokenizer, lowercase=True)
    assert (json.loads(after)["normalizer"] != before) is adds
    assert Tokenizer.from_str(after.decode()).encode("A").tokens == ["a"]
    assert tokenizer.tokenize("A") == ["a"]  # what parity compares with is changed, too


def test_the_document_neither_pads_nor_truncates(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(tmp_path, None))
    tokenizer(["a", "a b"], padding=True, truncation=True, max_length=1)
    document = json.loads(tokenizer_document(tokenizer, lowercase=False))
    assert document["padding"] is None
    assert document["truncation"] is None


def test_lower_casing_before_an_uncased_bert_normalizer_changes_no_character() -> None:
    plain = BertNormalizer(lowercase=True)
    doubled = Sequence([Lowercase(), plain])
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    changed = [c for c in characters if plain.normalize_str(f"a{c}b") != doubled.normalize_str(f"a{c}b")]
    assert changed == []


def test_ids_beyond_the_embedding_table_are_refused(tmp_path: Path) -> None:
    source = save(tmp_path, None)
    check_vocabulary(source, load_tokenizer(source), rows=7)
    with pytest.raises(CorruptSourceError, match="beyond the model's embedding table"):
        check_vocabulary(source, load_tokenizer(source), rows=6)
