"""Whatever the clocks of a machine do, the effective time is never below what was verified, and never invented."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.slots.disk import Disk
from device_agent.update.trust.clock import Clock
from tests.support.tuf_simulator import Times

SECONDS = st.floats(0, 4e9, allow_nan=False)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("verified"), SECONDS),
        st.tuples(st.just("passes"), st.floats(0, 1e6)),
        st.tuples(st.just("system clock says"), st.floats(-1e12, 1e15)),
        st.tuples(st.just("reboots"), SECONDS),
        st.tuples(st.just("new process"), st.just(0.0)),
    ),
    max_size=20,
)


class MemoryDisk(Disk):
    """Writes without syncing, so that many examples are quick."""

    def replace(self, path: Path, data: bytes, mode: int = 0o600) -> None:
        path.write_bytes(data)


def opened(folder: Path, times: Times) -> Clock:
    return Clock(
        folder / "clock.json",
        MemoryDisk(),
        now=lambda: times.system,
        boottime=lambda: times.uptime,
        boot_id=lambda: times.boot,
    )


def step(clock: Clock, times: Times, folder: Path, name: str, value: float) -> Clock:
    match name:
        case "verified":
            clock.verified(value)
        case "passes":
            times.pass_by(value)
        case "system clock says":
            times.system = value
        case "reboots":
            times.reboot(system=value)
            return opened(folder, times)
        case _:
            return opened(folder, times)
    return clock


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_never_below_what_was_verified_and_never_more_than_time_on_top(steps: list[tuple[str, float]]) -> None:
    times, verified, on = Times(system=0.0), 0.0, 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clock = opened(folder, times)
        for kind, value in steps:
            before, boot = clock.bound(), times.boot
            clock = step(clock, times, folder, kind, value)
            verified = max(verified, value) if kind == "verified" else verified
            on += value if kind == "passes" else 0.0
            assert clock.effective() >= clock.bound() >= verified
            assert clock.effective() >= clock.system()
            assert clock.bound() <= verified + on + 1e-3
            if boot == times.boot and kind != "new process":
                assert clock.bound() >= before


@given(STEPS, st.floats(-1e12, 1e15))
@settings(max_examples=40, deadline=None)
def test_the_bound_does_not_depend_on_the_system_clock(steps: list[tuple[str, float]], other: float) -> None:
    bounds = []
    for jumps in (True, False):
        times = Times(system=other)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            clock = opened(folder, times)
            for kind, value in steps:
                if jumps or kind != "system clock says":
                    clock = step(clock, times, folder, kind, value)
            bounds.append(clock.bound())
    assert bounds[0] == bounds[1]


@given(SECONDS, SECONDS, st.floats(0, 1e6))
@settings(max_examples=20, deadline=None)
def test_monotone_in_what_was_verified(first: float, second: float, passed: float) -> None:
    results = []
    for verified in sorted((first, second)):
        times = Times(system=0.0)
        with tempfile.TemporaryDirectory() as name:
            clock = opened(Path(name), times)
            clock.verified(verified)
            times.pass_by(passed)
            results.append(clock.effective())
    assert results[0] <= results[1]
