"""The time on a machine whose clock may be wrong: never below what was verified.

The system clock of a small machine may say 1970 after each power cut, and an attacker on the path can hold back the
time that NTP would tell. Signed metadata say when they were signed, so whoever verified them knows that the true time
is at least that; and since then at least the time has passed for which the machine was seen to run. That is the lower
bound. The effective time is the larger one of it and the system clock.

The system clock itself never raises the bound: one that once said 2099 has no effect after it was set right. What
raised it wrongly can only be a stolen key, and `revoked` takes that back once the root has replaced the key.

Only whole spans within one boot count as time that has passed: CLOCK_BOOTTIME at the last write and now, under the
same boot id. What lay between the last write and a power cut, and between the start and the first reading after it, is
lost; so the bound may be low, never high, also when the state directory moves to a machine that has run for a year.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from device_agent.slots.disk import read_file
from device_agent.update.trust.sealed import seal, unseal
from edgeonnx.errors import EdgeOnnxError, NoSpaceError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_agent.slots.disk import Disk

CLOCK_SCHEMA = "1.0"
WRITE_SECONDS = 3600.0
"""Time that passed is written at most once in this time, to spare the flash: a power cut loses at most that much."""
BEHIND_SECONDS = 300.0
"""By how much the system clock must be below the bound to be called wrong: between machines that are set right there
are seconds, and a certificate's validity is not worth doubting for those."""
LATEST = 253_402_300_799.0
"""The last second of the year 9999, the largest time that Python and TUF's format can express."""
MAX_FILE_BYTES = 4096
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
FULL_DISK = (28, 122)
"""ENOSPC and EDQUOT."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A lower bound of the true time, and where this machine stood when it was written: the content of `clock.json`.

    Attributes:
        bound: Seconds since 1970.
        boot: The boot's id.
        uptime: Seconds since that boot, sleep included.
    """

    bound: float
    boot: str
    uptime: float

    def at(self, boot: str, uptime: float) -> float:
        """The bound at another moment of this machine. Time of another boot is not counted; see the module's text."""
        passed = uptime - self.uptime if boot and boot == self.boot else 0.0
        return min(self.bound + max(passed, 0.0), LATEST)

    @classmethod
    def from_bytes(cls, data: bytes, *, file: str = "clock.json") -> Moment:
        """Read `clock.json`.

        Raises:
            ManifestError, SchemaVersionError: It is damaged, or of another version.
        """
        node = unseal(data, file=file, schema=CLOCK_SCHEMA, fields=("bound", "boot", "uptime"))
        bound, uptime = (node.required(key).typed(float) for key in ("bound", "uptime"))
        if not 0 <= bound <= LATEST:
            node.required("bound").fail("is out of range", expected=f"0 to {LATEST:.0f}")
        return cls(bound=bound, boot=node.text("boot"), uptime=uptime)

    def to_bytes(self) -> bytes:
        """The canonical bytes of `clock.json`."""
        return seal({"bound": self.bound, "boot": self.boot, "uptime": self.uptime}, schema=CLOCK_SCHEMA)


def boottime() -> float:
    """Seconds since this machine started, sleep included; where the system does not tell, time stands still."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0.0


def boot_id() -> str:
    """What names this boot; empty where the system does not tell."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class Clock:
    """The effective time of this device. Only the process that holds the update lock may call what writes.

    Args:
        path: `clock.json`.
        disk: Through which it is written.
        now: The system clock, in seconds since 1970.
        boottime: Seconds since the boot, sleep included.
        boot_id: Names the boot.

    A damaged file is set aside, with a line in the log: the next verified metadata give the bound anew.
    """

    def __init__(
        self,
        path: Path,
        disk: Disk,
        now: Callable[[], float] = time.time,
        boottime: Callable[[], float] = boottime,
        boot_id: Callable[[], str] = boot_id,
    ) -> None:
        self._path = path
        self._disk = disk
        self._now = now
        self._boottime = boottime
        self._boot = boot_id()
        self._stored = self._read()
        self._here = self._stored or Moment(bound=0.0, boot="", uptime=0.0)
        self._here = self._moment(self.bound())

    def system(self) -> float:
        """What the system clock says, in seconds since 1970, cut to what a date can express."""
        now = self._now()
        return min(max(now, 0.0), LATEST) if math.isfinite(now) else 0.0

    def bound(self) -> float:
        """The lower bound of the true time, in seconds since 1970; 0 if nothing was verified yet."""
        return self._here.at(self._boot, self._boottime())

    def effective(self) -> float:
        """The time to go by, in seconds since 1970."""
        return max(self.system(), self.bound())

    @property
    def behind(self) -> bool:
        """Whether the system clock is provably wrong: below the bound by more than `BEHIND_SECONDS`.

        Certificates may then look as if they were not valid yet, so their times say nothing.
        """
        return self.system() < self.bound() - BEHIND_SECONDS

    def verified(self, seconds: float) -> None:
        """Take notice of a time that something verified proves to have passed.

        Args:
            seconds: Seconds since 1970. One below the bound changes nothing.

        Raises:
            StateError, NoSpaceError: The file cannot be written.
        """
        wanted = min(seconds, LATEST) if math.isfinite(seconds) else 0.0
        self._here = self._moment(max(self.bound(), wanted))
        if self._is_due(wanted):
            self._write()

    def _is_due(self, wanted: float) -> bool:
        """Whether to write: something later was verified than is written, or enough time passed, or the boot is new."""
        stored = self._stored
        if stored is None:
            return wanted > 0
        passed = self._here.bound - stored.bound
        return wanted > stored.bound or passed >= WRITE_SECONDS or stored.boot != self._boot

    def revoked(self, seconds: float) -> None:
        """Start anew at a bound that may be lower: what gave the old one was signed by a key that is no longer trusted.

        Args:
            seconds: The latest time that is still verified, in seconds since 1970.

        Raises:
            StateError, NoSpaceError: The file cannot be written.
        """
        self._here = self._moment(min(max(seconds, 0.0), self.bound()))
        self._write()

    def _moment(self, bound: float) -> Moment:
        return Moment(bound=bound, boot=self._boot, uptime=self._boottime())

    def _read(self) -> Moment | None:
        try:
            return Moment.from_bytes(read_file(self._path, limit=MAX_FILE_BYTES), file=self._path.name)
        except FileNotFoundError:
            return None
        except (OSError, EdgeOnnxError) as error:
            _logger.warning("%s cannot be read, the time is verified anew: %s", self._path, error)
            return None

    def _write(self) -> None:
        try:
            self._disk.replace(self._path, self._here.to_bytes())
        except OSError as error:
            kind = NoSpaceError if error.errno in FULL_DISK else StateError
            raise kind(
                "the verified time cannot be written",
                where=str(self._path),
                found=error.strerror or str(error),
                hint="the version that serves is not touched; check the disk and who owns the state directory",
            ) from error
        self._stored = self._here
