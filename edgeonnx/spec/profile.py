"""What a Linux machine says of itself, read from text. Pure: whoever calls has read /proc/cpuinfo and /proc/meminfo."""

from __future__ import annotations


def parse_instruction_sets(cpuinfo: str) -> frozenset[str]:
    """The features of the first processor in the text of /proc/cpuinfo (`flags` on x86, `Features` on Arm)."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def parse_available_memory(meminfo: str) -> int | None:
    """`MemAvailable` of the text of /proc/meminfo, in bytes, or None if it is not there."""
    for line in meminfo.splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None
