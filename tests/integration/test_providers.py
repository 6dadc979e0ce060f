"""Providers on the real thing: the installed ONNX Runtime, and onnxruntime-gpu on a machine without CUDA.

The second is the case that users meet most: everything seems to be installed, CUDA is listed as available, and the
model runs on the CPU. It needs an environment of its own, because onnxruntime and onnxruntime-gpu share one folder:

    python -m venv gpu && gpu/bin/pip install onnxruntime-gpu numpy typer rich tokenizers starlette uvicorn httptools \
        orjson prometheus-client
    EDGEONNX_GPU_PYTHON=gpu/bin/python pytest tests/integration/test_providers.py

The same with onnxruntime-openvino and EDGEONNX_OPENVINO_PYTHON has a second provider that really computes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from device_agent.inference.devices.machine import nvidia_hardware
from tests.support import agent, bundles

GPU_PYTHON = os.environ.get("EDGEONNX_GPU_PYTHON", "")
OPENVINO_PYTHON = os.environ.get("EDGEONNX_OPENVINO_PYTHON", "")
CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"

without_cuda = pytest.mark.skipif(
    not GPU_PYTHON or nvidia_hardware(),
    reason="needs EDGEONNX_GPU_PYTHON, an interpreter with onnxruntime-gpu, and no NVIDIA GPU",
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundles.make_bundle(tmp_path_factory.mktemp("providers"), providers=(TENSORRT, CUDA, CPU))


def doctor(*arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "device_agent.cli.main", "doctor", *arguments],
        env=agent.environment(),
        cwd=agent.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {status["name"]: status for status in report["providers"]}


def test_doctor_on_the_installed_runtime(bundle: Path) -> None:
    done = doctor("--bundle", str(bundle), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert by_name(report)[CPU]["usable"]
    assert by_name(report)[CUDA]["usable"] or by_name(report)[CUDA]["reason"]
    assert report["bundles"][0]["assignment"]


@without_cuda
@pytest.mark.slow
def test_doctor_names_every_library_that_cuda_lacks_and_the_packages_that_have_them(bundle: Path) -> None:
    done = doctor("--bundle", str(bundle), "--json", python=GPU_PYTHON)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    cuda, tensorrt = by_name(report)[CUDA], by_name(report)[TENSORRT]
    major = report["runtime"]["cuda"].partition(".")[0]
    assert not cuda["usable"]
    assert {f"libcublasLt.so.{major}", f"libcublas.so.{major}", "libcuda.so.1"} <= set(cuda["missing"])
    assert all(name in cuda["reason"] for name in cuda["missing"])
    assert "nvidia-cublas" in cuda["hint"]
    assert "no NVIDIA GPU is visible here" in cuda["hint"]
    assert f"CUDA {major}" in cuda["needs"]
    assert not tensorrt["usable"]
    assert any(name.startswith("libnvinfer.so") for name in tensorrt["missing"])
    assert "tensorrt-cu" in tensorrt["hint"]
    # What ONNX Runtime writes to stderr is in the reasons, and nowhere else.
    assert "onnxruntime:Default" not in done.stderr
    (loaded,) = report["bundles"]
    assert loaded["variant"] == "cpu-fp32"
    assert loaded["provider"] == CPU
    reasons = {variant["name"]: variant["not_used"] for variant in loaded["variants"]}
    assert "libcuda.so.1" in reasons["cuda-fp32"]
    assert "libnvinfer" in reasons["tensorrt-fp32"]


@without_cuda
@pytest.mark.slow
def test_the_agent_falls_back_and_says_why(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", GPU_PYTHON)
    with agent.Agent(bundle=bundle) as running:
        assert "CPU" in running.ready_line
        texts = {"input": ["a good film !"], "model": "tiny"}
        answer = httpx.post(f"{running.url}/v1/embeddings", json=texts, timeout=10)
        assert answer.status_code == 200
    assert "libcublasLt.so" in running.log
    assert "onnxruntime:Default" not in running.log


@without_cuda
@pytest.mark.slow
def test_the_agent_refuses_where_the_operator_says_so(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", GPU_PYTHON)
    done = agent.run_to_end(bundle, "--policy", "refuse")
    assert done.returncode == 7
    assert "runtime.policy is refuse" in done.stderr
    assert "libnvinfer.so" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(
    not OPENVINO_PYTHON, reason="needs EDGEONNX_OPENVINO_PYTHON, an interpreter with onnxruntime-openvino"
)
@pytest.mark.slow
def test_a_second_provider_that_really_computes(tmp_path: Path) -> None:
    # All tensors are inline: onnxruntime-openvino lags behind the release that opens them from a folder.
    variants = tuple(bundles.TinyVariant(provider=provider, external=()) for provider in (OPENVINO, CPU))
    bundle = bundles.make_bundle(tmp_path, variants=variants)
    done = doctor("--bundle", str(bundle), "--json", python=OPENVINO_PYTHON)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert by_name(report)[OPENVINO]["usable"]
    assert "install onnxruntime-gpu in place of onnxruntime-openvino" in by_name(report)[CUDA]["hint"]
    (loaded,) = report["bundles"]
    assert (loaded["variant"], loaded["provider"]) == ("openvino-fp32", OPENVINO)
    assert loaded["assignment"][OPENVINO]["share"] > 0.5
