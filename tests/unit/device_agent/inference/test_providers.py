from __future__ import annotations

from device_agent.inference.providers import (
    device_profile,
    parse_available_memory,
    parse_instruction_sets,
    preferred,
    without,
)
from edgeonnx.spec.selection import DeviceProfile


def test_preference_decides_and_unknown_providers_are_left_out() -> None:
    available = ["CPUExecutionProvider", "AzureExecutionProvider", "CUDAExecutionProvider"]
    assert preferred(available) == ("CUDAExecutionProvider", "CPUExecutionProvider")


def test_instruction_sets_of_x86_and_arm() -> None:
    assert parse_instruction_sets("processor\t: 0\nflags\t\t: fpu avx2 avx512_vnni\n") == {"fpu", "avx2", "avx512_vnni"}
    assert parse_instruction_sets("Features\t: fp asimd asimddp\n") == {"fp", "asimd", "asimddp"}
    assert parse_instruction_sets("") == frozenset()


def test_available_memory() -> None:
    assert parse_available_memory("MemTotal:  8 kB\nMemAvailable:   3 kB\n") == 3072
    assert parse_available_memory("") is None


def test_without_a_provider_everything_else_stays() -> None:
    profile = DeviceProfile(
        providers=("CUDAExecutionProvider", "CPUExecutionProvider"),
        instruction_sets=frozenset({"avx2"}),
        memory_bytes=5,
    )
    expected = DeviceProfile(providers=("CPUExecutionProvider",), instruction_sets=frozenset({"avx2"}), memory_bytes=5)
    assert without(profile, "CUDAExecutionProvider") == expected


def test_this_machine_has_a_cpu() -> None:
    profile = device_profile()
    assert profile.providers[-1] == "CPUExecutionProvider"
    assert profile.memory_bytes is None or profile.memory_bytes > 0
