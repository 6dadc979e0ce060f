"""The verbs, in this process: what they print, what they return, what they write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeonnx import __version__
from edgeonnx.cli.main import app
from edgeonnx.spec.manifest import Task
from tests.support.bundles import make_bundle
from tests.support.cli import ESCAPE

RUNNER = CliRunner()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path, Task.TEXT_CLASSIFICATION)


def test_the_version_is_printed() -> None:
    done = RUNNER.invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"edgeonnx {__version__}\n")
    assert RUNNER.invoke(app, ["-V"]).stdout == done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["package", "--help"], ["inspect", "-h"], ["verify", "-h"]])
def test_help_is_printed(arguments: list[str]) -> None:
    done = RUNNER.invoke(app, arguments)
    assert done.exit_code == 0
    assert done.stdout.startswith("Usage: ")


def test_help_lists_the_verbs_and_exit_codes_line_by_line() -> None:
    lines = [line.strip() for line in RUNNER.invoke(app, ["--help"]).stdout.splitlines()]
    for verb in ("package", "inspect", "verify"):
        assert any(line.startswith(f"{verb} ") for line in lines)
    assert "2    wrong usage, or the output exists already" in lines
    assert "130  interrupted" in lines


@pytest.mark.parametrize(
    "arguments",
    [
        ["pack"],
        ["package"],
        ["package", "x"],
        ["package", "x", "--name", "a", "--version", "1"],
        ["package", "x", "-n", "a", "-v", "1", "-o", "out", "--task", "speech"],
        ["package", "x", "-n", "a", "-v", "1", "-o", "out", "--max-length", "1"],
        ["package", "x", "-n", "a", "-v", "1", "-o", "out", "--typo"],
        ["verify"],
        ["inspect", "a", "b"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2_and_says_how_it_is_right(arguments: list[str]) -> None:
    done = RUNNER.invoke(app, arguments)
    assert done.exit_code == 2
    assert "Usage: " in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("option", "value"), [("--name", "../x"), ("--name", "A b"), ("--version", "1/2")])
def test_names_that_cannot_be_folders_are_wrong_usage(tmp_path: Path, option: str, value: str) -> None:
    arguments = {"--name": "a", "--version": "1", "--out": str(tmp_path), option: value}
    done = RUNNER.invoke(app, ["package", "x", *[part for pair in arguments.items() for part in pair]])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {option}: ")
    assert "expected: " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_verify_tells_people_that_a_bundle_is_good(bundle: Path) -> None:
    done = RUNNER.invoke(app, ["verify", str(bundle)])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "the bundle is good on this machine"
    assert "tiny 1.0.0 (text-classification)" in done.stdout
    for stage in ("structure", "bytes", "tokens", "golden"):
        assert f"✓ {stage}" in done.stderr
    assert ESCAPE not in done.stdout + done.stderr


def test_quiet_leaves_only_the_result(bundle: Path) -> None:
    done = RUNNER.invoke(app, ["verify", "--quiet", str(bundle)])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout


def test_inspect_shows_a_bundle_that_has_little_evidence(bundle: Path) -> None:
    done = RUNNER.invoke(app, ["inspect", str(bundle)])
    assert done.exit_code == 0, (done.stderr, done.exception)
    for text in ("tiny 1.0.0", "negative, neutral, positive", "encoder/cpu-fp32", "Gather", "in  input_ids", "words"):
        assert text in done.stdout
    assert done.stderr == ""


def test_inspect_shows_a_single_graph(bundle: Path) -> None:
    done = RUNNER.invoke(app, ["inspect", str(bundle / "encoder/cpu-fp32/model.onnx")])
    assert done.exit_code == 0
    assert done.stdout.startswith("model.onnx\n")


@pytest.mark.parametrize("verb", ["verify", "inspect"])
def test_json_is_one_document_and_nothing_else(bundle: Path, verb: str) -> None:
    done = RUNNER.invoke(app, [verb, "--json", str(bundle)])
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["verify", "{here}/none"], 5, "NotABundleError"),
        (["inspect", "{here}/none"], 5, "NotABundleError"),
        (["inspect", "{here}/text.onnx"], 4, "ValidationError"),
        (["verify", "{here}/damaged"], 5, "IntegrityError"),
        (["package", "{here}/none", "-n", "a", "-v", "1", "-o", "{here}"], 3, "SourceNotFoundError"),
        (["package", "{here}/text.onnx", "-n", "a", "-v", "1", "-o", "{here}"], 3, "UnsupportedModelError"),
        (["package", "{here}", "-n", "a/b", "-v", "1", "-o", "{here}"], 2, "UsageError"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_errors_have_their_code_and_no_traceback(
    tmp_path: Path, arguments: list[str], code: int, error: str, as_json: bool
) -> None:
    (tmp_path / "text.onnx").write_text("not a graph")
    make_bundle(tmp_path, name="damaged").rename(tmp_path / "damaged")
    (tmp_path / "damaged" / "evidence.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    line = [part.format(here=tmp_path) for part in arguments] + (["--json"] if as_json else [])
    done = RUNNER.invoke(app, line)
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    assert "Traceback" not in done.stdout + done.stderr
    if as_json:
        assert json.loads(done.stdout)["error"] == error
        assert "error: " not in done.stderr
    else:
        assert done.stdout == ""
        assert "error: " in done.stderr
    assert sorted(tmp_path.rglob("*")) == before
