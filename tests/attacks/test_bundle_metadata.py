"""Bundles whose metadata lies, although every listed byte is there: each is refused before a graph is opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edgeonnx.bundle import open_bundle
from edgeonnx.cli.main import app
from edgeonnx.errors import BundleError, IntegrityError, ManifestError, SchemaVersionError, UnsafePathError
from tests.support.bundles import make_bundle
from tests.support.tamper import copy_of, edit_json, relist

PATHS = {
    "the parent": "../x",
    "the parent, deep": "a/b/../../../x",
    "absolute": "/etc/passwd",
    "a network path": "//host/share",
    "a backslash": "..\\x",
    "a drive letter": "C:\\x",
    "a drive letter with slashes": "C:/x",
    "a NUL": "a\0b",
    "a line break": "a\nb",
    "a home folder": "~/x",
    "a URL": "file:///etc/passwd",
    "percent encoding": "%2e%2e/x",
    "a full-width slash": "..\uff0fx",
    "a device": "nul.txt",
    "empty": "",
    "a dot": ".",
    "very long": "x/" * 4000 + "x",
    "one very long name": "x" * 4096,
}
EXTERNAL = "session.model_external_initializers_file_folder_path"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("good"))


@pytest.fixture
def bundle(good: Path, tmp_path: Path) -> Path:
    return copy_of(good, tmp_path)


def refused(bundle: Path, kind: type[BundleError]) -> BundleError:
    with pytest.raises(kind) as caught:
        open_bundle(bundle)
    for verb in ("verify", "inspect"):
        done = CliRunner().invoke(app, [verb, str(bundle)])
        assert done.exit_code == 5, (done.stdout, done.stderr)
        assert "\x1b" not in done.stderr
    return caught.value


@pytest.mark.parametrize("case", PATHS)
def test_a_path_in_the_list_of_files(bundle: Path, case: str) -> None:
    edit_json(bundle, "contents.json", lambda d: d["files"][0].update(path=PATHS[case]))
    assert refused(bundle, UnsafePathError).where == "contents.json: files[0].path"


@pytest.mark.parametrize("case", PATHS)
def test_a_path_of_a_component(bundle: Path, case: str) -> None:
    edit_json(bundle, "manifest.json", lambda d: d["components"].update(encoder=PATHS[case]))
    relist(bundle)
    assert refused(bundle, UnsafePathError).where == "manifest.json: components.encoder"


@pytest.mark.parametrize("case", PATHS)
def test_a_path_as_the_name_of_a_component(bundle: Path, case: str) -> None:
    edit_json(bundle, "manifest.json", lambda d: d.update(components={PATHS[case]: PATHS[case]}))
    relist(bundle)
    assert (refused(bundle, UnsafePathError).where or "").startswith("manifest.json: components.")


def ours(document: dict[str, Any]) -> dict[str, Any]:
    return document["additional_metadata"]["edgeonnx"]  # type: ignore[no-any-return]


def set_reference(field: str, value: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        target = ours(document)["processing"] if field == "tokenizer" else ours(document)
        digest = target[field].split("/")[0]
        target[field] = f"{digest}/{value}"

    return change


@pytest.mark.parametrize("field", ["golden", "tokenizer"])
@pytest.mark.parametrize("case", PATHS)
def test_a_path_inside_an_asset(bundle: Path, field: str, case: str) -> None:
    edit_json(bundle, "manifest.json", set_reference(field, PATHS[case]))
    relist(bundle)
    where = "golden" if field == "golden" else "processing.tokenizer"
    assert refused(bundle, UnsafePathError).where == f"manifest.json: additional_metadata.edgeonnx.{where}"


def variant(document: dict[str, Any]) -> dict[str, Any]:
    return document["variants"]["cpu-fp32"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", PATHS)
def test_a_path_of_a_graph(bundle: Path, case: str) -> None:
    def change(document: dict[str, Any]) -> None:
        variant(document)["executor_info"]["ort"]["model_file"] = PATHS[case]

    edit_json(bundle, "encoder/component.json", change)
    relist(bundle)
    assert (refused(bundle, UnsafePathError).where or "").endswith("ort.model_file")


@pytest.mark.parametrize("case", PATHS)
def test_a_path_of_the_folder_with_tensors(bundle: Path, case: str) -> None:
    def change(document: dict[str, Any]) -> None:
        variant(document)["executor_info"]["ort"]["session_options"][EXTERNAL] = PATHS[case]

    edit_json(bundle, "encoder/component.json", change)
    relist(bundle)
    assert (refused(bundle, UnsafePathError).where or "").endswith(EXTERNAL)


@pytest.mark.parametrize("case", PATHS)
def test_a_path_as_the_name_of_a_variant(bundle: Path, case: str) -> None:
    def change(document: dict[str, Any]) -> None:
        document["variants"] = {PATHS[case]: {**variant(document), "variant_directory": PATHS[case]}}

    edit_json(bundle, "encoder/component.json", change)
    relist(bundle)
    assert (refused(bundle, UnsafePathError).where or "").endswith("variant_directory")


@pytest.mark.parametrize(
    "option",
    [
        "session.disable_prepacking",
        "session.load_model_format",
        "ep.context_file_path",
        "session.use_env_allocators",
        "mlas.enable_gemm_fastmath_arm64_bfloat16",
        "session.qdqisint8allowed",
    ],
)
def test_a_session_option_that_changes_the_computation(bundle: Path, option: str) -> None:
    def change(document: dict[str, Any]) -> None:
        variant(document)["executor_info"]["ort"]["session_options"][option] = "1"

    edit_json(bundle, "encoder/component.json", change)
    relist(bundle)
    error = refused(bundle, ManifestError)
    assert (error.where or "").endswith(f"session_options.{option}")
    assert error.expected == f"one of {EXTERNAL}"


RAW: dict[str, tuple[bytes, type[BundleError]]] = {
    "0 bytes": (b"", ManifestError),
    "not UTF-8": (b'{"a": "\xff"}', ManifestError),
    "UTF-16": ("{}".encode("utf-16"), ManifestError),
    "a byte order mark": (b"\xef\xbb\xbf{}", ManifestError),
    "not JSON": (b"schema_version: 1.0", ManifestError),
    "an array": (b"[]", ManifestError),
    "a number": (b"1", ManifestError),
    "null": (b"null", ManifestError),
    "an empty object": (b"{}", ManifestError),
    "a duplicate key": (b'{"schema_version": "1.0", "schema_version": "1.0"}', ManifestError),
    "NaN": (b'{"schema_version": NaN}', ManifestError),
    "an infinite number": (b'{"schema_version": 1e999}', ManifestError),
    "half a surrogate pair": (b'{"schema_version": "\\ud800"}', ManifestError),
    "nested too deep": (b'{"a":' * 200_000, ManifestError),
    "arrays nested too deep": (b"[" * 1_000_000, ManifestError),
    "a number of a million digits": (b"1" * 1_000_000, ManifestError),
    "an unknown major version": (b'{"schema_version": "2.0"}', SchemaVersionError),
    "version 0": (b'{"schema_version": "0.9"}', SchemaVersionError),
    "a version that is a number": (b'{"schema_version": 1.0}', ManifestError),
    "an escape sequence as a key": (b'{"schema_version": "1.0", "\\u001b[2J": 1}', ManifestError),
}


@pytest.mark.parametrize("file", ["contents.json", "manifest.json", "encoder/component.json", "evidence.json"])
@pytest.mark.parametrize("case", RAW)
def test_a_metadata_file_with_hostile_bytes(bundle: Path, file: str, case: str) -> None:
    data, kind = RAW[case]
    (bundle / file).write_bytes(data)
    if file != "contents.json":
        relist(bundle)
    expected = ManifestError if file == "encoder/component.json" else kind  # it states no version of its own
    with pytest.raises(expected) as caught:
        open_bundle(bundle).evidence()
    assert (caught.value.where or "").startswith(file)
    done = CliRunner().invoke(app, ["inspect", str(bundle)])
    assert done.exit_code == 5
    assert "\x1b" not in done.stderr


def test_a_huge_list_is_not_read(bundle: Path) -> None:
    with (bundle / "contents.json").open("wb") as file:
        file.truncate(1 << 40)
    assert refused(bundle, IntegrityError).message == "is too large"


@pytest.mark.parametrize("file", ["manifest.json", "encoder/component.json"])
def test_huge_metadata_is_not_read(bundle: Path, file: str) -> None:
    data = (bundle / file).read_bytes()
    (bundle / file).write_bytes(data + b" " * (5 << 20))
    relist(bundle)
    error = refused(bundle, IntegrityError)
    assert error.message == "is too large"
    assert (error.where or "").endswith(file)


def test_paths_that_differ_only_by_case(bundle: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        entry = next(item for item in document["files"] if item["path"] == "manifest.json")
        document["files"].append({**entry, "path": "MANIFEST.json"})

    edit_json(bundle, "contents.json", change)
    error = refused(bundle, ManifestError)
    assert error.message == "occurs twice"
    assert error.found == '"MANIFEST.json"'


def test_the_list_names_itself(bundle: Path) -> None:
    edit_json(
        bundle, "contents.json", lambda d: d["files"].append({"path": "contents.json", "size": 1, "sha256": "0" * 64})
    )
    assert refused(bundle, ManifestError).found == '"contents.json"'


@pytest.mark.parametrize(
    ("file", "field"),
    [("contents.json", "schema_version"), ("manifest.json", "schema_version"), ("evidence.json", "schema_version")],
)
def test_a_newer_minor_version_is_read(bundle: Path, file: str, field: str) -> None:
    edit_json(bundle, file, lambda d: d.update({field: "1.99"}))
    if file != "contents.json":
        relist(bundle)
    assert open_bundle(bundle).evidence() is not None
    assert CliRunner().invoke(app, ["verify", str(bundle)]).exit_code == 0


@pytest.mark.parametrize("reference", ["golden", "tokenizer", "tensors"])
def test_a_reference_to_an_asset_that_is_not_there(bundle: Path, reference: str) -> None:
    absent = "sha256:" + "0" * 64

    def change(document: dict[str, Any]) -> None:
        if reference == "golden":
            ours(document)["golden"] = absent
        elif reference == "tokenizer":
            ours(document)["processing"]["tokenizer"] = f"{absent}/tokenizer.json"
        else:
            variant(document)["executor_info"]["ort"]["session_options"][EXTERNAL] = absent

    edit_json(bundle, "encoder/component.json" if reference == "tensors" else "manifest.json", change)
    relist(bundle)
    error = refused(bundle, BundleError)
    assert "0" * 64 in str(error)


def test_a_component_without_its_file(bundle: Path) -> None:
    edit_json(bundle, "manifest.json", lambda d: d["components"].update(decoder="decoder"))
    relist(bundle)
    assert "decoder" in str(refused(bundle, BundleError))


@pytest.mark.parametrize("name", ["../../evil", "a/b", "con", "x\u001b[31m", "", "Upper"])
def test_a_name_that_would_become_a_folder_or_a_url(bundle: Path, name: str) -> None:
    edit_json(bundle, "manifest.json", lambda d: d.update(package_name=name))
    relist(bundle)
    error = refused(bundle, ManifestError)
    assert error.where == "manifest.json: package_name"
    assert error.found == json.dumps(name)
