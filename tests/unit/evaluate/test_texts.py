"""The user's texts: what is accepted, and that every refusal names the file and the line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edgeonnx.errors import UsageError
from edgeonnx.evaluate import texts as module
from edgeonnx.evaluate.texts import UserTexts, read_texts


def read(path: Path, *, takes_pairs: bool = False, limit: int = 1000) -> UserTexts:
    return read_texts(path, takes_pairs=takes_pairs, limit=limit)


def written(folder: Path, content: bytes | str, name: str = "texts.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(path: Path, *, takes_pairs: bool = False) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(path, takes_pairs=takes_pairs)
    assert str(path.name) in (caught.value.where or "")
    return caught.value


def jsonl(folder: Path, *rows: object) -> Path:
    return written(folder, "\n".join(json.dumps(row) for row in rows), "texts.jsonl")


def test_plain_lines(tmp_path: Path) -> None:
    content = "\ufeffeins\r\n\r\n  \nzwei \u2028 drei\n  vier  "
    found = read(written(tmp_path, content))
    assert found == UserTexts(
        origin="texts.txt", texts=("eins", "zwei \u2028 drei", "  vier  "), pairs=None, labels=None, total=3
    )


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSON", "a.ndjson"])
def test_the_suffix_tells_jsonl(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, '"one"\r\n{"text": "two"}\n\n{"text": "", "label": null}\n', name)
    assert read(path).texts == ("one", "two", "")
    assert read(written(tmp_path, '"one"')).texts == ('"one"',)


def test_labels_of_every_kind(tmp_path: Path) -> None:
    assert read(jsonl(tmp_path, {"text": "a", "label": "good"}, {"text": "b", "label": "bad"})).labels == (
        "good",
        "bad",
    )
    assert read(jsonl(tmp_path, {"text": "a", "label": 1}, {"text": "b", "label": 0.5})).labels == (1, 0.5)
    lists = jsonl(tmp_path, {"text": "a", "label": ["O", "B-PER"]}, {"text": "b", "label": []})
    assert read(lists).labels == (("O", "B-PER"), ())


def test_pairs(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"text": "q", "pair": "d"}, {"text": "r", "pair": ""})
    found = read(path, takes_pairs=True)
    assert found.texts == ("q", "r")
    assert found.pairs == ("d", "")


def test_a_sample_is_spread_evenly_and_keeps_the_order_and_the_labels(tmp_path: Path) -> None:
    path = jsonl(tmp_path, *({"text": f"t{index}", "label": index} for index in range(10)))
    found = read(path, limit=4)
    assert found.texts == ("t0", "t2", "t5", "t7")
    assert found.labels == (0, 2, 5, 7)
    assert found.total == 10
    assert read(path, limit=10).texts == tuple(f"t{index}" for index in range(10))


def test_the_path_must_be_a_file(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.txt").message == "no such file"
    assert refused(tmp_path).message == "is a directory"
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe").message == "is not a regular file"
    with pytest.raises(UsageError):
        read(tmp_path / "a\0b")


@pytest.mark.parametrize("content", [b"", b"\n\r\n  \n", b"\xef\xbb\xbf\n"])
def test_empty(tmp_path: Path, content: bytes) -> None:
    assert refused(written(tmp_path, content)).message == "holds no text"


def test_another_encoding_names_the_byte_the_line_and_the_way_out(tmp_path: Path) -> None:
    error = refused(written(tmp_path, "gut\nüber\nschön".encode("latin-1")))
    assert (error.where or "").endswith("texts.txt, line 2")
    assert error.found == "the byte 0xfc at place 1 of the line"
    assert "iconv -f WINDOWS-1252 -t UTF-8" in (error.hint or "")


@pytest.mark.parametrize(("codec", "name"), [("utf-16", "UTF-16LE"), ("utf-16-be", "UTF-16BE")])
def test_utf16_with_a_mark(tmp_path: Path, codec: str, name: str) -> None:
    content = "hello".encode(codec) if codec == "utf-16" else b"\xfe\xff" + "hello".encode(codec)
    error = refused(written(tmp_path, content))
    assert "byte order mark" in (error.found or "")
    assert f"iconv -f {name}" in (error.hint or "")


def test_a_nul_byte_names_its_line(tmp_path: Path) -> None:
    error = refused(written(tmp_path, b"one\ntw\0o"))
    assert (error.where or "").endswith("line 2")
    assert error.found == "a NUL byte"


def test_a_file_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1 << 20)
    assert refused(written(tmp_path, b"a" * ((1 << 20) + 1))).expected == "at most 1 MB"
    assert read(written(tmp_path, b"a" * (1 << 20))).total == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "is not JSON"),
        ("plain words", "is not JSON"),
        ('{"text": "a", "label": NaN}', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("12", "is no text"),
        ('["a"]', "is no text"),
        ("null", "is no text"),
        ("{}", "lacks the field text"),
        ('{"label": 1}', "lacks the field text"),
        ('{"text": null}', "text is no string"),
        ('{"text": 5}', "text is no string"),
        ('{"text": "a", "labels": "good"}', "has an unknown field"),
        ('{"text": "\\ud83d"}', "text holds half a surrogate pair, which is no character"),
        ('"\\udc00"', "text holds half a surrogate pair, which is no character"),
        ('{"text": "a", "pair": 1}', "pair is no string"),
        ('{"text": "a", "pair": "b"}', "has a second text, and the task takes one"),
        ('{"text": "a", "label": true}', "label is of an unknown kind"),
        ('{"text": "a", "label": {"a": 1}}', "label is of an unknown kind"),
        ('{"text": "a", "label": ["B", 1]}', "label is of an unknown kind"),
        ('{"text": "a", "label": 1e999}', "label is too large"),
        ('{"text": "a", "label": 1' + "0" * 400 + "}", "label is too large"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    error = refused(written(tmp_path, f'"good"\n\n{line}\n', "texts.jsonl"))
    assert error.message == message
    assert (error.where or "").endswith("texts.jsonl, line 3")


def test_a_missing_pair(tmp_path: Path) -> None:
    error = refused(jsonl(tmp_path, {"text": "a", "pair": "b"}, {"text": "c"}), takes_pairs=True)
    assert error.message == "lacks the second text"
    assert (error.where or "").endswith("line 2")
    assert "line 1" in (refused(written(tmp_path, "plain"), takes_pairs=True).where or "")


@pytest.mark.parametrize("labelled_first", [True, False])
def test_labels_on_some_rows_only(tmp_path: Path, labelled_first: bool) -> None:
    rows = [{"text": "a", "label": 1}, {"text": "b"}]
    error = refused(jsonl(tmp_path, *(rows if labelled_first else rows[::-1])))
    assert error.message == "some rows have a label and some have none"
    assert (error.where or "").endswith("line 2" if labelled_first else "line 1")


@pytest.mark.parametrize("second", [1, ["good"]])
def test_labels_of_different_kinds(tmp_path: Path, second: object) -> None:
    error = refused(jsonl(tmp_path, {"text": "a", "label": "good"}, {"text": "b", "label": second}))
    assert error.message == "the labels are of different kinds"
    assert error.expected == "a class name, as in line 1"
    assert (error.where or "").endswith("line 2")
