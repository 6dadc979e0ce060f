from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest

from device_agent.slots.disk import Disk
from device_agent.update.trust.clock import BEHIND_SECONDS, LATEST, WRITE_SECONDS, Clock, Moment, boot_id, boottime
from device_agent.update.trust.sealed import seal
from edgeonnx.errors import NoSpaceError, StateError
from tests.support.tuf_simulator import Times

JUNE = 1_780_272_000.0
DAY = 86_400.0


class CountingDisk(Disk):
    """Counts the durable writes, and can refuse them."""

    def __init__(self, error: OSError | None = None) -> None:
        self.writes = 0
        self._error = error

    def replace(self, path: Path, data: bytes, mode: int = 0o600) -> None:
        if self._error is not None:
            raise self._error
        self.writes += 1
        super().replace(path, data, mode)


@pytest.fixture
def times() -> Times:
    return Times(system=0.0)


def clock(folder: Path, times: Times, disk: Disk | None = None) -> Clock:
    return Clock(
        folder / "clock.json",
        disk or Disk(),
        now=lambda: times.system,
        boottime=lambda: times.uptime,
        boot_id=lambda: times.boot,
    )


def test_before_anything_is_verified_the_system_clock_counts(tmp_path: Path, times: Times) -> None:
    times.system = JUNE
    assert clock(tmp_path, times).effective() == JUNE
    assert not clock(tmp_path, times).behind


def test_a_box_in_1970_goes_by_what_was_verified_and_by_its_uptime(tmp_path: Path, times: Times) -> None:
    here = clock(tmp_path, times)
    here.verified(JUNE)
    times.pass_by(100)
    assert here.effective() == JUNE + 100
    assert here.behind


def test_the_next_process_counts_on(tmp_path: Path, times: Times) -> None:
    clock(tmp_path, times).verified(JUNE)
    times.pass_by(100)
    assert clock(tmp_path, times).effective() == JUNE + 100


def test_after_a_reboot_nothing_that_was_written_is_lost(tmp_path: Path, times: Times) -> None:
    here = clock(tmp_path, times)
    here.verified(JUNE)
    times.pass_by(WRITE_SECONDS + 1)
    here.verified(JUNE)
    times.pass_by(10)
    times.reboot(system=0)
    assert clock(tmp_path, times).effective() == JUNE + WRITE_SECONDS + 1


def test_uptime_counts_over_many_short_boots(tmp_path: Path, times: Times) -> None:
    clock(tmp_path, times).verified(JUNE)
    for _ in range(10):
        times.reboot(system=0)
        clock(tmp_path, times).verified(JUNE)
        times.pass_by(WRITE_SECONDS)
        clock(tmp_path, times).verified(JUNE)
    assert clock(tmp_path, times).bound() == JUNE + 10 * WRITE_SECONDS


def test_what_was_verified_survives_a_reboot_even_if_more_had_passed_already(tmp_path: Path, times: Times) -> None:
    here = clock(tmp_path, times)
    here.verified(JUNE)
    times.pass_by(1800)
    here.verified(JUNE + 1700)
    times.reboot(system=0)
    assert clock(tmp_path, times).bound() >= JUNE + 1700


def test_the_uptime_of_another_machine_proves_nothing(tmp_path: Path, times: Times) -> None:
    """A state directory that moves to a machine that has run for a year is not a year older."""
    clock(tmp_path, times).verified(JUNE)
    times.boot, times.uptime = "another machine", 365 * DAY
    assert clock(tmp_path, times).bound() == JUNE


@pytest.mark.parametrize("boot", ["boot-1", ""])
def test_an_uptime_that_went_back_or_a_boot_without_name_takes_nothing_away(
    tmp_path: Path, times: Times, boot: str
) -> None:
    times.boot = boot
    clock(tmp_path, times).verified(JUNE)
    times.uptime = 5.0 if boot else 1000.0
    assert clock(tmp_path, times).bound() == JUNE


def test_a_system_clock_that_once_said_2099_poisons_nothing(tmp_path: Path, times: Times) -> None:
    times.system = JUNE + 73 * 365 * DAY
    here = clock(tmp_path, times)
    here.verified(JUNE)
    assert here.effective() == times.system
    times.system = JUNE + 5
    assert clock(tmp_path, times).effective() == JUNE + 5


def test_small_differences_between_machines_are_no_wrong_clock(tmp_path: Path, times: Times) -> None:
    here = clock(tmp_path, times)
    here.verified(JUNE)
    times.system = JUNE - BEHIND_SECONDS
    assert not here.behind
    times.system -= 1
    assert here.behind


def test_what_a_stolen_key_said_is_taken_back(tmp_path: Path, times: Times) -> None:
    here = clock(tmp_path, times)
    here.verified(JUNE + 70 * 365 * DAY)
    here.revoked(JUNE)
    assert here.bound() == JUNE
    assert clock(tmp_path, times).bound() == JUNE


def test_taking_back_never_raises_the_bound(tmp_path: Path, times: Times) -> None:
    here = clock(tmp_path, times)
    here.verified(JUNE)
    here.revoked(JUNE + DAY)
    assert here.bound() == JUNE


def test_writes_are_few(tmp_path: Path, times: Times) -> None:
    disk = CountingDisk()
    here = clock(tmp_path, times, disk)
    for _ in range(240):
        here.verified(JUNE)
        times.pass_by(60)
    assert disk.writes == 1 + 4 - 1


def test_nothing_is_written_before_anything_is_verified(tmp_path: Path, times: Times) -> None:
    disk = CountingDisk()
    clock(tmp_path, times, disk).verified(0.0)
    assert disk.writes == 0


GOOD = Moment(bound=JUNE, boot="boot-1", uptime=60.0).to_bytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        GOOD[:-20],
        GOOD.replace(b"1780272000", b"9780272000"),
        seal({"bound": -1.0, "boot": "", "uptime": 0.0}, schema="1.0"),
        seal({"bound": LATEST + 1, "boot": "", "uptime": 0.0}, schema="1.0"),
        seal({"bound": True, "boot": "", "uptime": 0.0}, schema="1.0"),
        seal({"bound": JUNE, "boot": "", "uptime": 0.0}, schema="2.0"),
    ],
    ids=["empty", "cut", "end", "digit", "negative", "after 9999", "no number", "schema"],
)
def test_a_damaged_file_is_as_none_and_is_said(
    tmp_path: Path, times: Times, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "clock.json").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        here = clock(tmp_path, times)
    assert "clock.json" in caplog.text
    assert here.bound() < 1
    here.verified(JUNE)
    assert clock(tmp_path, times).bound() == JUNE


@pytest.mark.parametrize(("system", "expected"), [(-5.0, 0.0), (math.nan, 0.0), (math.inf, 0.0), (1e300, LATEST)])
def test_absurd_system_clocks_stay_dates(tmp_path: Path, times: Times, system: float, expected: float) -> None:
    times.system = system
    assert clock(tmp_path, times).system() == expected


@pytest.mark.parametrize(("number", "kind"), [(30, StateError), (28, NoSpaceError)])
def test_a_disk_that_refuses_is_an_error_that_says_so(
    tmp_path: Path, times: Times, number: int, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=r"clock\.json"):
        clock(tmp_path, times, CountingDisk(OSError(number, "no"))).verified(JUNE)


def test_this_machine_tells_its_boot() -> None:
    assert boottime() > 0
    assert len(boot_id()) == 36
