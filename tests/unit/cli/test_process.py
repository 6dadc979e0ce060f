"""The command as a process: what it imports, its streams, its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edgeonnx import __version__
from tests.support.bundles import make_bundle
from tests.support.cli import ESCAPE, command, edgeonnx, environment

HEAVY = ("torch", "transformers", "onnx", "onnxruntime", "onnx_ir", "huggingface_hub", "safetensors", "tokenizers")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["package", "--help"], ["verify", "--help"]], ids=" ".join
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from edgeonnx.cli.main import app\n"
        "try:\n"
        f"    app({arguments!r}, prog_name='edgeonnx')\n"
        "finally:\n"
        f"    sys.stderr.write(','.join(name for name in {HEAVY!r} if name in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), timeout=60, check=False
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout


def test_a_plan_that_fails_imports_no_torch(tmp_path: Path) -> None:
    arguments = ["package", str(tmp_path), "-n", "a", "-v", "1", "-o", str(tmp_path)]
    program = (
        "import sys\n"
        "from edgeonnx.cli.main import app\n"
        "try:\n"
        f"    app({arguments!r}, prog_name='edgeonnx')\n"
        "finally:\n"
        "    print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (3, "False\n"), done.stderr


def test_the_version_is_printed() -> None:
    assert edgeonnx("--version").stdout == f"edgeonnx {__version__}\n"


def test_without_a_verb_help_is_shown_and_it_is_wrong_usage() -> None:
    done = edgeonnx()
    assert done.returncode == 2
    assert "Commands:" in done.stdout + done.stderr


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_piped_output_is_plain(bundle: Path, variables: dict[str, str]) -> None:
    for arguments in (["inspect", str(bundle)], ["verify", str(bundle)], ["verify", str(bundle / "none")]):
        done = edgeonnx(*arguments, **variables)
        assert ESCAPE not in done.stdout + done.stderr


def test_force_color_colours_what_is_piped(bundle: Path) -> None:
    done = edgeonnx("verify", str(bundle), FORCE_COLOR="1")
    assert ESCAPE in done.stdout
    assert ESCAPE in done.stderr
    assert "\r" not in done.stderr


def test_json_stays_json_where_colour_is_forced(bundle: Path) -> None:
    done = edgeonnx("verify", "--json", str(bundle), FORCE_COLOR="1")
    assert json.loads(done.stdout)["name"] == "tiny"
    assert done.stderr == ""


def test_a_terminal_without_utf8_is_served(bundle: Path) -> None:
    done = edgeonnx("verify", str(bundle), PYTHONIOENCODING="ascii:strict")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_that_is_no_utf8_ends_in_our_error(tmp_path: Path) -> None:
    path = f"{tmp_path}/\udcff\udcfe"
    for extra in ([], ["--json"]):
        done = edgeonnx("verify", path, *extra)
        assert done.returncode == 5
        assert "Traceback" not in done.stderr


def test_a_reader_that_stops_early_gets_no_traceback(bundle: Path) -> None:
    process = subprocess.Popen(
        command("inspect", "--json", str(bundle)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    with process.stderr:
        assert b"Traceback" not in process.stderr.read()
    process.wait(timeout=30)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_offered(shell: str) -> None:
    done = edgeonnx(_EDGEONNX_COMPLETE=f"source_{shell}")
    assert done.returncode == 0, done.stderr
    assert "_EDGEONNX_COMPLETE" in done.stdout


def test_completion_knows_the_verbs() -> None:
    done = edgeonnx(_EDGEONNX_COMPLETE="complete_bash", COMP_WORDS="edgeonnx ", COMP_CWORD="1")
    assert {"package", "inspect", "verify"} <= set(done.stdout.split())


def test_completion_can_be_shown_for_the_shell_in_use() -> None:
    pytest.importorskip("shellingham", reason="typer finds the shell with it")
    script = f"{sys.executable} -m edgeonnx.cli.main --show-completion; exit $?"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment(), timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "COMPLETE" in done.stdout
