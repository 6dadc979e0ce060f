"""The error tree: every class is told in the docstring, and every part of a message reaches the user."""

from __future__ import annotations

import inspect
import json

import pytest

from edgeonnx import errors
from edgeonnx.errors import EdgeOnnxError, ManifestError, first_line

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, EdgeOnnxError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_is_drawn_in_the_tree_below_its_base(kind: type[EdgeOnnxError]) -> None:
    tree = (errors.__doc__ or "").splitlines()
    line = next(index for index, text in enumerate(tree) if kind.__name__ in text.split())
    if kind is not EdgeOnnxError:
        depth = tree[line].index(kind.__name__)
        above = next(text for text in reversed(tree[:line]) if text.strip(" │├└─") and _name_column(text) < depth)
        assert kind.__base__ is not None
        assert kind.__base__.__name__ in above.split()


def _name_column(line: str) -> int:
    return next((index for index, char in enumerate(line) if char.isalpha()), len(line))


def test_the_text_holds_every_part_in_order() -> None:
    error = ManifestError(
        "is too large", where="contents.json: files[3].size", expected="a", found="b", details=("c", "d"), hint="e"
    )
    assert str(error) == "contents.json: files[3].size: is too large; expected a; found b; c; d; e"


def test_absent_parts_leave_no_trace() -> None:
    assert str(EdgeOnnxError("broken")) == "broken"
    assert EdgeOnnxError("broken").to_dict() == {"error": "EdgeOnnxError", "message": "broken"}


def test_an_empty_found_is_kept_apart_from_an_absent_one() -> None:
    assert EdgeOnnxError("m", found="").to_dict()["found"] == ""


def test_the_dictionary_survives_json() -> None:
    error = ManifestError("m", where="w", expected="e", found="f", hint="h", details=("d",))
    expected = {
        "error": "ManifestError",
        "message": "m",
        "where": "w",
        "expected": "e",
        "found": "f",
        "hint": "h",
        "details": ["d"],
    }
    assert json.loads(json.dumps(error.to_dict())) == expected


def test_the_first_line_of_a_foreign_error() -> None:
    assert first_line(ValueError("\n one \ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("x" * 500)) == "x" * 400
