"""A cache that somebody else has touched: nothing of it is used, and nothing of it keeps the agent from starting."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.inference.devices.cache import Cache, CacheKey

KEY = CacheKey(
    kind="engines", bundle="b" * 64, variant="v", runtime="1.32.0", provider="TensorrtExecutionProvider", device="Orin"
)
SECRET = b"not for the GPU"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache with one good entry of two files."""
    cache = Cache(tmp_path / "cache")
    work = cache.work_folder(KEY)
    assert work is not None
    (work / "a.engine").write_bytes(b"engine")
    (work / "value.json").write_text('{"runners": 2}')
    assert cache.keep(KEY, work)
    cache.release(work)
    return tmp_path / "cache"


def used(folder: Path) -> dict[str, bytes]:
    """What the next load gets."""
    cache = Cache(folder)
    work = cache.work_folder(KEY)
    if work is None:
        return {}
    found = {path.name: path.read_bytes() for path in work.iterdir()}
    cache.release(work)
    return found


def manifest_of(entry: Path) -> dict:
    return json.loads((entry / "cache.json").read_text())


def rewrite(entry: Path, change: Callable[[dict], object]) -> None:
    manifest = manifest_of(entry)
    changed = change(manifest)
    (entry / "cache.json").write_text(json.dumps(manifest if changed is None else changed))


def shorten(entry: Path) -> None:
    (entry / "a.engine").write_bytes(b"engin")


def swap_contents(entry: Path) -> None:
    (entry / "a.engine").write_bytes(b"enginE")


def remove_file(entry: Path) -> None:
    (entry / "a.engine").unlink()


def add_file(entry: Path) -> None:
    (entry / "b.engine").write_bytes(b"more")


def link_file(entry: Path) -> None:
    outside = entry.parent.parent / "outside"
    outside.write_bytes(SECRET)
    (entry / "a.engine").unlink()
    (entry / "a.engine").symlink_to(outside)
    rewrite(entry, lambda m: m["files"].update({"a.engine": hashlib.sha256(SECRET).hexdigest()}))


def link_entry(entry: Path) -> None:
    elsewhere = entry.parent.parent / "elsewhere"
    shutil.move(entry, elsewhere)
    entry.symlink_to(elsewhere)


def add_folder(entry: Path) -> None:
    (entry / "deep").mkdir()


def add_pipe(entry: Path) -> None:
    (entry / "a.engine").unlink()
    os.mkfifo(entry / "a.engine")


def pipe_as_manifest(entry: Path) -> None:
    (entry / "cache.json").unlink()
    os.mkfifo(entry / "cache.json")


def no_manifest(entry: Path) -> None:
    (entry / "cache.json").unlink()


def torn_manifest(entry: Path) -> None:
    (entry / "cache.json").write_bytes((entry / "cache.json").read_bytes()[:-20])


def deep_manifest(entry: Path) -> None:
    (entry / "cache.json").write_text("[" * 200_000)


def large_manifest(entry: Path) -> None:
    (entry / "cache.json").write_bytes(b" " * (2 << 20))


def binary_manifest(entry: Path) -> None:
    (entry / "cache.json").write_bytes(b"\xff\xfe\x00")


def list_manifest(entry: Path) -> None:
    rewrite(entry, lambda m: [m])


def other_schema(entry: Path) -> None:
    rewrite(entry, lambda m: m.update(schema=2))


def other_key(entry: Path) -> None:
    rewrite(entry, lambda m: m["key"].update(device="Xavier"))


def missing_key(entry: Path) -> None:
    rewrite(entry, lambda m: m.pop("key") and None)


def wrong_digest_type(entry: Path) -> None:
    rewrite(entry, lambda m: m["files"].update({"a.engine": None}))


def path_in_manifest(entry: Path) -> None:
    rewrite(entry, lambda m: m["files"].update({"../../outside": "0" * 64}))


def no_files(entry: Path) -> None:
    rewrite(entry, lambda m: m.update(files={}))


