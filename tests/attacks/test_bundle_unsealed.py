"""Abuse of the two files that no digest covers: they may be there or not, and nothing else may hide behind them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.models.loading import load_model
from edgeonnx.bundle import open_bundle, verify_files
from edgeonnx.bundle.reader import MAX_TIMINGS_BYTES
from edgeonnx.cli.main import app
from edgeonnx.errors import BundleError, IntegrityError, ManifestError, UnsafePathError
from edgeonnx.spec.contents import UNSEALED_FILES
from tests.support.bundles import make_bundle
from tests.support.tamper import copy_of, edit_json

TIMING = {
    "threads": 1,
    "texts": 2,
    "tokens": 9,
    "texts_per_second": 1.5,
    "tokens_per_second": 2.5,
    "latency_ms": 1,
    "latency_p95_ms": 2,
}
GOOD: dict[str, Any] = {"schema_version": "1.0", "machine": {}, "graphs": {"cpu-fp32": TIMING}, "stages": {"export": 1}}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("good"))


@pytest.fixture
def bundle(good: Path, tmp_path: Path) -> Path:
    return copy_of(good, tmp_path)


def refused(bundle: Path, kind: type[BundleError]) -> BundleError:
    """The error of opening; the agent must not go further than that, and `verify` says so with its code."""
    with pytest.raises(kind) as caught:
        load_model(bundle, AgentConfig(runtime=RuntimeConfig(runners=1, threads=1)))
    done = CliRunner().invoke(app, ["verify", str(bundle)])
    assert done.exit_code == 5, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return caught.value


@pytest.mark.parametrize("name", UNSEALED_FILES)
@pytest.mark.parametrize("target", ["manifest.json", "/etc/passwd", "nowhere"])
def test_a_link(bundle: Path, name: str, target: str) -> None:
    (bundle / name).symlink_to(target)
    assert refused(bundle, UnsafePathError).where == name


@pytest.mark.parametrize("name", UNSEALED_FILES)
def test_a_fifo(bundle: Path, name: str) -> None:
    os.mkfifo(bundle / name)
    assert refused(bundle, UnsafePathError).where == name


@pytest.mark.parametrize("name", UNSEALED_FILES)
@pytest.mark.parametrize("inside", [None, "x", "libevil.so"])
def test_a_folder(bundle: Path, name: str, inside: str | None) -> None:
    (bundle / name).mkdir()
    expected = {f"{name}: a folder, not a file"}
    if inside is not None:
        (bundle / name / inside).write_text("x")
        expected.add(f"{name}/{inside}: not listed in contents.json")
    assert set(refused(bundle, IntegrityError).details) == expected


@pytest.mark.parametrize("folder", ["encoder", "encoder/cpu-fp32", "shared_assets"])
@pytest.mark.parametrize("name", UNSEALED_FILES)
def test_the_same_name_in_a_subfolder(bundle: Path, folder: str, name: str) -> None:
    (bundle / folder / name).write_text("x")
    assert refused(bundle, IntegrityError).details == (f"{folder}/{name}: not listed in contents.json",)


@pytest.mark.parametrize("name", ["Report.html", "report.htm", "report.html.bak", "timings.json~", "TIMINGS.JSON"])
def test_a_similar_name(bundle: Path, name: str) -> None:
    (bundle / name).write_text("x")
    assert refused(bundle, IntegrityError).details == (f"{name}: not listed in contents.json",)


@pytest.mark.parametrize("name", [*UNSEALED_FILES, "REPORT.HTML"])
def test_a_list_that_names_one(bundle: Path, name: str) -> None:
    (bundle / name).write_text("x")
    edit_json(bundle, "contents.json", lambda d: d["files"].append({"path": name, "size": 1, "sha256": "0" * 64}))
    error = refused(bundle, ManifestError)
    assert (error.where or "").startswith("contents.json: files[")
    assert "the digest does not cover" in error.message


@pytest.mark.parametrize("name", UNSEALED_FILES)
def test_whatever_they_hold_the_agent_serves_and_does_not_read_them(bundle: Path, name: str) -> None:
    (bundle / name).write_bytes(b"\xff\x00 not what it says")
    (bundle / name).chmod(0)
    loaded = load_model(bundle, AgentConfig(runtime=RuntimeConfig(runners=1, threads=1)))
    loaded.close()
    done = CliRunner().invoke(app, ["verify", str(bundle), "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["not_covered_by_digest"] == [name]


def _graph(**changes: object) -> dict[str, Any]:
    return {**GOOD, "graphs": {"cpu-fp32": {**TIMING, **changes}}}


BROKEN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "timings.json"),
    "no JSON": (b"{", "timings.json"),
    "not UTF-8": (b"\xff", "timings.json"),
    "no object": (b"[]", "timings.json"),
    "no number": (json.dumps(GOOD).replace("1.5", "NaN").encode(), "timings.json"),
    "a key twice": (b'{"schema_version": "1.0", "schema_version": "1.0"}', "timings.json"),
    "no version": (json.dumps({k: v for k, v in GOOD.items() if k != "schema_version"}).encode(), "timings.json"),
    "an unknown field": (json.dumps({**GOOD, "x": 1}).encode(), "timings.json: x"),
    "a machine of numbers": (json.dumps({**GOOD, "machine": {"cores": 2}}).encode(), "timings.json: machine.cores"),
    "graphs as a list": (json.dumps({**GOOD, "graphs": []}).encode(), "timings.json: graphs"),
    "a stage in words": (json.dumps({**GOOD, "stages": {"export": "1 s"}}).encode(), "timings.json: stages.export"),
    "no thread": (json.dumps(_graph(threads=0)).encode(), "timings.json: graphs.cpu-fp32.threads"),
    "half a text": (json.dumps(_graph(texts=1.5)).encode(), "timings.json: graphs.cpu-fp32.texts"),
    "true": (json.dumps(_graph(latency_ms=True)).encode(), "timings.json: graphs.cpu-fp32.latency_ms"),
    "nested too deep": (b"[" * 100_000, "timings.json"),
}


def test_the_timings_that_the_broken_ones_are_made_of_are_good(bundle: Path) -> None:
    (bundle / "timings.json").write_text(json.dumps(GOOD))
    timings = open_bundle(bundle).timings()
    assert timings is not None
    assert timings.graphs["cpu-fp32"].latency_p95_ms == 2.0


@pytest.mark.parametrize("case", BROKEN)
def test_broken_timings_name_the_field(bundle: Path, case: str) -> None:
    data, where = BROKEN[case]
    (bundle / "timings.json").write_bytes(data)
    with pytest.raises(ManifestError) as caught:
        open_bundle(bundle).timings()
    assert caught.value.where == where


def _huge(file: Path) -> None:
    with file.open("wb") as out:
        out.truncate(MAX_TIMINGS_BYTES * 4096)


def _link(file: Path) -> None:
    file.symlink_to("manifest.json")


@pytest.mark.parametrize(
    ("change", "message"), [(_huge, "is too large"), (_link, "cannot be read"), (Path.mkdir, "cannot be read")]
)
def test_timings_that_are_exchanged_after_opening(bundle: Path, change: Callable[[Path], None], message: str) -> None:
    opened = open_bundle(bundle)
    change(bundle / "timings.json")
    with pytest.raises(ManifestError, match=message) as caught:
        opened.timings()
    assert caught.value.where == str(opened.root / "timings.json")


def test_huge_timings_keep_nobody_from_opening(bundle: Path) -> None:
    _huge(bundle / "timings.json")
    verify_files(open_bundle(bundle))
