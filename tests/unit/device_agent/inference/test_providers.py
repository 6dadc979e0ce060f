from __future__ import annotations

import platform

from device_agent.inference.providers import device_profile, preferred, without
from edgeonnx.spec.selection import DeviceProfile


def test_preference_decides_and_unknown_providers_are_left_out() -> None:
    available = ["CPUExecutionProvider", "AzureExecutionProvider", "CUDAExecutionProvider"]
    assert preferred(available) == ("CUDAExecutionProvider", "CPUExecutionProvider")


def test_without_a_provider_everything_else_stays() -> None:
    profile = DeviceProfile(
        providers=("CUDAExecutionProvider", "CPUExecutionProvider"),
        instruction_sets=frozenset({"avx2"}),
        memory_bytes=5,
        architecture="x86_64",
    )
    expected = DeviceProfile(
        providers=("CPUExecutionProvider",),
        instruction_sets=frozenset({"avx2"}),
        memory_bytes=5,
        architecture="x86_64",
    )
    assert without(profile, "CUDAExecutionProvider") == expected


def test_this_machine_has_a_cpu() -> None:
    profile = device_profile()
    assert profile.providers[-1] == "CPUExecutionProvider"
    assert profile.memory_bytes is None or profile.memory_bytes > 0
    assert profile.architecture == platform.machine()
