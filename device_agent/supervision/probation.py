"""Whether a new version stays: the verdict over what was seen of it and of the version before. Pure.

A fault is a request that failed for a reason of the agent's own (the runtime, a bug); refusals, wrong requests and
clients that left are none. Times are of the answered requests, without the wait for a runner: that depends on how much
is asked, and not on the model. How long an answer takes that is generated depends on its length, so of such a model the
time to the first token and the time of each further one are judged.

The previous version is not kept in memory meanwhile. A box that holds one model well may not hold two, and to load it
again takes tenths of a second, in which the new version still answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from device_agent.config import UpdateConfig

LATENCY_SECONDS = 3.0
"""For which a version is watched before its times are judged: a box that is busy for a moment, with a version that
warms up, is no slow model."""
LEAST_SLOWER_SECONDS = 0.001
"""By which a median must be larger, whatever the ratio: below it, the scheduler is measured and not the model."""
HUNG_SECONDS = 20.0
"""In which a version that has work must finish a run. Runs of text models take milliseconds; of large batches on the
slowest boxes, a second or two."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What was seen of the version before, while it served.

    Attributes:
        faults: Share of its last requests that were faults, 0.0 to 1.0.
        median: Median time of a request in seconds; None: too few were answered. So are the next two.
        first_token: Median time to the first token of an answer.
        each_token: Median time of each further token.
    """

    faults: float = 0.0
    median: float | None = None
    first_token: float | None = None
    each_token: float | None = None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was seen of a version since its probation began in this process.

    Attributes:
        seconds: How long that is, by a clock that never jumps.
        requests: Requests that were answered, or were faults.
        faults: Those that were faults.
        recent_faults: Faults among the last `update.probation_requests` requests.
        median: Median time of the last answered requests, in seconds; None: none was answered. So are the next two.
        first_token: Median time to the first token of an answer.
        each_token: Median time of each further token.
        idle_seconds: How long it has had work without finishing a run; 0.0: it finishes, or has nothing to do.
    """

    seconds: float
    requests: int = 0
    faults: int = 0
    recent_faults: int = 0
    median: float | None = None
    first_token: float | None = None
    each_token: float | None = None
    idle_seconds: float = 0.0


class Outcome(Enum):
    """What a verdict says."""

    WAIT = "wait"
    COMMIT = "commit"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What to do with a version on probation, and why."""

    outcome: Outcome
    reason: str = ""


def judge(limits: UpdateConfig, before: Baseline, seen: Seen) -> Verdict:
    """The verdict at one moment.

    Args:
        limits: `[update]`.
        before: What the version before did; an empty one where nothing is known, as after a restart.
        seen: What the new version did.
    """
    reason = _hung(seen) or _fails(limits, before, seen) or _slow(limits, before, seen)
    if reason is not None:
        return Verdict(outcome=Outcome.ROLL_BACK, reason=reason)
    if seen.seconds >= limits.probation_seconds:
        return Verdict(outcome=Outcome.COMMIT)
    return Verdict(outcome=Outcome.WAIT)


def _hung(seen: Seen) -> str | None:
    if seen.idle_seconds < HUNG_SECONDS:
        return None
    return f"it has requests and finished none for {seen.idle_seconds:.0f} s"


def _fails(limits: UpdateConfig, before: Baseline, seen: Seen) -> str | None:
    """Why it fails too often; None if it does not.

    It is measured against the version before: requests that no version can answer are no fault of the new one.
    """
    wanted = limits.probation_requests
    allowed = min(1.0, limits.probation_errors + before.faults)
    # The sliding look: a version that fails hard is not given the time to have failed on average.
    if seen.recent_faults * 2 >= wanted and seen.recent_faults > allowed * wanted:
        return f"{seen.recent_faults} of its last {min(wanted, seen.requests)} requests failed"
    if seen.requests >= wanted and seen.faults > allowed * seen.requests:
        return f"{seen.faults} of its {seen.requests} requests failed, at most {100 * allowed:g} % may"
    return None


def _slow(limits: UpdateConfig, before: Baseline, seen: Seen) -> str | None:
    """Why it is too slow; None if it is not, or nothing is known."""
    if seen.seconds < LATENCY_SECONDS or seen.requests - seen.faults < limits.probation_requests:
        return None
    for what, was, now in (
        ("its requests take", before.median, seen.median),
        ("its first tokens take", before.first_token, seen.first_token),
        ("its tokens take", before.each_token, seen.each_token),
    ):
        if was is None or now is None:
            continue
        if now > max(limits.probation_latency * was, was + LEAST_SLOWER_SECONDS):
            return (
                f"{what} {1e3 * now:.3g} ms (median), those of the version before took {1e3 * was:.3g} ms; "
                f"at most {limits.probation_latency:g} times that may be"
            )
    return None
