from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from device_agent.cli import EXIT_CODES, app, exit_code, process_age
from edgeonnx import errors
from edgeonnx.cli import exits

runner = CliRunner()


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("edgeonnx-agent ")


def test_help_tells_the_exit_codes() -> None:
    result = runner.invoke(app, ["serve", "--help"])
    assert result.exit_code == 0
    for code in (0, 1, *set(EXIT_CODES.values())):
        assert f"  {code}  " in result.output


@pytest.mark.parametrize("arguments", [["serve"], ["serve", "--bundle", "x", "--port", "70000"], ["dance"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize("kind", [errors.UsageError, errors.NotABundleError, errors.IntegrityError])
def test_the_codes_are_those_of_the_host(kind: type[errors.EdgeOnnxError]) -> None:
    for known in (*EXIT_CODES, kind):
        assert exit_code(known("x")) == exits.exit_code(known("x"))
    assert exit_code(errors.InferenceError("x")) == 1


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from device_agent.cli import app; from typer.testing import CliRunner;"
        "assert CliRunner().invoke(app, ['serve', '--help']).exit_code == 0;"
        "print([name for name in ('numpy', 'onnxruntime', 'fastapi', 'uvicorn', 'starlette', 'edgeonnx_ext') "
        "if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_process_is_older_than_nothing_and_younger_than_an_hour() -> None:
    assert 0 < process_age() < 3600
