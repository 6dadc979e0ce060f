from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from device_agent.cli.main import app, process_age
from edgeonnx import errors

runner = CliRunner()


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("edgeonnx-agent ")


def test_help_tells_the_exit_codes() -> None:
    result = runner.invoke(app, ["serve", "--help"])
    assert result.exit_code == 0
    possible = (errors.UsageError, errors.BundleError, errors.GoldenSetError, errors.RuntimeUnavailableError)
    for code in (0, 1, *(kind.exit_code for kind in possible)):
        assert f"  {code}  " in result.output


@pytest.mark.parametrize("arguments", [["serve"], ["serve", "--bundle", "x", "--port", "70000"], ["dance"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2


def test_an_error_ends_with_its_own_code_and_without_a_traceback(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[31mname"  # a name must not reach the terminal raw
    folder.mkdir()
    command = [sys.executable, "-m", "device_agent.cli.main", "serve", "--port", "0", "--bundle", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == errors.NotABundleError.exit_code
    assert "error: " in done.stderr
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from device_agent.cli.main import app; from typer.testing import CliRunner;"
        "assert CliRunner().invoke(app, ['serve', '--help']).exit_code == 0;"
        "print([name for name in ('numpy', 'onnxruntime', 'fastapi', 'uvicorn', 'starlette', 'edgeonnx_ext') "
        "if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_process_is_older_than_nothing_and_younger_than_an_hour() -> None:
    assert 0 < process_age() < 3600
