from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from device_agent.cli.main import app, process_age
from device_agent.cli.options import OPTIONS, settings_from
from device_agent.cli.serve import check_files
from device_agent.config import AgentConfig, RuntimeConfig, SecurityConfig
from device_agent.settings import all_settings
from edgeonnx import errors
from tests.support import bundles

runner = CliRunner()


def help_of(*command: str) -> str:
    result = runner.invoke(app, [*command, "--help"], terminal_width=200)
    assert result.exit_code == 0
    return result.output


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("edgeonnx-agent ")


def test_help_tells_the_exit_codes() -> None:
    text = help_of("serve")
    possible = (errors.UsageError, errors.BundleError, errors.GoldenSetError, errors.RuntimeUnavailableError)
    for code in (0, 1, *(kind.exit_code for kind in possible)):
        assert f"  {code}  " in text


def test_every_option_is_a_setting_and_its_help_comes_from_there() -> None:
    assert set(OPTIONS.values()) <= set(all_settings())
    for command in ("serve", "config"):
        text = help_of(command)
        for option in OPTIONS:
            assert f"--{option} " in text
    assert "TCP port; 0 takes a free one, which the ready line names. [default: 8080]" in help_of("serve")
    assert "fallback|refuse" in help_of("serve")


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve"],
        ["serve", "--bundle", "x", "--port", "70000"],
        ["serve", "--bundle", "x", "--port", "a"],
        ["serve", "--bundle", "x", "--policy", "maybe"],
        ["serve", "--bundle", "x", "--memory", "much"],
        ["serve", "--bundle", "x", "--tls-key", "k"],
        ["serve", "--bundle", "x", "--config", "/no/such/file"],
        ["serve", "--repository", "/no/such/folder"],
        ["serve", "--bundle", "x", "--token-file", "/no/such/file"],
        ["config", "--threads", "0"],
        ["dance"],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert "rror: " in result.output


def test_options_become_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHE_DIRECTORY", raising=False)
    options = {
        "bundle": [Path("a"), Path("b")],
        "providers": "CUDA, CPU",
        "memory": "2 GiB",
        "deadline_seconds": 3.0,
        "allow_anonymous": None,
        "token_file": Path("t"),
    }
    config = settings_from(None, options)
    assert config.bundles == (Path("a"), Path("b"))
    assert config.runtime == RuntimeConfig(providers=("CUDA", "CPU"), memory_bytes=2 << 30)
    assert config.security == SecurityConfig(token_file=Path("t"))
    assert config.queue.deadline_seconds == 3.0


def test_an_option_that_is_not_given_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text("bundles = ['a']\n[log]\nrequests = true\n[server]\nport = 9000\n")
    config = settings_from(path, {"bundle": [], "port": None, "host": "::1"})
    assert config.bundles == (tmp_path / "a",)
    assert config.log.requests
    assert (config.server.host, config.server.port) == ("::1", 9000)


def test_config_prints_options_as_settings() -> None:
    result = runner.invoke(app, ["config", "--log-requests", "--memory", "3 GiB", "--bundle", "/a", "--bundle", "/b"])
    assert result.exit_code == 0
    for line in ("requests = true", 'memory_bytes = "3 GiB"', 'bundles = ["/a", "/b"]', "#port = 8080"):
        assert line in result.output.splitlines()


def test_nothing_to_serve() -> None:
    with pytest.raises(errors.UsageError, match="nothing to serve"):
        check_files(AgentConfig())


def test_a_repository_alone_is_enough(tmp_path: Path) -> None:
    check_files(AgentConfig(repository=tmp_path))


def test_check_refuses_what_is_no_bundle(tmp_path: Path) -> None:
    result = runner.invoke(app, ["serve", "--check", "--bundle", str(tmp_path)])
    assert result.exit_code == errors.NotABundleError.exit_code
    assert "is not a bundle" in result.output


def test_check_says_what_is_wrong_before_anything_is_served(tmp_path: Path) -> None:
    bundles.make_bundle(tmp_path)
    settings = tmp_path / "agent.toml"
    check = ["serve", "--check", "--config", str(settings)]
    settings.write_text("[server]\nprot = 1\n")
    wrong = runner.invoke(app, check)
    assert wrong.exit_code == 2
    assert f"error: {settings}: [server] prot: unknown setting" in wrong.output
    assert "did you mean port?" in wrong.output
    settings.write_text("bundles = ['tiny-1.0.0']\n[update]\nwindow = 'at night'\n")
    no_window = runner.invoke(app, check)
    assert no_window.exit_code == 2
    assert "update.window: is no time window" in no_window.output
    settings.write_text("bundles = ['tiny-1.0.0']\n[server]\nhost = '0.0.0.0'\n")
    open_to_all = runner.invoke(app, check)
    assert open_to_all.exit_code == 2
    assert "security.token_file" in open_to_all.output
    good = runner.invoke(app, [*check, "--host", "127.0.0.1"])
    assert (good.exit_code, good.output) == (0, "the settings are in order\n")


def test_config_prints_what_would_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHE_DIRECTORY", "/var/cache/edgeonnx")
    settings = tmp_path / "agent.toml"
    settings.write_text("[server]\nport = 9000\nhost = '::1'\n[log]\nformat = 'json'\n")
    printed = runner.invoke(app, ["config", "--config", str(settings), "--port", "9001"]).output
    for line in ("port = 9001", 'host = "::1"', 'format = "json"', 'cache_dir = "/var/cache/edgeonnx"', "#gpu = 0"):
        assert line in printed.splitlines()
    settings.write_text(printed)
    assert runner.invoke(app, ["config", "--config", str(settings)]).output == printed


def test_an_error_ends_with_its_own_code_and_without_a_traceback(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[31mname"  # a name must not reach the terminal raw
    folder.mkdir()
    # Such a name cannot be written into the settings either, so it comes through a link.
    link = tmp_path / "link"
    link.symlink_to(folder)
    command = [sys.executable, "-m", "device_agent.cli.main", "serve", "--port", "0", "--bundle", str(link)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == errors.NotABundleError.exit_code
    assert "error: " in done.stderr
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_with_an_escape_sequence_never_reaches_the_terminal(tmp_path: Path) -> None:
    result = runner.invoke(app, ["serve", "--bundle", str(tmp_path / "a\x1b[31mname")])
    assert result.exit_code == 2
    assert "\x1b" not in result.output


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from device_agent.cli.main import app; from typer.testing import CliRunner;"
        "assert CliRunner().invoke(app, ['serve', '--help']).exit_code == 0;"
        "print([name for name in ('numpy', 'onnxruntime', 'fastapi', 'uvicorn', 'starlette', 'edgeonnx_ext', 'orjson') "
        "if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_serving_imports_nothing_that_it_does_not_need_at_the_start() -> None:
    script = (
        "import sys; import device_agent.server, device_agent.models.loading;"
        "names = ('fastapi', 'grpc', 'rich', 'prometheus_client', "
        "'device_agent.api.monitoring.exposition', 'device_agent.api.monitoring.status_page');"
        "print([name for name in names if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_process_is_older_than_nothing_and_younger_than_an_hour() -> None:
    assert 0 < process_age() < 3600
