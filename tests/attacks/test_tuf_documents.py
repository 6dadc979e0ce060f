"""Hostile documents in the place of metadata, without and with valid signatures.

The invariant: the device takes it, or raises an error of ours and keeps what it had; nothing else ever happens.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.update.trust.verifier import LIMITS
from edgeonnx.errors import EdgeOnnxError, FetchError, UntrustedError
from tests.support.tuf_simulator import CHANNEL, EXPIRES, RELEASE, Device, Simulator

PATHS = {
    "root": "metadata/2.root.json",
    "timestamp": "metadata/timestamp.json",
    "snapshot": "metadata/1.snapshot.json",
    "targets": "metadata/1.targets.json",
    "releases": "metadata/1.releases.json",
    "rollout": "metadata/1.rollout.json",
}
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Welcome</title></head><body>Please log in</body></html>"


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path, Simulator())


def take(device: Device) -> None:
    metadata = device.refresh()
    metadata.target(CHANNEL)
    metadata.target(RELEASE)


@pytest.mark.parametrize("role", PATHS)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (PAGE, "a web page came instead of metadata.*login page"),
        (b"", "what came is not metadata.*0 bytes"),
        (b"\0" * 4096, "what came is not metadata"),
        (b"\x1f\x8b\x08\x00" + b"x" * 100, "what came is not metadata.*UTF-8"),
        (b'{"signed": {"version": 1}, "signatures": [], "signatures": []}', "duplicate key 'signatures'"),
        (b'{"signed": {"version": NaN}, "signatures": []}', "NaN"),
        (b"[" * 9000, "what came is not metadata"),
        (
            b'{"signed": {"version": 1, "x": ' + b"[" * 900 + b"]" * 900 + b'}, "signatures": []}',
            "cannot be trusted|signed by|not metadata",
        ),
        (b'{"signed": {"version": 1' + b"0" * 5000 + b"}}", "what came is not metadata"),
        (b'["signed"]', "what came is not metadata"),
        (b'{"signed": [], "signatures": {}}', "what came is not metadata"),
    ],
    ids=["page", "empty", "zeros", "gzip", "duplicates", "NaN", "deep", "less deep", "digits", "array", "types"],
)
def test_what_is_no_metadata_is_refused_in_words_that_say_so(
    device: Device, role: str, data: bytes, message: str
) -> None:
    device.repository.files[PATHS[role]] = data
    with pytest.raises(UntrustedError, match=message) as caught:
        take(device)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


def test_the_second_of_two_members_does_not_get_past_the_signature(device: Device) -> None:
    """Two readers may take different ones; this one takes none."""
    text = device.repository.files[PATHS["rollout"]].decode()
    start = text.index('"targets":')
    evil = text[:start] + '"targets":{},' + text[start:]
    device.repository.files[PATHS["rollout"]] = evil.encode()
    with pytest.raises(UntrustedError, match="duplicate key"):
        take(device)


@pytest.mark.parametrize("role", PATHS)
def test_metadata_of_megabytes_is_not_fetched(device: Device, role: str) -> None:
    limits = {
        "root": LIMITS.root_max_length,
        "timestamp": LIMITS.timestamp_max_length,
        "snapshot": LIMITS.snapshot_max_length,
    }
    data = device.repository.files.get(PATHS[role], device.repository.root)
    device.repository.files[PATHS[role]] = data + b" " * limits.get(role, LIMITS.targets_max_length)
    with pytest.raises(FetchError, match="longer than"):
        take(device)


@pytest.mark.parametrize("lister", ["timestamp", "snapshot"])
def test_a_signed_length_does_not_lift_the_limit(device: Device, lister: str) -> None:
    """A thief of an online key could otherwise let each device fetch a terabyte into memory."""
    listed = "snapshot.json" if lister == "timestamp" else "targets.json"

    def change(signed: dict[str, Any]) -> None:
        signed["meta"][listed]["length"] = 1 << 40

    path = PATHS[listed.removesuffix(".json")]
    device.repository.files[PATHS[lister]] = device.repository.resign(lister, change)
    device.repository.files[path] += b" " * LIMITS.targets_max_length
    with pytest.raises(FetchError, match="longer than"):
        take(device)


def test_a_signed_target_of_gigabytes_is_not_fetched(device: Device) -> None:
    def change(signed: dict[str, Any]) -> None:
        signed["targets"][CHANNEL]["length"] = 1 << 40

    device.repository.files[PATHS["rollout"]] = device.repository.resign("rollout", change)
    with pytest.raises(UntrustedError, match="too large"):
        take(device)
    assert not any(path.startswith("targets/") for path in device.repository.requests)


@pytest.mark.parametrize("name", ["../../clock", "/etc/passwd", "..", "floor", "a/b", "x" * 300, "timestamp\n", "root"])
def test_names_of_roles_are_no_paths_here(device: Device, name: str) -> None:
    """Signed by `targets` itself: a hostile owner, not a thief of an online key."""

    def change(signed: dict[str, Any]) -> None:
        role = copy.deepcopy(signed["delegations"]["roles"][0])
        signed["delegations"]["roles"].insert(0, {**role, "name": name, "paths": ["*", "*/*"], "terminating": False})

    repository = device.repository
    repository.files[PATHS["targets"]] = repository.resign("targets", change)

    def list_it(signed: dict[str, Any]) -> None:
        signed["meta"][f"{name}.json"] = {"version": 1}

    repository.files[PATHS["snapshot"]] = repository.resign("snapshot", list_it)
    before = {path: path.read_bytes() for path in device.folder.rglob("*.json") if path.parent.name != "metadata"}
    with pytest.raises(EdgeOnnxError):
        take(device)
    assert {path.parent for path in device.folder.rglob("*") if path.is_file()} <= {
        device.folder,
        device.metadata,
        device.metadata / "anchor",
        device.metadata / "root_history",
    }
    assert all(path.read_bytes() == data for path, data in before.items() if path.name == "root.json")


@pytest.mark.parametrize("name", [True, -1, 1 << 70, None, ["rollout"]], ids=str)
def test_a_role_whose_name_is_no_text_is_refused(device: Device, name: object) -> None:
    """python-tuf takes it, and fails later in a way of its own."""

    def change(signed: dict[str, Any]) -> None:
        signed["delegations"]["roles"][1]["name"] = name

    device.repository.files[PATHS["targets"]] = device.repository.resign("targets", change)
    with pytest.raises(UntrustedError, match=r"what came is not metadata.*name"):
        take(device)


WEIRD = st.sampled_from(
    [None, True, -1, 0, 1 << 70, 10**400, "", "x", "9999-12-31T23:59:59Z", [], {}, ["a"], {"a": {"version": 1}}]
)


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to each value of a document."""
    if path:
        yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in members:
        yield from places(child, (*path, key))


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_signed_documents_with_any_value_in_any_place(data: st.DataObject) -> None:
    repository = Simulator()
    role = data.draw(st.sampled_from(sorted(EXPIRES)))
    if role == "root":
        repository.signed("root").version = 2
    document = json.loads(repository.sign(role))["signed"]
    place = data.draw(st.sampled_from(sorted(places(document), key=str)))
    value = data.draw(WEIRD)

    def change(signed: Any) -> None:
        for key in place[:-1]:
            signed = signed[key]
        signed[place[-1]] = value

    with tempfile.TemporaryDirectory() as folder:
        device = Device(Path(folder), repository)
        repository.files[PATHS[role]] = repository.resign(role, change)
        for _ in range(2):  # the second one reads what the first one kept
            try:
                take(device)
            except EdgeOnnxError as error:
                assert str(error)  # noqa: PT017
