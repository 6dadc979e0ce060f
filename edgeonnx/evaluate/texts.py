"""The user's own texts, from `--texts FILE`: one text a line, or JSONL with pairs and labels.

A file of the wrong kind is refused before any model runs, with the line that is wrong: a text that was decoded wrongly
would be measured as if it were one of the user's.
"""

from __future__ import annotations

import codecs
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from edgeonnx.errors import UsageError, printable

if TYPE_CHECKING:
    from pathlib import Path

JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
FIELDS = ("text", "pair", "label")
MAX_BYTES = 64 << 20
"""Largest file that is read. Far more texts than are ever measured fit in it."""
MAX_NUMBER = 2**53
"""Bound on a label's magnitude: up to here every integer is exact as a double."""

Label = str | float | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class UserTexts:
    """Texts from a file.

    Attributes:
        origin: The file's name, for the evidence.
        texts: The texts, in the file's order.
        pairs: The second text of each, for tasks that take two; otherwise None.
        labels: The label of each: class names, numbers (class indices or values), or a list of class names each; None
            if the file has none.
        total: Number of texts in the file; more than `texts` if only a sample was taken.
    """

    origin: str
    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None
    labels: tuple[Label, ...] | None
    total: int


@dataclass(frozen=True, kw_only=True)
class _Row:
    where: str
    text: str
    pair: str | None = None
    label: Label | None = None


def read_texts(path: Path, *, takes_pairs: bool, limit: int) -> UserTexts:
    """Read texts from a file.

    Args:
        path: JSONL if its suffix is one of `JSON_SUFFIXES` (each line a JSON string, or an object with `text` and,
            where wanted, `pair` and `label`); any other file has one text a line. UTF-8; empty lines are skipped.
        takes_pairs: Whether the task takes two texts a row: each row must have a `pair`, or none may.
        limit: At most so many rows are returned, evenly spread over the file; at least 1.

    Raises:
        UsageError: The file cannot be read, is no UTF-8 text, or a line is not what it must be.
    """
    text = _decode(_read(path), path)
    lines = ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    parse = _json_row if path.suffix.lower() in JSON_SUFFIXES else _plain_row
    rows = [parse(line.removesuffix("\r"), f"{printable(path)}, line {number}") for number, line in lines]
    if not rows:
        raise UsageError("holds no text", where=printable(path), expected="at least one line with text")
    _check_pairs(rows, takes_pairs=takes_pairs)
    _check_labels(rows)
    chosen = [rows[index] for index in spread(len(rows), limit)]
    return UserTexts(
        origin=printable(path.name),
        texts=tuple(row.text for row in chosen),
        pairs=tuple(row.pair or "" for row in chosen) if takes_pairs else None,
        labels=None if rows[0].label is None else tuple(row.label for row in chosen if row.label is not None),
        total=len(rows),
    )


