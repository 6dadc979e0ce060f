from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from device_agent.cli import doctor as doctor_module
from device_agent.cli.diagnosis import WIDTH, render
from device_agent.cli.doctor import BundleReport, Report, doctor, examine
from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.inference.devices import opening
from device_agent.inference.devices.machine import Gpu, Machine
from device_agent.inference.devices.providers import ProviderStatus
from edgeonnx.errors import RuntimeUnavailableError, SelectionError
from tests.support import bundles

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
MACHINE = Machine(
    architecture="x86_64",
    cpu="Xeon",
    cpus=4,
    instruction_sets=("avx2", "fma", "sse2"),
    memory_bytes=8 << 30,
    available_bytes=4 << 30,
)
NO_CUDA = ProviderStatus(
    name=CUDA,
    usable=False,
    reason="the shared library libcublasLt.so.13 cannot be found",
    hint="pip install 'nvidia-cublas==13.*'",
    missing=("libcublasLt.so.13",),
    needs="CUDA 13.0",
)
FOUND: dict[str, Any] = {
    "name": "minilm",
    "version": "1.0.0",
    "digest": "d" * 64,
    "variant": "cpu-int8",
    "variants": [
        {"name": "cuda-fp16", "precision": "fp16", "not_used": "needs CUDA: no driver"},
        {"name": "cpu-int8", "precision": "int8", "not_used": None},
    ],
    "provider": CPU,
    "assignment": {CPU: {"nodes": 4, "share": 1.0, "operators": {"MatMul": 3, "Add": 1}}},
    "optimization": "all",
    "io_binding": False,
    "plan": {"runners": 2, "threads": 1, "reason": "measured here"},
    "memory_bytes": 110 << 20,
    "seconds": {"open": 0.01, "session": 0.02},
}


def report(**changes: Any) -> Report:
    basic = Report(
        machine=MACHINE,
        runtime={"version": "1.32.0", "package": "", "cuda": "", "build": ""},
        providers=(NO_CUDA, ProviderStatus(name=CPU, usable=True)),
        policy="fallback",
        cache={"folder": None, "state": "off", "bytes": 0},
    )
    return dataclasses.replace(basic, **changes)


