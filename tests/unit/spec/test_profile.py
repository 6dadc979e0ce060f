"""What is read from the text of /proc."""

from __future__ import annotations

from edgeonnx.spec.profile import parse_available_memory, parse_instruction_sets


def test_instruction_sets_of_x86_and_arm() -> None:
    assert parse_instruction_sets("processor\t: 0\nflags\t\t: fpu avx2 avx512_vnni\n") == {"fpu", "avx2", "avx512_vnni"}
    assert parse_instruction_sets("Features\t: fp asimd asimddp\n") == {"fp", "asimd", "asimddp"}
    assert parse_instruction_sets("") == frozenset()


def test_the_first_processor_counts() -> None:
    assert parse_instruction_sets("flags : a b\nvmx flags : ept\nflags : c\n") == {"a", "b"}


def test_available_memory() -> None:
    assert parse_available_memory("MemTotal:  8 kB\nMemAvailable:   3 kB\n") == 3072
    assert parse_available_memory("") is None