def file_as_entry(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("no folder")


def writable_entry(entry: Path) -> None:
    entry.chmod(0o777)


def writable_file(entry: Path) -> None:
    (entry / "a.engine").chmod(0o666)


def group_writable_file(entry: Path) -> None:
    (entry / "a.engine").chmod(0o620)


TAMPERING = [
    shorten,
    swap_contents,
    remove_file,
    add_file,
    link_file,
    link_entry,
    add_folder,
    add_pipe,
    pipe_as_manifest,
    no_manifest,
    torn_manifest,
    deep_manifest,
    large_manifest,
    binary_manifest,
    list_manifest,
    other_schema,
    other_key,
    missing_key,
    wrong_digest_type,
    path_in_manifest,
    no_files,
    file_as_entry,
    writable_entry,
    writable_file,
    group_writable_file,
]


def test_an_untouched_entry_is_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert used(folder) == {"a.engine": b"engine", "value.json": b'{"runners": 2}'}
    assert Cache(folder).read_json(KEY) == {"runners": 2}
    assert caplog.records == []


@pytest.mark.parametrize("tamper", TAMPERING, ids=lambda tamper: tamper.__name__)
def test_a_tampered_entry_is_never_used_and_removed_with_one_line(
    folder: Path, tamper: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    entry = folder / KEY.name
    tamper(entry)
    assert used(folder) == {}
    assert len(caplog.records) == 1
    assert "not used" in caplog.text
    assert not os.path.lexists(entry)
    # And the work that is done again is kept as ever.
    cache = Cache(folder)
    assert cache.write_json(KEY, 1)
    assert cache.read_json(KEY) == 1


@pytest.mark.parametrize("tamper", TAMPERING, ids=lambda tamper: tamper.__name__)
def test_a_tampered_measurement_is_never_read(folder: Path, tamper: Callable[[Path], None]) -> None:
    cache = Cache(folder)
    cache.write_json(KEY, {"runners": 2})
    entry = folder / KEY.name
    (entry / "value.json").rename(entry / "a.engine")
    rewrite(entry, lambda m: m["files"].update({"a.engine": m["files"].pop("value.json")}))
    tamper(entry)
    assert Cache(folder).read_json(KEY) is None


def test_a_link_is_removed_not_what_it_points_at(folder: Path) -> None:
    elsewhere = folder.parent / "precious"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    shutil.rmtree(folder / KEY.name)
    (folder / KEY.name).symlink_to(elsewhere)
    (folder / "work-abc").symlink_to(elsewhere)
    assert used(folder) == {}
    assert (elsewhere / "file").exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_not_used(folder: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    folder.chmod(mode)
    cache = Cache(folder)
    assert not cache.enabled
    assert "written by others" in cache.problem
    assert used(folder) == {}
    assert not cache.write_json(KEY, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder to another user")
def test_a_folder_or_an_entry_of_another_user_is_not_used(folder: Path) -> None:
    os.chown(folder / KEY.name / "a.engine", 12345, -1)
    assert used(folder) == {}
    os.chown(folder, 12345, -1)
    assert "another user" in Cache(folder).problem


@given(noise=st.binary(max_size=300), at=st.integers(0, 300))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_manifest_of_any_bytes_gives_the_entry_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    folder = tmp_path_factory.mktemp("noise")
    cache = Cache(folder)
    cache.write_json(KEY, 1)
    manifest = folder / KEY.name / "cache.json"
    good = manifest.read_bytes()
    bad = good[:at] + noise + good[at:]
    manifest.write_bytes(bad)
    # JSON allows blanks between its signs, so that a changed manifest can still say the same.
    assert cache.read_json(KEY) in ((1, None) if noise.strip() == b"" or noise == good else (None,))


def test_a_key_cannot_leave_the_folder(tmp_path: Path) -> None:
    key = dataclasses.replace(KEY, variant="../../x", kind="engines")
    assert "/" not in key.name
    assert Cache(tmp_path).write_json(key, 1)
    assert [path.parent for path in tmp_path.rglob("cache.json")] == [tmp_path / key.name]