def shown(report: Report, width: int = WIDTH) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    render(report, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(doctor)
    return made


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundles.make_bundle(tmp_path_factory.mktemp("doctor"), providers=(CUDA, CPU))


def words(text: str) -> str:
    """The text without the folding of its cells."""
    return " ".join(text.split())


def test_each_provider_is_usable_or_has_a_reason_and_something_to_do() -> None:
    text = words(shown(report()))
    assert "CUDA not usable the shared library libcublasLt.so.13 cannot be found" in text
    assert "to do: pip install 'nvidia-cublas==13.*'" in text
    assert "CPU usable" in text
    assert text.endswith("models can be served on CPU")


def test_a_bundle_shows_what_serves_and_where_its_nodes_run() -> None:
    text = words(shown(report(bundles=(BundleReport(path=Path("b"), found=FOUND),))))
    assert "cuda-fp16 fp16 not used: needs CUDA: no driver" in text
    assert "cpu-int8 int8 serves on CPU" in text
    assert "nodes on CPU 4 (100.0 %): 3 MatMul, 1 Add" in text
    assert "runners 2, each run on 1 threads: measured here" in text
    assert "memory 110.0 MiB" in text
    assert "time to load 0.03 s: open 0.01, session 0.02" in text
    assert text.endswith("CPU serves minilm, variant cpu-int8")


def test_a_bundle_that_does_not_serve_shows_the_whole_error() -> None:
    error = SelectionError("no variant fits", details=("cuda-fp16: needs CUDA", "other: no"), hint="package it")
    found = report(bundles=(BundleReport(path=Path("b"), found=FOUND), BundleReport(path=Path("c"), error=error)))
    text = words(shown(found))
    assert found.exit_code == 6
    assert (
        "Bundle c does not serve what no variant fits details cuda-fp16: needs CUDA other: no to do package it" in text
    )
    assert text.endswith("not every bundle can be served here (exit code 6)")


def test_the_machine_is_described_with_its_gpus() -> None:
    gpu = Gpu(index=0, name="Orin", memory_bytes=8 << 30, compute_capability="8.7")
    text = words(shown(report(machine=dataclasses.replace(MACHINE, gpus=(gpu,), driver="L4T 36.4.3"))))
    assert "GPU 0 Orin, 8.0 GiB, compute capability 8.7" in text
    assert "NVIDIA driver L4T 36.4.3" in text
    assert "x86-64 without VNNI adds pairs of products in 16 bits" in text
    broken = dataclasses.replace(MACHINE, problem="cuInit failed with CUDA error 803")
    assert "GPU cuInit failed with CUDA error 803" in words(shown(report(machine=broken)))


@pytest.mark.parametrize("width", [60, WIDTH, 200])
def test_it_keeps_to_the_width_and_has_no_blanks_at_line_ends(width: int) -> None:
    text = shown(report(bundles=(BundleReport(path=Path("b"), found=FOUND),)), width)
    assert max(map(len, text.splitlines())) <= width
    assert all(line == line.rstrip() for line in text.splitlines())


def test_what_a_file_says_cannot_steer_the_terminal() -> None:
    found = {
        **FOUND,
        "name": "x\x1b[31m",
        "variants": [{"name": "v\x07", "precision": "[red]", "not_used": "\x1b]0;t"}],
    }
    text = shown(report(bundles=(BundleReport(path=Path("b"), found=found),)))
    assert not set(text) & {"\x1b", "\x07"}
    assert "[red]" in text


def test_nothing_usable_is_exit_code_7() -> None:
    found = report(providers=(NO_CUDA,))
    assert found.exit_code == 7
    assert shown(found).endswith("nothing can serve here (exit code 7)\n")


def test_the_command_on_this_machine(app: typer.Typer, bundle: Path) -> None:
    result = CliRunner().invoke(app, ["--bundle", str(bundle)])
    assert result.exit_code == 0, result.output
    text = words(result.stdout)
    assert "cpu-fp32 fp32 serves on CPU" in text
    assert text.endswith("CPU serves tiny, variant cpu-fp32")


def test_the_command_as_json(app: typer.Typer, bundle: Path, tmp_path: Path) -> None:
    arguments = ["--json", "--bundle", str(bundle), "--cache-dir", str(tmp_path / "c")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["ok"] is True
    assert [each["usable"] for each in found["providers"] if each["name"] == CPU] == [True]
    assert all(each["reason"] for each in found["providers"] if not each["usable"])
    assert (found["cache"]["folder"], found["cache"]["state"]) == (str(tmp_path / "c"), "on")
    assert found["cache"]["bytes"] >= 0
    (loaded,) = found["bundles"]
    assert loaded["variant"] == "cpu-fp32"
    assert loaded["assignment"][CPU]["share"] == 1.0
    assert loaded["seconds"]["session"] > 0


def test_a_bundle_that_is_none(app: typer.Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--json", "--bundle", str(tmp_path)])
    assert result.exit_code == 5
    (found,) = json.loads(result.stdout)["bundles"]
    assert (found["ok"], found["error"]["error"]) == (False, "NotABundleError")


@pytest.mark.parametrize("as_json", [True, False])
def test_wrong_usage_has_no_traceback(app: typer.Typer, as_json: bool) -> None:
    result = CliRunner().invoke(app, ["--providers", "Vulkan", *(["--json"] if as_json else [])])
    assert result.exit_code == 2
    assert "Vulkan" in result.output
    assert "Traceback" not in result.output
    if as_json:
        assert json.loads(result.stdout)["ok"] is False


def test_without_the_runtime_the_extra_is_named(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise RuntimeUnavailableError("ONNX Runtime cannot be imported", hint="pip install 'edgeonnx[agent]'")

    monkeypatch.setattr(doctor_module, "examine", missing)
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 7
    assert "edgeonnx[agent]" in result.output


def test_only_a_provider_that_the_operator_allows_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    found = examine(AgentConfig(runtime=RuntimeConfig(providers=("CPU",))))
    assert [status.name for status in found.providers] == [CPU]
    monkeypatch.setattr(opening, "usable_here", lambda config: (NO_CUDA,))
    assert examine(AgentConfig()).exit_code == 7
