"""Writing: all or nothing, the same bytes again, and nothing that is not a bundle is replaced."""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgeonnx.bundle import BundleWriter, open_bundle
from edgeonnx.bundle import writer as writer_module
from edgeonnx.bundle.writer import check_target, clear_leftovers
from edgeonnx.errors import BundleError, UnsafePathError, UsageError
from tests.support.bundles import make_bundle


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    assert snapshot(make_bundle(tmp_path / "a")) == snapshot(make_bundle(tmp_path / "b"))


def test_only_the_bundle_is_left_in_the_folder(tmp_path: Path) -> None:
    make_bundle(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-1.0.0"]


def interrupted_build(target: Path, failure: BaseException, *, replace: bool = False) -> None:
    with BundleWriter(target, replace=replace) as writer:
        writer.add("a/b", b"x")
        raise failure


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_build_that_fails_leaves_nothing(tmp_path: Path, failure: type[BaseException]) -> None:
    with pytest.raises(failure):
        interrupted_build(tmp_path / "b", failure())
    assert list(tmp_path.iterdir()) == []


def test_leaving_without_publishing_leaves_nothing(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "b") as writer:
        writer.add("a", b"x")
        assert (writer.staging / "a").read_bytes() == b"x"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["../a", "/a", "a/../b", "", "a\\b"])
def test_a_path_that_leaves_the_bundle_is_not_written(tmp_path: Path, path: str) -> None:
    with BundleWriter(tmp_path / "out" / "b") as writer, pytest.raises(UnsafePathError):
        writer.add(path, b"x")
    assert list(tmp_path.rglob("*")) == [tmp_path / "out"]


def test_a_file_is_written_once(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "b") as writer:
        writer.add("a", b"x")
        with pytest.raises(ValueError, match="a was written already"):
            writer.add("a", b"y")


def test_an_asset_is_named_by_its_content_and_written_once(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "b") as writer:
        first = writer.add_asset({"x": b"1", "y": b"2"})
        assert writer.add_asset({"y": b"2", "x": b"1"}) == first
        assert writer.add_asset({"x": b"1", "y": b"3"}) != first


def unsealed_bundle(folder: Path, **files: bytes) -> Path:
    """A tiny bundle that was replaced by itself with files outside the digest."""
    source = make_bundle(folder)
    with BundleWriter(source, replace=True) as writer:
        for entry in open_bundle(source).contents.files:
            writer.add(entry.path, (source / entry.path).read_bytes())
        shutil.copy(source / "contents.json", writer.staging / "contents.json")
        for name, data in files.items():
            writer.add_unsealed({"report": "report.html", "timings": "timings.json"}[name], data)
        writer.publish()
    return source


def test_files_outside_the_digest_do_not_change_it(tmp_path: Path) -> None:
    plain = open_bundle(make_bundle(tmp_path / "a"))
    made = open_bundle(unsealed_bundle(tmp_path / "b", report=b"<html>", timings=b"{}"))
    assert made.digest == plain.digest
    assert made.unsealed() == ("report.html", "timings.json")
    assert (made.root / "report.html").read_bytes() == b"<html>"
    assert plain.unsealed() == ()


def test_files_outside_the_digest_may_be_added_after_finish(tmp_path: Path) -> None:
    opened = open_bundle(make_bundle(tmp_path / "a"))
    evidence = opened.evidence()
    target = tmp_path / "b"
    with BundleWriter(target) as writer:
        for entry in opened.contents.files:
            if entry.path not in ("manifest.json", "encoder/component.json", "evidence.json"):
                writer.add(entry.path, (opened.root / entry.path).read_bytes())
        contents = writer.finish(opened.manifest, evidence)
        writer.add_unsealed("report.html", b"<html>")
        writer.publish()
    assert open_bundle(target).digest == contents.digest == opened.digest
    assert open_bundle(target).unsealed() == ("report.html",)


@pytest.mark.parametrize("name", ["notes.txt", "a/report.html", "Report.html", "../report.html", "contents.json"])
def test_other_files_must_be_sealed(tmp_path: Path, name: str) -> None:
    with BundleWriter(tmp_path / "b") as writer, pytest.raises(ValueError, match="must be sealed"):
        writer.add_unsealed(name, b"x")


@pytest.mark.parametrize("name", ["report.html", "timings.json", "TIMINGS.JSON"])
def test_what_no_list_may_name_is_not_sealed(tmp_path: Path, name: str) -> None:
    with BundleWriter(tmp_path / "b") as writer, pytest.raises(ValueError, match="cannot be sealed"):
        writer.add(name, b"x")


def test_a_file_outside_the_digest_is_written_once(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "b") as writer:
        writer.add_unsealed("report.html", b"x")
        with pytest.raises(ValueError, match=r"report\.html was written already"):
            writer.add_unsealed("report.html", b"y")


def test_a_file_outside_the_digest_is_durable_as_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(writer_module.os, "fsync", record)
    with BundleWriter(tmp_path / "b") as writer:
        writer.add_unsealed("report.html", b"x")
        assert synced == ["report.html", writer.staging.name]


