"""When to wait, when to try again and when to give up. Pure: time comes in as numbers, and nothing here waits.

Full jitter (a wait drawn evenly between 0 and a bound that doubles) keeps a fleet that lost its server at one moment
from coming back at one moment: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
"""Bounds of the wait before a retry: the first one, and what it doubles up to."""

SMALLEST_BURST_BYTES = 64 << 10
"""What may come at once whatever the bandwidth limit: one piece that is read from a socket."""


@dataclass(kw_only=True)
class Retries:
    """Decides after each failed try of one download whether, and when, there is another one.

    A try that brought something starts the count anew, so that a link that breaks every few seconds gets a large file
    in the end; the deadline bounds it all.

    Attributes:
        most: Retries in a row that brought nothing.
        deadline: When the download must be over, on the clock that `after` is given.
        longest_retry_after: The longest wish of a server that is followed, in seconds.
        failures: Failed tries in a row so far.
    """

    most: int
    deadline: float
    longest_retry_after: float
    failures: int = 0

    def after(self, now: float, *, progress: bool, chance: float, retry_after: float | None = None) -> float | None:
        """What follows a failed try.

        Args:
            now: The time in seconds, on the clock of the deadline.
            progress: The try brought something.
            chance: A random number from 0 to 1.
            retry_after: Seconds that the server asked for, or None.

        Returns:
            Seconds to wait before the next try; None: there is none.
        """
        self.failures = 1 if progress else self.failures + 1
        if self.failures > self.most:
            return None
        wait = chance * longest_wait(self.failures)
        if retry_after is not None:
            if retry_after > self.longest_retry_after:
                return None
            wait += retry_after  # added, so that those who were asked to come back at one moment do not
        return wait if now + wait < self.deadline else None


def longest_wait(failures: int) -> float:
    """The longest wait after that many failures in a row (1 or more), in seconds."""
    return float(min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(failures - 1, 16)))


@dataclass(kw_only=True)
class Progress:
    """Notices a server that sends too little in its time, however often it sends a byte.

    Only the time that was spent waiting for the server counts: what the bandwidth limit or the disk takes is not its
    fault.

    Attributes:
        seconds: The window; the verdict comes at its end, and then the next one begins.
        least: Bytes that must come in a window.
    """

    seconds: float
    least: int
    _waited: float = 0.0
    _came: int = 0

    def add(self, waited: float, count: int) -> bool:
        """Note a piece.

        Args:
            waited: Seconds for which it was waited.
            count: Its bytes.

        Returns:
            False if the window is over and too little came in it.
        """
        self._waited += waited
        self._came += count
        if self._waited < self.seconds:
            return True
        enough = self._came >= self.least
        self._waited, self._came = 0.0, 0
        return enough


@dataclass(kw_only=True)
class TokenBucket:
    """A bandwidth limit that several downloads share.

    The bucket may go below zero: bytes that came are paid for by waiting, so a large piece is never split.

    Attributes:
        rate: Bytes a second.
        burst: Bytes that may come at once after a pause: a second's worth, or one piece.
    """

    rate: float
    _level: float | None = None
    _at: float = 0.0

    @property
    def burst(self) -> float:
        """The most that is saved up."""
        return max(self.rate, float(SMALLEST_BURST_BYTES))

    def take(self, now: float, count: int) -> float:
        """Pay for bytes that came.

        Args:
            now: The time in seconds, on a clock that never goes back.
            count: Their number.

        Returns:
            Seconds to wait before more may come.
        """
        if self._level is None:
            level = self.burst
        else:
            level = min(self.burst, self._level + max(0.0, now - self._at) * self.rate)
        self._level, self._at = level - count, now
        return max(0.0, -self._level / self.rate)
