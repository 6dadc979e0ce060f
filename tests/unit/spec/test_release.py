from __future__ import annotations

import json
from typing import Any

import pytest

from edgeonnx.errors import ManifestError, SchemaVersionError, UsageError
from edgeonnx.spec.release import Delta, Release, blob_path, channel_target, delta_path, release_target

A, B = "a" * 64, "b" * 64
DELTA = Delta(target=A, base=B, encoding="difference", size=10)
RELEASE = Release(name="minilm", version="1.0.0", contents=A, contents_size=5, size=100, deltas=(DELTA,))


def changed(**fields: object) -> bytes:
    """The release's document with other fields."""
    document: dict[str, Any] = json.loads(RELEASE.to_bytes())
    document.update(fields)
    return json.dumps(document).encode()


def test_a_release_is_read_as_it_was_written() -> None:
    assert Release.from_bytes(RELEASE.to_bytes()) == RELEASE


def test_where_things_lie() -> None:
    assert blob_path(A) == f"blobs/sha256/aa/{A}.zst"
    assert delta_path(DELTA) == f"deltas/sha256/aa/{A}.{B}.difference"
    assert release_target("minilm", "1.0.0") == "releases/minilm/1.0.0.json"
    assert channel_target("stable") == "channels/stable.json"


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"contents": "x"}, "contents"),
        ({"contents_size": 0}, "contents_size"),
        ({"size": -1}, "size"),
        ({"deltas": [{**DELTA.to_dict(), "encoding": "../x"}]}, "deltas[0].encoding"),
        ({"deltas": [{**DELTA.to_dict(), "base": "../x"}]}, "deltas[0].base"),
        ({"deltas": [{**DELTA.to_dict(), "size": 0}]}, "deltas[0].size"),
        ({"more": 1}, "more"),
    ],
)
def test_what_breaks_the_schema_is_refused_by_name(fields: dict[str, object], where: str) -> None:
    with pytest.raises(ManifestError) as caught:
        Release.from_bytes(changed(**fields))
    assert where in str(caught.value)


def test_names_that_would_become_paths_are_refused() -> None:
    for name, version in (("../x", "1.0"), ("x", "../1"), ("X", "1"), ("x", "")):
        with pytest.raises(UsageError):
            release_target(name, version)
        with pytest.raises(UsageError):
            Release.from_bytes(changed(name=name, version=version))
    with pytest.raises(UsageError):
        channel_target("a/b")


def test_another_version_of_the_format_is_refused_and_a_newer_minor_one_is_read() -> None:
    with pytest.raises(SchemaVersionError):
        Release.from_bytes(changed(schema_version="2.0"))
    assert Release.from_bytes(changed(schema_version="1.9", more=1)) == RELEASE
