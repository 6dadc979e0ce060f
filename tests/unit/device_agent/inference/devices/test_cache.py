from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from device_agent.inference.devices import cache as cache_module
from device_agent.inference.devices.cache import Cache, CacheKey

KEY = CacheKey(
    kind="measurements",
    bundle="b" * 64,
    variant="cpu-int8",
    runtime="1.32.0",
    provider="CPUExecutionProvider",
    device="x86_64 Xeon 2 avx2",
)
ENGINES = dataclasses.replace(KEY, kind="engines", provider="TensorrtExecutionProvider")


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_value_comes_back_in_another_process_too(tmp_path: Path) -> None:
    value = {"runners": 2, "threads": 1, "rates": [1.5, 2.0]}
    assert Cache(tmp_path).read_json(KEY) is None
    assert Cache(tmp_path).write_json(KEY, value)
    assert Cache(tmp_path).read_json(KEY) == value
    assert entries(tmp_path) == [KEY.name]


def test_a_newer_value_takes_the_place_of_the_older_one(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for value in (1, 2, 3):
        assert cache.write_json(KEY, value)
        assert cache.read_json(KEY) == value
    assert entries(tmp_path) == [KEY.name]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(CacheKey)])
def test_whatever_an_entry_depends_on_makes_another_entry(tmp_path: Path, field: str) -> None:
    cache = Cache(tmp_path)
    cache.write_json(KEY, 1)
    assert cache.read_json(dataclasses.replace(KEY, **{field: "other"})) is None
    assert cache.read_json(KEY) == 1


def test_without_a_folder_nothing_is_kept() -> None:
    cache = Cache(None)
    assert not cache.enabled
    assert cache.problem == ""
    assert not cache.write_json(KEY, 1)
    assert cache.read_json(KEY) is None
    assert cache.work_folder(ENGINES) is None
    assert cache.state(KEY) == "off"
    assert cache.size() == 0


def test_files_of_a_provider_are_kept_and_given_to_the_next_load(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    work = cache.work_folder(ENGINES)
    assert work is not None
    assert entries(work) == []
    (work / "a.engine").write_bytes(b"engine")
    (work / "timing.cache").write_bytes(b"times")
    assert cache.keep(ENGINES, work)
    # The session still writes there, and keeps what it has written later.
    (work / "b.engine").write_bytes(b"more")
    assert cache.keep(ENGINES, work)
    cache.release(work)
    assert entries(tmp_path) == [ENGINES.name]
    assert cache.state(ENGINES) == "kept"

    again = Cache(tmp_path).work_folder(ENGINES)
    assert again is not None
    assert {name: (again / name).read_bytes() for name in entries(again)} == {
        "a.engine": b"engine",
        "b.engine": b"more",
        "timing.cache": b"times",
    }


def test_what_a_provider_writes_into_its_folder_does_not_touch_the_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for content in (b"first", b"second"):
        work = cache.work_folder(ENGINES)
        assert work is not None
        (work / "a.engine").write_bytes(content)
        if content == b"first":
            cache.keep(ENGINES, work)
        cache.release(work)
    work = cache.work_folder(ENGINES)
    assert work is not None
    assert (work / "a.engine").read_bytes() == b"first"


def test_an_empty_folder_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    work = cache.work_folder(ENGINES)
    assert work is not None
    assert not cache.keep(ENGINES, work)
    assert cache.state(ENGINES) == "nothing kept yet"


def test_a_value_that_is_no_json_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(tmp_path)
    assert not cache.write_json(KEY, {"x": object()})
    assert entries(tmp_path) == []
    assert len(caplog.records) == 1


def test_the_entries_that_were_not_used_for_longest_make_room(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=3000)
    keys = [dataclasses.replace(KEY, variant=f"v{index}") for index in range(4)]
    for age, key in zip((400, 300, 200), keys[:3], strict=True):
        cache.write_json(key, "x" * 500)
        then = time.time() - age
        os.utime(tmp_path / key.name, (then, then))
    assert cache.read_json(keys[0]) is not None  # the oldest was used just now
    cache.write_json(keys[3], "x" * 1200)
    assert cache.size() <= 3000
    assert cache.read_json(keys[1]) is None
    assert cache.read_json(keys[0]) is not None
    assert cache.read_json(keys[3]) is not None


def test_an_entry_larger_than_the_bound_is_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=100)
    cache.write_json(KEY, "x")
    other = dataclasses.replace(KEY, variant="large")
    cache.write_json(other, "x" * 500)
    assert entries(tmp_path) == [other.name]


def test_a_folder_that_cannot_be_made_turns_the_cache_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    cache = Cache(tmp_path / "file" / "cache")
    assert not cache.enabled
    assert cache.problem
    assert cache.state(KEY) == cache.problem
    assert not cache.write_json(KEY, 1)
    assert len(caplog.records) == 1


def test_a_disk_that_is_full_is_no_reason_not_to_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path)
    cache.write_json(KEY, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "_sync", full)
    assert not cache.write_json(KEY, 2)
    assert "No space left" in caplog.text
    monkeypatch.undo()
    assert Cache(tmp_path).read_json(KEY) == 1
    assert entries(tmp_path) == [KEY.name]


def test_systemds_link_to_the_real_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "private")
    assert Cache(tmp_path / "cache").write_json(KEY, 1)
    assert entries(tmp_path / "private") == [KEY.name]


def test_work_folders_of_processes_that_died_are_removed_those_of_others_are_not(tmp_path: Path) -> None:
    living = Cache(tmp_path)
    work = living.work_folder(ENGINES)
    assert work is not None
    dead = tmp_path / "work-0123456789"
    dead.mkdir()
    (dead / "half.engine").touch()
    Cache(tmp_path)
    assert work.exists()
    assert not dead.exists()
    living.release(work)
    assert entries(tmp_path) == []


def _write_often(folder: str, value: int) -> None:
    cache = Cache(Path(folder))
    for _ in range(20):
        cache.write_json(KEY, [value] * 50)
        found = cache.read_json(KEY)
        # Beside the other writer an entry may be away for a moment; what is read is whole.
        if found is not None and (not isinstance(found, list) or len(set(found)) != 1 or len(found) != 50):
            os._exit(3)


def test_processes_that_write_the_same_entry(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_often, args=(str(tmp_path), value)) for value in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert Cache(tmp_path).read_json(KEY) in ([1] * 50, [2] * 50)
    assert entries(tmp_path) == [KEY.name]


def test_the_manifest_says_what_the_entry_is_for(tmp_path: Path) -> None:
    Cache(tmp_path).write_json(KEY, 1)
    manifest = json.loads((tmp_path / KEY.name / "cache.json").read_text())
    assert manifest["key"] == dataclasses.asdict(KEY)
    assert set(manifest["files"]) == {"value.json"}
    assert (tmp_path / KEY.name).stat().st_mode & 0o077 == 0
