"""What this machine has: execution providers, instruction sets, memory.

The list of providers here is what the installed ONNX Runtime was built with; whether one works shows when a session
is opened (`Session.providers`), and `device_agent.models` acts on that.
"""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from edgeonnx.spec.profile import parse_available_memory, parse_instruction_sets
from edgeonnx.spec.selection import DeviceProfile

if TYPE_CHECKING:
    from collections.abc import Iterable

# Preferred first. A provider that is not listed here is never used: its answers were not looked at.
PREFERENCE = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "OpenVINOExecutionProvider", "CPUExecutionProvider")

CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")


def device_profile() -> DeviceProfile:
    """Describe this machine."""
    return DeviceProfile(
        providers=preferred(ort.get_available_providers()),
        instruction_sets=parse_instruction_sets(_read(CPUINFO)),
        memory_bytes=parse_available_memory(_read(MEMINFO)),
        architecture=platform.machine(),
    )


def preferred(available: Iterable[str]) -> tuple[str, ...]:
    """The available providers that the agent knows, the preferred one first."""
    found = set(available)
    return tuple(name for name in PREFERENCE if name in found)


def without(profile: DeviceProfile, provider: str) -> DeviceProfile:
    """The same machine, on which `provider` turned out not to work."""
    return replace(profile, providers=tuple(name for name in profile.providers if name != provider))


def _read(path: Path) -> str:
    """The text of a file of /proc, empty where there is none (another operating system)."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
