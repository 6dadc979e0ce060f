"""What the agent tells systemd: ready, what it does, stopping, and that it still works.

The protocol is one datagram of `NAME=value` lines to `$NOTIFY_SOCKET` (sd_notify(3)). Without that variable nothing
is sent. The watchdog is fed by the event loop, so an event loop that hangs starves it; and it is fed only while the
models make progress, so a run of the model that never ends starves it too. Then systemd restarts the agent
(`WatchdogSec=` and `Restart=` of the unit).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger("edgeonnx.agent")


class Work(NamedTuple):
    """What one model has to do.

    Attributes:
        busy: Something waits or runs.
        finished: Runs that ended so far, well or badly.
        run_seconds: How long the longest run that goes on has taken so far; 0.0: unknown, or none goes on. It shows one
            runner that hangs while others work.
    """

    busy: bool
    finished: int
    run_seconds: float = 0.0


def stuck(before: Mapping[str, Work], now: Mapping[str, Work], most_seconds: float) -> list[str]:
    """The models that had work at both looks and finished nothing between them, or of which a run takes too long.

    Args:
        before: The work of each model at the last look.
        now: The same now. A model that is new, or was idle before, had no time yet.
        most_seconds: What a run may take.
    """
    found = []
    for key, work in now.items():
        old = before.get(key)
        idle = not work.busy or old is None or not old.busy or old.finished != work.finished
        if not idle or work.run_seconds > most_seconds:
            found.append(key)
    return found


class Notifier:
    """The agent's side of sd_notify.

    Args:
        address: Of the datagram socket: a path, or `@name` for an abstract one; None: nothing is sent.
        watchdog_seconds: The time after which systemd ends a service that it hears nothing of; None: it does not.
    """

    def __init__(self, address: str | None = None, watchdog_seconds: float | None = None) -> None:
        self._address = address
        self.watchdog_seconds = watchdog_seconds
        self._status = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Notifier:
        """The notifier for `$NOTIFY_SOCKET`, `$WATCHDOG_USEC` and `$WATCHDOG_PID`."""
        env = os.environ if environment is None else environment
        address = env.get("NOTIFY_SOCKET", "")
        # sd_watchdog_enabled(3): the variables may be meant for a parent that passed its environment on.
        ours = env.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = env.get("WATCHDOG_USEC", "")
        seconds = int(microseconds) / 1e6 if ours and microseconds.isdecimal() and int(microseconds) else None
        return cls(address if address.startswith(("/", "@")) else None, seconds)

    def ready(self, status: str) -> None:
        """Everything that was asked for serves."""
        self._status = status
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, text: str) -> None:
        """What the agent does, for `systemctl status`; sent only where it changed."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={_one_line(text)}")

    def reloading(self) -> None:
        """The agent reads its files again; `ready` follows when it is done."""
        # systemd tells by the clock which of two reloads this is the answer to (`Type=notify-reload`).
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str) -> None:
        """The agent begins to stop."""
        self._status = status
        self._send(f"STOPPING=1\nSTATUS={_one_line(status)}")

    async def watch(self, work: Callable[[], Mapping[str, Work]], status: Callable[[], str] | None = None) -> None:
        """Feed the watchdog three times in its time while the models make progress; runs until it is cancelled.

        A run of the model that takes less than the watchdog's time never starves it.

        Args:
            work: What each model has to do now.
            status: What the agent does now, in a line.
        """
        if self.watchdog_seconds is None or self._address is None:
            return
        before: Mapping[str, Work] = {}
        while True:
            now = work()
            hung = stuck(before, now, self.watchdog_seconds)
            before = now
            if hung:
                logger.error("no run of %s ends; the watchdog is not fed", ", ".join(hung))
            else:
                self._send("WATCHDOG=1")
            if status is not None:
                self.status(status())
            await asyncio.sleep(self.watchdog_seconds / 3)

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
                # A systemd that does not read is no reason to hold up the event loop for long.
                notify.settimeout(0.2)
                notify.sendto(message.encode(), address)
        except OSError as error:
            logger.warning("systemd was not told %s: %s", message.partition("\n")[0], error)


def _one_line(text: str) -> str:
    return " ".join(text.split())
