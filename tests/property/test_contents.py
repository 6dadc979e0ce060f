"""The list of files: one form, read back as it was written, and nothing but our errors."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edgeonnx.spec.contents import Contents, FileEntry, asset_digest, canonical_json
from tests.support.outcome import refusal

NAMES = st.from_regex(r"[a-z0-9_]{1,8}(/[a-z0-9_]{1,8}){0,3}", fullmatch=True).filter(
    lambda path: not {"con", "prn", "aux", "nul"} & set(path.split("/")) and "com" not in path and "lpt" not in path
)
ENTRIES = st.builds(
    lambda path, size, digest: FileEntry(path=path, size=size, sha256=digest.hex()),
    NAMES,
    st.integers(0, (1 << 63) - 1),
    st.binary(min_size=32, max_size=32),
)
LISTS = st.lists(ENTRIES, max_size=6, unique_by=lambda entry: entry.path)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)


@given(LISTS, st.randoms(use_true_random=False))
def test_the_order_of_making_does_not_show_and_the_list_is_read_back(entries: list[FileEntry], random: Any) -> None:
    made = Contents.of(entries)
    random.shuffle(entries)
    assert Contents.of(entries).to_bytes() == made.to_bytes()
    again = Contents.from_bytes(made.to_bytes())
    assert again == made
    assert again.digest == made.digest
    assert again.to_bytes() == made.to_bytes()


@given(LISTS)
def test_every_change_changes_the_digest(entries: list[FileEntry]) -> None:
    digest = Contents.of(entries).digest
    for entry in entries:
        others = [other for other in entries if other is not entry]
        flipped = hashlib.sha256(entry.sha256.encode()).hexdigest()
        assert Contents.of(others).digest != digest
        assert Contents.of([*others, FileEntry(path=entry.path, size=entry.size, sha256=flipped)]).digest != digest


@given(st.dictionaries(NAMES, st.binary(max_size=8), max_size=5), st.randoms(use_true_random=False))
def test_an_assets_digest_depends_on_content_and_not_on_order(files: dict[str, bytes], random: Any) -> None:
    items = [(path, hashlib.sha256(data).hexdigest()) for path, data in files.items()]
    digest = asset_digest(items)
    random.shuffle(items)
    assert asset_digest(items) == digest
    assert asset_digest([*items, ("zz", "0" * 64)]) != digest


@given(st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), st.integers(), max_size=6))
def test_canonical_json_is_stable_and_means_the_same(value: dict[str, int]) -> None:
    data = canonical_json(value)
    assert json.loads(data) == value
    assert canonical_json(dict(reversed(value.items()))) == data == canonical_json(json.loads(data))


@given(JSON, st.sampled_from(["path", "size", "sha256", "extra"]))
def test_any_value_in_an_entry_parses_or_is_refused(value: Any, field: str) -> None:
    entry = {"path": "a", "size": 1, "sha256": "0" * 64, field: value}
    data = json.dumps({"schema_version": "1.0", "files": [entry]}).encode()
    error = refusal(lambda: Contents.from_bytes(data))
    if error is not None:
        assert (error.where or "").startswith("contents.json")
    else:
        assert getattr(Contents.from_bytes(data).files[0], field) == value


@given(JSON)
def test_any_document_parses_or_is_refused(value: Any) -> None:
    for document in (value, {"schema_version": "1.0", "files": value}, {"schema_version": value, "files": []}):
        data = json.dumps(document).encode()
        error = refusal(lambda data=data: Contents.from_bytes(data))  # type: ignore[misc]
        assert error is None or (error.where or "").startswith("contents.json")