def spread(count: int, limit: int) -> tuple[int, ...]:
    """At most `limit` indices below `count`, evenly spread, ascending; all of them if they are not more."""
    return tuple(range(count)) if count <= limit else tuple(index * count // limit for index in range(limit))


def _read(path: Path) -> bytes:
    where = printable(path)
    try:
        if path.is_dir():
            raise UsageError("is a directory", where=where, expected="a file with one text a line, or JSONL")
        if path.exists() and not path.is_file():
            raise UsageError("is not a regular file", where=where)
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UsageError("no such file", where=where) from None
    except OSError as error:
        raise UsageError("cannot be read", where=where, found=error.strerror) from None
    except ValueError as error:  # a NUL in the name
        raise UsageError("is no file name", where=where, found=str(error)) from None
    if len(data) > MAX_BYTES:
        raise UsageError(
            "the file of texts is too large",
            where=where,
            expected=f"at most {MAX_BYTES >> 20} MB",
            hint="take a sample of it: a few thousand texts are enough",
        )
    return data


def _decode(data: bytes, path: Path) -> str:
    where = printable(path)
    for mark, name in ((codecs.BOM_UTF16_LE, "UTF-16LE"), (codecs.BOM_UTF16_BE, "UTF-16BE")):
        if data.startswith(mark):
            _wrong_encoding(where, "a byte order mark of UTF-16", name)
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        start = data.rfind(b"\n", 0, error.start) + 1
        line = data.count(b"\n", 0, error.start) + 1
        place = f"the byte 0x{data[error.start]:02x} at place {error.start - start + 1} of the line"
        _wrong_encoding(f"{where}, line {line}", place, "WINDOWS-1252")
    if "\0" in text:
        raise UsageError(
            "is no text file",
            where=f"{where}, line {text.count(chr(10), 0, text.index(chr(0))) + 1}",
            expected="text in UTF-8",
            found="a NUL byte",
            hint="if it is UTF-16 without a byte order mark, convert it: iconv -f UTF-16LE -t UTF-8 FILE > NEW",
        )
    return text


def _wrong_encoding(where: str, found: str, likely: str) -> NoReturn:
    raise UsageError(
        "is not UTF-8",
        where=where,
        expected="text in UTF-8",
        found=found,
        hint=f"convert it: iconv -f {likely} -t UTF-8 FILE > NEW (with the encoding that the file really has)",
    ) from None


def _plain_row(line: str, where: str) -> _Row:
    return _Row(where=where, text=line)


def _json_row(line: str, where: str) -> _Row:
    try:
        value = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            "is not JSON",
            where=where,
            expected="one JSON value a line: a string, or an object with text, and if wanted pair and label",
            found=printable(error)[:200],
            hint="a JSON array over several lines is no JSONL; a file of plain lines must not be named .json",
        ) from None
    if isinstance(value, str):
        return _Row(where=where, text=_text(value, where, "text"))
    if not isinstance(value, dict):
        raise UsageError("is no text", where=where, expected="a JSON string or an object with text", found=_show(value))
    unknown = [key for key in value if key not in FIELDS]
    if unknown:
        raise UsageError(
            "has an unknown field",
            where=where,
            expected=f"of {', '.join(FIELDS)}",
            found=printable(unknown[0])[:80],
            hint="remove it, or name it as it is meant: a misspelt label would be ignored",
        )
    if "text" not in value:
        raise UsageError("lacks the field text", where=where, found=", ".join(value) or "an empty object")
    pair, label = value.get("pair"), value.get("label")
    return _Row(
        where=where,
        text=_text(value["text"], where, "text"),
        pair=None if pair is None else _text(pair, where, "pair"),
        label=None if label is None else _label(label, where),
    )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _text(value: object, where: str, field: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{field} is no string", where=where, found=_show(value))
    if any("\ud800" <= char <= "\udfff" for char in value):  # JSON can spell half a character; UTF-8 cannot
        raise UsageError(f"{field} holds half a surrogate pair, which is no character", where=where, found=_show(value))
    return value


def _label(value: object, where: str) -> Label:
    if isinstance(value, str):
        return _text(value, where, "label")
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(_text(item, where, "label") for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) <= MAX_NUMBER and math.isfinite(value):
            return value
        raise UsageError("label is too large", where=where, expected=f"at most {MAX_NUMBER}", found=_show(value))
    raise UsageError(
        "label is of an unknown kind",
        where=where,
        expected="a class name, a class index, a number, or a list of class names",
        found=_show(value),
    )


def _show(value: object, limit: int = 80) -> str:
    return json.dumps(value, ensure_ascii=True)[:limit]


def _check_pairs(rows: list[_Row], *, takes_pairs: bool) -> None:
    wrong = next((row for row in rows if (row.pair is None) == takes_pairs), None)
    if wrong is None:
        return
    if takes_pairs:
        raise UsageError(
            "lacks the second text",
            where=wrong.where,
            expected='a line such as {"text": "the query", "pair": "the document"}',
            hint="the task takes two texts a row: give a .jsonl file",
        )
    raise UsageError("has a second text, and the task takes one", where=wrong.where, hint="remove the field pair")


def _check_labels(rows: list[_Row]) -> None:
    """All rows have a label, or none; all labels are of one kind."""
    first = rows[0]
    for row in rows:
        if (row.label is None) != (first.label is None):
            with_label, without = (row, first) if first.label is None else (first, row)
            raise UsageError(
                "some rows have a label and some have none",
                where=without.where,
                expected=f"a label, as in {with_label.where.rsplit(', ', 1)[-1]}",
                found="none",
            )
        if _kind(row.label) != _kind(first.label):
            raise UsageError(
                "the labels are of different kinds",
                where=row.where,
                expected=f"{_kind(first.label)}, as in {first.where.rsplit(', ', 1)[-1]}",
                found=_kind(row.label),
            )


def _kind(label: Label | None) -> str:
    if isinstance(label, str):
        return "a class name"
    return "a list of class names" if isinstance(label, tuple) else "a number"
