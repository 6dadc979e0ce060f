"""Strict JSON: what is refused, and that the message names file and field."""

from __future__ import annotations

import time

import pytest

from edgeonnx.errors import ManifestError, SchemaVersionError
from edgeonnx.spec.parse import MAX_INTEGER, Node, parse_document


def root(text: str) -> Node:
    return parse_document(text.encode(), "a.json")


@pytest.mark.parametrize(
    ("data", "message", "found"),
    [
        (b"", "is not JSON", "Expecting value"),
        (b"\xff\xfe{}", "is not UTF-8", "0xff at 0"),
        (b'{"a": "\xc3"}', "is not UTF-8", "0xc3 at 7"),
        (b"\xef\xbb\xbf{}", "is not JSON", "BOM"),
        (b'{"a": 1, "a": 2}', "is not JSON", "duplicate key 'a'"),
        (b'[{"x": {"b": 1, "b": 1}}]', "is not JSON", "duplicate key 'b'"),
        (b'{"a": NaN}', "is not JSON", "NaN is not a JSON number"),
        (b"[-Infinity]", "is not JSON", "-Infinity is not a JSON number"),
        (b"[1e999]", "is not JSON", "1e999 is beyond the range of a double"),
        (b"[" * 100_000, "is not JSON", ""),
        (b'{"a": 1} trailing', "is not JSON", "Extra data"),
        (b"[" + b"9" * 5000 + b"]", "is not JSON", "4300 digits"),
        (b'["\\ud800"]', "has a text that is not Unicode", "\\ud800"),
        (b'{"\\udfff": 1}', "has a text that is not Unicode", "\\udfff"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else "",
)
def test_what_is_no_plain_json_is_refused(data: bytes, message: str, found: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_document(data, "a.json")
    assert caught.value.message == message
    assert caught.value.where == "a.json"
    assert found in (caught.value.found or "")


def test_a_surrogate_pair_is_text() -> None:
    assert root(r'"\ud83d\ude00"').value == "😀"


def test_a_duplicate_among_many_keys_is_found_without_delay() -> None:
    keys = ",".join(f'"{index}":0' for index in range(200_000))
    begin = time.perf_counter()
    with pytest.raises(ManifestError, match="duplicate key '199999'"):
        root("{" + keys + ',"199999":1}')
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("1", str, "a string"),
        ('"1"', int, "an integer"),
        ("true", int, "an integer"),
        ("1.0", int, "an integer"),
        ("true", float, "a number"),
        ("null", dict, "an object"),
        ("{}", list, "an array"),
        ("0", bool, "true or false"),
    ],
)
def test_a_wrong_type_says_what_was_expected_and_found(text: str, kind: type, expected: str) -> None:
    with pytest.raises(ManifestError) as caught:
        root(text).typed(kind)
    assert (caught.value.expected, caught.value.found) == (expected, text)


def test_an_integer_is_a_number_too() -> None:
    value = root("3").typed(float)
    assert value == 3.0
    assert isinstance(value, float)


def test_an_integer_beyond_64_bits_is_no_number_of_ours() -> None:
    with pytest.raises(ManifestError, match="is too large"):
        root("9" * 400).typed(float)


def test_places_are_spelled_as_paths() -> None:
    document = root('{"files": [{"path": "x"}, {"path": 3}]}')
    second = list(document.required("files").items())[1]
    with pytest.raises(ManifestError) as caught:
        second.text("path")
    assert caught.value.where == "a.json: files[1].path"


def test_a_missing_field_names_the_object_that_lacks_it() -> None:
    with pytest.raises(ManifestError, match="lacks the required field 'b'") as caught:
        root('{"a": {}}').required("a").required("b")
    assert caught.value.where == "a.json: a"


def test_an_unknown_field_lists_the_known_ones() -> None:
    with pytest.raises(ManifestError, match="is not a known field") as caught:
        root('{"sise": 1}').only(("size", "path"))
    assert caught.value.where == "a.json: sise"
    assert caught.value.expected == "one of path, size"


@pytest.mark.parametrize(
    ("text", "fits"), [("0", True), ("-1", False), (str(MAX_INTEGER), True), (str(MAX_INTEGER + 1), False)]
)
def test_integers_have_bounds(text: str, fits: bool) -> None:
    document = root(f'{{"n": {text}}}')
    if fits:
        assert document.integer("n") == int(text)
    else:
        with pytest.raises(ManifestError, match="is out of range") as caught:
            document.integer("n")
        assert caught.value.where == "a.json: n"
        assert caught.value.expected == f"0 to {MAX_INTEGER}"


def test_optional_members() -> None:
    document = root('{"a": null, "b": "x", "c": true}')
    assert document.optional_text("a") is None
    assert document.optional_text("absent") is None
    assert document.optional_text("b") == "x"
    assert document.flag("c", default=False) is True
    assert document.flag("absent", default=True) is True


def test_a_newer_minor_version_is_read() -> None:
    node = root('{"v": "1.7", "more": [{"new": 1}]}')
    newer = node.version("v", known="1.6")
    newer.only(("v",))
    next(newer.required("more").items()).only(())
    with pytest.raises(ManifestError, match="not a known field"):
        newer.only(("v",), always=True)
    with pytest.raises(ManifestError, match="not a known field"):
        node.version("v", known="1.7").only(("v",))


def test_another_major_version_is_refused_with_what_to_do() -> None:
    with pytest.raises(SchemaVersionError) as caught:
        root('{"v": "2.0"}').version("v", known="1.0")
    assert caught.value.where == "a.json: v"
    assert (caught.value.expected, caught.value.found) == ("1.x", "2.0")
    assert "use a release" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["1", "1.0.0", "01.0", "1.x", "", " 1.0", "1.0\\n", "-1.0"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ManifestError, match="is not a version"):
        root(f'{{"v": "{text}"}}').version("v", known="1.0")


def test_a_long_value_is_shown_shortened() -> None:
    with pytest.raises(ManifestError) as caught:
        root('["' + "x" * 500 + '"]').typed(dict)
    assert len(caught.value.found or "") == 80
