"""Which names may appear in a bundle; no file system is asked."""

from __future__ import annotations

import pytest

from edgeonnx.errors import UnsafePathError, UsageError
from edgeonnx.spec.paths import (
    MAX_PATH_DEPTH,
    MAX_PATH_LENGTH,
    asset_directory,
    check_bundle_name,
    check_bundle_version,
    check_relative_path,
    split_asset_reference,
)

DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "path", ["a", "a/b.json", "encoder/cpu-fp32/model.onnx", "_x/1", "inputs.input_ids.npy", "a+b", "/".join("a" * 16)]
)
def test_plain_relative_paths_pass(path: str) -> None:
    assert check_relative_path(path, where="w") == path


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("..", "segment '..'"),
        ("a/../../b", "segment '..'"),
        ("./a", "segment '.'"),
        ("a//b", "segment ''"),
        ("a/", "segment ''"),
        ("a\\b", "characters outside"),
        ("..\\b", "characters outside"),
        ("C:/x", "characters outside"),
        ("a\0b", "characters outside"),
        ("a\nb", "characters outside"),
        ("a b", "characters outside"),
        ("ä", "characters outside"),
        ("~/x", "characters outside"),
        (".hidden", "characters outside"),
        ("-rf", "characters outside"),
        ("a/NUL", "reserved device name"),
        ("com1.txt", "reserved device name"),
        ("x" * (MAX_PATH_LENGTH + 1), "longer than"),
        ("/".join("a" * (MAX_PATH_DEPTH + 1)), "deeper than"),
    ],
)
def test_other_paths_are_refused_with_the_reason_and_the_place(path: str, reason: str) -> None:
    with pytest.raises(UnsafePathError) as caught:
        check_relative_path(path, where="m.json: files[0]")
    assert reason in caught.value.message
    assert caught.value.where == "m.json: files[0]"
    assert caught.value.expected is not None
    assert len(caught.value.found or "") < 200


def test_asset_references_are_split() -> None:
    assert split_asset_reference(f"sha256:{DIGEST}", where="w") == (DIGEST, "")
    assert split_asset_reference(f"sha256:{DIGEST}/a/b", where="w") == (DIGEST, "a/b")
    assert asset_directory(DIGEST) == f"shared_assets/sha256-{DIGEST}"


@pytest.mark.parametrize(
    "reference",
    [
        "",
        DIGEST,
        f"md5:{DIGEST}",
        f"sha256:{DIGEST[:-1]}",
        f"sha256:{DIGEST.upper()}",
        f"sha256:{DIGEST}/",
        f"sha256:{DIGEST}/../x",
        f"sha256:{DIGEST}//x",
        f"sha256:{DIGEST}x",
        f"sha256:{DIGEST}\n",
        f"sha256:{DIGEST}/x\n",
    ],
)
def test_other_references_are_refused(reference: str) -> None:
    with pytest.raises(UnsafePathError) as caught:
        split_asset_reference(reference, where="manifest.json: golden")
    assert caught.value.where == "manifest.json: golden"


@pytest.mark.parametrize("name", ["minilm", "a", "0", "all-minilm_l6.v2", "x" * 64])
def test_bundle_names_that_pass(name: str) -> None:
    assert check_bundle_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "A", "-a", ".a", "a/b", "a b", "a..b", "x" * 65, "ä", "con", "nul.txt", "a\n", "../a"]
)
def test_bundle_names_that_do_not(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_bundle_name(name)
    assert caught.value.where == "--name"
    assert caught.value.expected is not None


@pytest.mark.parametrize("version", ["1", "1.0.0", "2024-06-01", "1.0.0-rc.1+build5", "V2"])
def test_versions_that_pass(version: str) -> None:
    assert check_bundle_version(version) == version


@pytest.mark.parametrize("version", ["", ".1", "-1", "1..2", "1/2", "1 2", "1\n", "x" * 65, "+1"])
def test_versions_that_do_not(version: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_bundle_version(version)
    assert caught.value.where == "--version"
    assert "1.0.0" in (caught.value.expected or "")
