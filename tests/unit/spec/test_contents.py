"""The list of files: canonical bytes, its digest, and what it refuses."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from edgeonnx.errors import EdgeOnnxError, ManifestError, SchemaVersionError, UnsafePathError
from edgeonnx.spec.contents import UNSEALED_FILES, Contents, FileEntry, asset_digest, canonical_json

SHA = "0123456789abcdef" * 4
ENTRIES = (FileEntry(path="b", size=2, sha256=SHA), FileEntry(path="a/x.json", size=1, sha256=SHA))


def document(files: list[Any], version: str = "1.0") -> bytes:
    return json.dumps({"schema_version": version, "files": files}).encode()


def entry(**changes: Any) -> dict[str, Any]:
    return {"path": "a", "size": 1, "sha256": SHA, **changes}


def test_the_order_of_making_does_not_show() -> None:
    assert Contents.of(ENTRIES).to_bytes() == Contents.of(reversed(ENTRIES)).to_bytes()
    assert [item.path for item in Contents.of(ENTRIES).files] == ["a/x.json", "b"]


def test_what_is_written_is_read_back() -> None:
    made = Contents.of(ENTRIES)
    read = Contents.from_bytes(made.to_bytes())
    assert read == made
    assert read.digest == made.digest == hashlib.sha256(made.to_bytes()).hexdigest()
    assert read.total_size == 3


def test_the_digest_is_that_of_the_bytes_that_were_read() -> None:
    data = document([entry()], version="1.5")
    assert Contents.from_bytes(data).digest == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("files", "kind", "where"),
    [
        ([entry(path="../x")], UnsafePathError, "files[0].path"),
        ([entry(path="/etc/passwd")], UnsafePathError, "files[0].path"),
        ([entry(path="a\\b")], UnsafePathError, "files[0].path"),
        ([entry(sha256=SHA.upper())], ManifestError, "files[0].sha256"),
        ([entry(sha256=SHA[:-1])], ManifestError, "files[0].sha256"),
        ([entry(sha256=SHA + "\n")], ManifestError, "files[0].sha256"),
        ([entry(size=-1)], ManifestError, "files[0].size"),
        ([entry(size=1.5)], ManifestError, "files[0].size"),
        ([entry(size=True)], ManifestError, "files[0].size"),
        ([entry(mode=7)], ManifestError, "files[0].mode"),
        ([entry(), entry()], ManifestError, "files[1].path"),
        ([entry(path="Ab"), entry(path="aB")], ManifestError, "files[1].path"),
        ([entry(path="contents.json")], ManifestError, "files[0].path"),
        ([entry(path="Contents.JSON")], ManifestError, "files[0].path"),
        ([entry(path="report.html")], ManifestError, "files[0].path"),
        ([entry(), entry(path="Timings.JSON")], ManifestError, "files[1].path"),
        (["a"], ManifestError, "files[0]"),
    ],
)
def test_broken_entries_are_named(files: list[Any], kind: type[EdgeOnnxError], where: str) -> None:
    with pytest.raises(kind) as caught:
        Contents.from_bytes(document(files))
    assert caught.value.where == f"contents.json: {where}"


def test_exactly_two_files_may_lie_outside_the_digest() -> None:
    assert UNSEALED_FILES == ("report.html", "timings.json")


@pytest.mark.parametrize("name", UNSEALED_FILES)
def test_their_names_are_free_in_a_folder(name: str) -> None:
    assert Contents.from_bytes(document([entry(path=f"a/{name}")])).files[0].path == f"a/{name}"


def test_another_major_version_is_refused() -> None:
    with pytest.raises(SchemaVersionError, match=r"expected 1\.x; found 2\.0"):
        Contents.from_bytes(document([], version="2.0"))


def test_canonical_json_has_one_form() -> None:
    assert canonical_json({"b": [1, "ä"], "a": {}}) == '{\n  "a": {},\n  "b": [\n    1,\n    "ä"\n  ]\n}\n'.encode()


def test_canonical_json_refuses_what_json_lacks() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": float("nan")})


def test_an_assets_digest_is_that_of_the_sorted_listing() -> None:
    files = [("b", "2" * 64), ("a", "1" * 64)]
    listing = f"{'1' * 64}  a\n{'2' * 64}  b\n"
    assert asset_digest(files) == hashlib.sha256(listing.encode()).hexdigest()
