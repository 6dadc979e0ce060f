"""Bundles whose files were damaged, exchanged or smuggled in. Each is refused with exit code 5, and nothing is run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeonnx.bundle import open_bundle, verify_files
from edgeonnx.cli.main import app
from edgeonnx.errors import BundleError, IntegrityError, NotABundleError, UnsafePathError
from tests.support.bundles import make_bundle
from tests.support.tamper import copy_of

KINDS = {
    "the graph": "encoder/*/model.onnx",
    "a tensor": "shared_assets/*/" + "?" * 64,
    "the tokenizer": "shared_assets/*/tokenizer.json",
    "the golden texts": "shared_assets/*/golden.json",
    "the golden ids": "shared_assets/*/inputs.input_ids.npy",
    "the golden answers": "shared_assets/*/outputs.*.npy",
    "the manifest": "manifest.json",
    "a component": "encoder/component.json",
    "the evidence": "evidence.json",
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("good"))


@pytest.fixture
def bundle(good: Path, tmp_path: Path) -> Path:
    return copy_of(good, tmp_path)


def one(bundle: Path, pattern: str) -> Path:
    return next(bundle.glob(pattern))


def refused(bundle: Path, kind: type[BundleError]) -> BundleError:
    """The error of opening and hashing; `verify` and `inspect` must not go further than that."""
    with pytest.raises(kind) as caught:
        verify_files(open_bundle(bundle))
    assert type(caught.value) is kind
    done = CliRunner().invoke(app, ["verify", str(bundle)])
    assert done.exit_code == 5, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return caught.value


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 0x01
    file.write_bytes(data)


@pytest.mark.parametrize("place", [0, -1], ids=["first byte", "last byte"])
@pytest.mark.parametrize("what", KINDS)
def test_a_flipped_bit(bundle: Path, what: str, place: int) -> None:
    file = one(bundle, KINDS[what])
    flip(file, place)
    with pytest.raises(BundleError):
        verify_files(open_bundle(bundle))
    assert CliRunner().invoke(app, ["verify", str(bundle)]).exit_code == 5


@pytest.mark.parametrize("what", [what for what, pattern in KINDS.items() if not pattern.endswith(".json")])
def test_a_flipped_bit_in_data_names_the_file(bundle: Path, what: str) -> None:
    file = one(bundle, KINDS[what])
    flip(file, file.stat().st_size // 2)
    error = refused(bundle, IntegrityError)
    assert len(error.details) == 1
    assert error.details[0].startswith(f"{file.relative_to(bundle)}: sha256 ")
    assert error.hint is not None


@pytest.mark.parametrize("what", KINDS)
@pytest.mark.parametrize(
    "change", ["missing", "empty", "longer", "a folder", "a link", "a hard link to another", "a fifo"]
)
def test_a_file_that_is_not_what_the_list_says(bundle: Path, what: str, change: str) -> None:
    file = one(bundle, KINDS[what])
    data = file.read_bytes()
    other = one(bundle, "evidence.json" if what != "the evidence" else "encoder/component.json")
    file.unlink()
    if change == "empty":
        file.touch()
    elif change == "longer":
        file.write_bytes(data + b"\n")
    elif change == "a folder":
        file.mkdir()
    elif change == "a link":
        (bundle.parent / "outside").write_bytes(data)
        file.symlink_to(bundle.parent / "outside")
    elif change == "a hard link to another":
        file.hardlink_to(other)
    elif change == "a fifo":
        os.mkfifo(file)
    unsafe = change in ("a link", "a fifo")
    gone = what == "the manifest" and change in ("missing", "a folder", "a fifo")
    error = refused(bundle, NotABundleError if gone else UnsafePathError if unsafe else IntegrityError)
    name = str(file.relative_to(bundle))
    assert name in (error.where or "") or any(name in line for line in error.details) or gone
    assert error.expected or error.details


def _extra(name: str) -> Callable[[Path], object]:
    def add(bundle: Path) -> None:
        (bundle / name).parent.mkdir(parents=True, exist_ok=True)
        (bundle / name).write_text("x")

    return add


@pytest.mark.parametrize(
    "name", ["extra", "encoder/cpu-fp32/model.onnx.data", ".hidden", "encoder/libevil.so", "a b\n", "Manifest.json"]
)
def test_a_file_that_is_not_listed(bundle: Path, name: str) -> None:
    _extra(name)(bundle)
    error = refused(bundle, IntegrityError)
    assert error.details == (f"{name}: not listed in contents.json",)


@pytest.mark.parametrize("name", [os.fsdecode(b"\xff\xfe"), "\x1b[2Jcleared"], ids=["not UTF-8", "an escape sequence"])
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_the_name_of_an_extra_file_does_not_reach_the_terminal_raw(bundle: Path, name: str, as_json: bool) -> None:
    _extra(name)(bundle)
    done = CliRunner().invoke(app, ["verify", str(bundle), *(["--json"] if as_json else [])])
    assert done.exit_code == 5
    assert "\x1b" not in done.stdout + done.stderr
    assert "not listed" in done.stdout + done.stderr


@pytest.mark.parametrize("folder", ["encoder", "encoder/cpu-fp32", "shared_assets"])
def test_a_folder_that_is_a_link(bundle: Path, folder: str) -> None:
    shutil.move(bundle / folder, bundle.parent / "moved")
    (bundle / folder).symlink_to(bundle.parent / "moved")
    error = refused(bundle, UnsafePathError)
    assert error.where == folder
    assert "cp -rL" in (error.hint or "")


@pytest.mark.parametrize("file", ["contents.json", "manifest.json"])
def test_the_metadata_itself_is_a_link(bundle: Path, file: str) -> None:
    shutil.move(bundle / file, bundle.parent / file)
    (bundle / file).symlink_to(bundle.parent / file)
    assert refused(bundle, UnsafePathError).where == file


def test_a_link_that_nobody_names(bundle: Path) -> None:
    (bundle / "dangling").symlink_to("/nowhere")
    assert refused(bundle, UnsafePathError).where == "dangling"


def test_a_socket(bundle: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        before = Path.cwd()
        os.chdir(bundle)  # a socket's path is short
        try:
            listener.bind("s")
        finally:
            os.chdir(before)
        error = refused(bundle, UnsafePathError)
    assert "a special file" in error.message


def test_folders_nested_until_no_path_fits(bundle: Path) -> None:
    before = Path.cwd()
    os.chdir(bundle)
    try:
        for _ in range(30):
            Path("d" * 200).mkdir()
            os.chdir("d" * 200)
    finally:
        os.chdir(before)
    try:
        error = refused(bundle, IntegrityError)
        assert "cannot be read" in error.message
    finally:
        shutil.rmtree(bundle, ignore_errors=True)


def test_a_file_that_vanishes_between_list_and_hash(bundle: Path) -> None:
    opened = open_bundle(bundle)
    (bundle / "evidence.json").unlink()
    with pytest.raises(IntegrityError) as caught:
        verify_files(opened)
    assert caught.value.details == ("evidence.json: cannot be read (No such file or directory)",)


def test_a_file_that_becomes_a_link_between_list_and_hash(bundle: Path) -> None:
    opened = open_bundle(bundle)
    shutil.move(bundle / "evidence.json", bundle.parent / "evidence.json")
    (bundle / "evidence.json").symlink_to(bundle.parent / "evidence.json")
    with pytest.raises(IntegrityError) as caught:
        verify_files(opened)
    assert "evidence.json: cannot be read" in caught.value.details[0]