def test_an_existing_bundle_is_refused_and_untouched(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    before = snapshot(bundle)
    with pytest.raises(UsageError) as caught:
        BundleWriter(bundle)
    assert caught.value.where == str(bundle)
    assert "--force" in (caught.value.hint or "")
    assert snapshot(bundle) == before


def test_replacing_keeps_the_old_bundle_until_the_new_one_is_whole(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    before = snapshot(bundle)
    with pytest.raises(RuntimeError):
        interrupted_build(bundle, RuntimeError(), replace=True)
    assert snapshot(bundle) == before
    assert list(tmp_path.iterdir()) == [bundle]


def test_replacing_leaves_only_the_new_bundle(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    with BundleWriter(bundle, replace=True) as writer:
        writer.add("manifest.json", b"new")
        writer.publish()
    assert snapshot(bundle) == {"manifest.json": b"new"}
    assert list(tmp_path.iterdir()) == [bundle]


def test_an_interrupt_between_the_two_renames_keeps_the_old_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(tmp_path)
    before = snapshot(bundle)
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise KeyboardInterrupt
        return rename(self, target)

    with BundleWriter(bundle, replace=True) as writer:
        writer.add("manifest.json", b"new")
        monkeypatch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.publish()
    assert snapshot(bundle) == before


def test_a_bundle_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "tiny-1.0.0") as writer:
        writer.add("manifest.json", b"mine")
        other = snapshot(make_bundle(tmp_path))
        with pytest.raises(UsageError, match="exists already"):
            writer.publish()
    assert snapshot(tmp_path / "tiny-1.0.0") == other


def not_a_bundle(kind: str, target: Path) -> None:
    if kind == "file":
        target.write_text("precious")
    elif kind == "folder":
        target.mkdir()
        (target / "precious").write_text("precious")
    elif kind == "link to a bundle":
        target.symlink_to(make_bundle(target.parent / "elsewhere"))
    else:
        target.symlink_to("nowhere")


@pytest.mark.parametrize("kind", ["file", "folder", "link to a bundle", "dangling link"])
def test_what_is_not_a_bundle_is_never_replaced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "x-1.0.0"
    not_a_bundle(kind, target)
    with pytest.raises(UsageError, match="it is not a bundle") as caught:
        BundleWriter(target, replace=True)
    assert caught.value.hint is not None
    assert os.path.lexists(target)


def test_a_file_in_place_of_the_folder_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(UsageError, match="a file is in its place") as caught:
        check_target(tmp_path / "out" / "deeper" / "b-1", replace=False)
    assert caught.value.where == str(tmp_path / "out")


def test_a_folder_without_write_permission_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module.os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="cannot be written"):
        check_target(tmp_path / "b-1", replace=False)


def test_folders_that_do_not_exist_yet_are_made(tmp_path: Path) -> None:
    assert open_bundle(make_bundle(tmp_path / "a" / "b")).manifest.name == "tiny"


def test_a_full_disk_is_an_error_of_ours_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with BundleWriter(tmp_path / "b") as writer:
        monkeypatch.setattr(writer_module.os, "fsync", full)
        with pytest.raises(BundleError, match="No space left on device") as caught:
            writer.add("encoder/x", b"x")
    assert caught.value.where == str(tmp_path / "encoder/x")
    assert "make room" in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from edgeonnx.bundle import BundleWriter
writer = BundleWriter(Path(sys.argv[1])).__enter__()
writer.add("a/b", b"x")
print(writer.staging.name, flush=True)
if sys.argv[2] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""


def build_elsewhere(target: Path, then: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", KILLED, str(target), then]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_what_a_killed_build_left_is_removed_and_a_running_one_is_not_disturbed(tmp_path: Path) -> None:
    target = tmp_path / "b"
    with build_elsewhere(target, "die") as killed:
        left = (killed.stdout or io.StringIO()).readline().strip()
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / left / "a" / "b").is_file()
    with build_elsewhere(target, "live") as running:
        busy = (running.stdout or io.StringIO()).readline().strip()
        clear_leftovers(target)
        assert [path.name for path in tmp_path.iterdir()] == [busy]
    clear_leftovers(target)
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_that_was_set_aside_gets_its_name_back(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    before = snapshot(bundle)
    bundle.rename(tmp_path / f".{bundle.name}.0123abcd.retired")
    clear_leftovers(bundle)
    assert snapshot(bundle) == before
    assert [path.name for path in tmp_path.iterdir()] == [bundle.name]


def test_a_bundle_that_was_set_aside_and_replaced_is_removed(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    (tmp_path / f".{bundle.name}.0123abcd.retired").mkdir()
    others = [".another-1.0.0.0123abcd.partial", f".{bundle.name}.1.0123abcd.retired"]
    for name in others:
        (tmp_path / name).mkdir()
    clear_leftovers(bundle)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*others, bundle.name]


def test_a_bundle_does_not_take_the_name_of_a_shorter_version(tmp_path: Path) -> None:
    aside = tmp_path / ".minilm-1.0.0.0123abcd.retired"
    aside.mkdir()
    clear_leftovers(tmp_path / "minilm-1.0")
    assert list(tmp_path.iterdir()) == [aside]


def test_where_nothing_was_built_yet_there_is_nothing_to_clear(tmp_path: Path) -> None:
    clear_leftovers(tmp_path / "none" / "b")
    assert list(tmp_path.iterdir()) == []
