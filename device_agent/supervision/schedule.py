"""When the serving process looks for a release. Pure.

Each wait is spread, so that a fleet that was switched on together does not come together.
"""

from __future__ import annotations

FIRST_SECONDS = 60.0
"""Within which the first look after a start is taken; sooner where the interval is shorter."""
RETRY_SECONDS = 30.0
"""After a look that failed; twice as much after each further one, up to the interval."""


def first_wait(interval: float, chance: float, *, installed: bool) -> float:
    """Seconds from the start to the first look.

    Args:
        interval: `update.interval_seconds`.
        chance: A random number, 0.0 to 1.0.
        installed: Something is installed; if not, the device looks at once.
    """
    return min(FIRST_SECONDS, interval / 2) * chance if installed else 0.0


def next_wait(interval: float, chance: float, *, failures: int = 0) -> float:
    """Seconds from one look to the next: between half of the time that is meant and one and a half of it.

    Args:
        interval: `update.interval_seconds`, which is meant on average.
        chance: A random number, 0.0 to 1.0.
        failures: Looks in a row that failed until now: the next ones come sooner at first, and then as rarely as ever.
    """
    meant = interval if failures == 0 else min(interval, RETRY_SECONDS * 2.0 ** min(failures - 1, 20))
    return meant * (0.5 + chance)
