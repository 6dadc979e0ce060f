from __future__ import annotations

from pathlib import Path

import pytest

from device_agent.inference.devices import machine
from device_agent.inference.devices.machine import (
    Gpu,
    Machine,
    describe_machine,
    nvidia_gpus,
    parse_cpu_name,
    parse_driver_version,
    parse_total_memory,
)

OPEN_DRIVER = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)  Sun Jul 27 2025
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""
OLD_DRIVER = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: x\n"
)
TEGRA = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 2025\n"


def test_the_processors_name() -> None:
    assert (
        parse_cpu_name("processor\t: 0\nmodel name\t: Intel(R)  Xeon(R) CPU\nmodel name\t: other\n")
        == "Intel(R) Xeon(R) CPU"
    )
    assert parse_cpu_name("processor\t: 0\nBogoMIPS\t: 31.25\n") == ""


def test_the_memory() -> None:
    assert parse_total_memory("MemTotal:       2 kB\nMemFree: 1 kB\n") == 2048
    assert parse_total_memory("") is None


@pytest.mark.parametrize(("text", "version"), [(OPEN_DRIVER, "580.65.06"), (OLD_DRIVER, "535.104.05"), ("", "")])
def test_the_drivers_version(text: str, version: str) -> None:
    assert parse_driver_version(text) == version


def test_a_jetson_is_told_by_its_release_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = tmp_path / "nv_tegra_release"
    monkeypatch.setattr(machine, "TEGRA_RELEASE", release)
    monkeypatch.setattr(machine, "NVIDIA_VERSION", tmp_path / "none")
    monkeypatch.setattr(machine, "PCI", tmp_path / "none")
    assert (machine.is_jetson(), machine.driver_version(), machine.nvidia_hardware()) == (False, "", False)
    release.write_text(TEGRA)
    assert (machine.is_jetson(), machine.driver_version(), machine.nvidia_hardware()) == (True, "L4T 36.4.3", True)


@pytest.mark.parametrize(
    ("vendor", "kind", "found"),
    [("0x10de", "0x030200", True), ("0x10de", "0x0c0330", False), ("0x8086", "0x030000", False)],
)
def test_a_gpu_on_the_bus_without_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, kind: str, found: bool
) -> None:
    device = tmp_path / "0000:01:00.0"
    device.mkdir()
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    monkeypatch.setattr(machine, "PCI", tmp_path)
    monkeypatch.setattr(machine, "TEGRA_RELEASE", tmp_path / "none")
    assert machine.nvidia_hardware() is found


def test_device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DEVICES", tmp_path)
    assert machine.nvidia_device_files() == ()
    for name in ("nvidia0", "nvidiactl", "null"):
        (tmp_path / name).touch()
    assert machine.nvidia_device_files() == (str(tmp_path / "nvidia0"),)


def test_no_driver_is_no_problem_and_a_library_that_is_none_is_one(tmp_path: Path) -> None:
    assert nvidia_gpus("libedgeonnx-no-such.so.1") == ((), "")
    # A library without the driver's functions.
    gpus, problem = nvidia_gpus("libc.so.6")
    assert gpus == ()
    assert "cuInit" in problem


def test_what_compiled_work_depends_on() -> None:
    gpus = (Gpu(index=0, name="Orin", memory_bytes=8, compute_capability="8.7"),)
    found = Machine(
        architecture="aarch64",
        cpu="Board",
        cpus=6,
        instruction_sets=("asimd",),
        memory_bytes=1,
        available_bytes=1,
        gpus=gpus,
        driver="L4T 36.4.3",
    )
    assert found.key(None) == "aarch64 Board 6 asimd"
    assert found.key(0) == "Orin 8.7 8 driver L4T 36.4.3"
    assert found.key(1) == "gpu 1 driver L4T 36.4.3"


def test_this_machine() -> None:
    found = describe_machine()
    assert found.cpus >= 1
    assert found.cpu
    assert found.as_dict()["architecture"] == found.architecture
