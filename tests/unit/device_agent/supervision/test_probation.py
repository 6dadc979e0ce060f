from __future__ import annotations

import pytest

from device_agent.config import UpdateConfig
from device_agent.supervision.probation import HUNG_SECONDS, LATENCY_SECONDS, Baseline, Outcome, Seen, judge

LIMITS = UpdateConfig(
    probation_seconds=600.0, probation_requests=20, probation_errors=0.05, probation_latency=3.0, tries=3
)
WAIT, COMMIT, ROLL_BACK = Outcome
KNOWN = Baseline(median=0.010)

CASES = {
    "nothing was asked": (Baseline(), Seen(seconds=1.0), WAIT),
    "nothing was asked until the end": (Baseline(), Seen(seconds=600.0), COMMIT),
    "all is well": (KNOWN, Seen(seconds=60.0, requests=500, median=0.011), WAIT),
    "all was well": (KNOWN, Seen(seconds=600.0, requests=500, faults=25, median=0.011), COMMIT),
    "too few requests to judge": (KNOWN, Seen(seconds=60.0, requests=19, faults=9, recent_faults=9), WAIT),
    "ten failed, whatever comes": (KNOWN, Seen(seconds=0.1, requests=10, faults=10, recent_faults=10), ROLL_BACK),
    "it fails hard after a good hour": (
        KNOWN,
        Seen(seconds=60.0, requests=9000, faults=10, recent_faults=10),
        ROLL_BACK,
    ),
    "one of twenty": (KNOWN, Seen(seconds=60.0, requests=20, faults=1, recent_faults=1), WAIT),
    "two of twenty": (KNOWN, Seen(seconds=60.0, requests=20, faults=2, recent_faults=2), ROLL_BACK),
    "as many as before": (Baseline(faults=0.1), Seen(seconds=60.0, requests=100, faults=15, recent_faults=3), WAIT),
    "more than before": (Baseline(faults=0.1), Seen(seconds=60.0, requests=100, faults=16, recent_faults=3), ROLL_BACK),
    "all failed before too": (Baseline(faults=1.0), Seen(seconds=9.0, requests=50, faults=50, recent_faults=20), WAIT),
    "a fault at the last moment": (KNOWN, Seen(seconds=600.0, requests=20, faults=2, recent_faults=2), ROLL_BACK),
    "slower, within the ratio": (KNOWN, Seen(seconds=60.0, requests=20, median=0.030), WAIT),
    "too slow": (KNOWN, Seen(seconds=60.0, requests=20, median=0.031), ROLL_BACK),
    "too slow, too few answers": (KNOWN, Seen(seconds=60.0, requests=20, faults=1, median=0.031), WAIT),
    "too slow for a moment": (KNOWN, Seen(seconds=LATENCY_SECONDS - 0.1, requests=50, median=0.031), WAIT),
    "too slow, the one before is not known": (Baseline(), Seen(seconds=60.0, requests=50, median=9.0), WAIT),
    "slower by less than can be told": (Baseline(median=0.0001), Seen(seconds=60.0, requests=50, median=0.001), WAIT),
    "first tokens come too late": (
        Baseline(first_token=0.2, each_token=0.01),
        Seen(seconds=60.0, requests=20, first_token=0.61, each_token=0.01),
        ROLL_BACK,
    ),
    "tokens come too slowly": (
        Baseline(first_token=0.2, each_token=0.01),
        Seen(seconds=60.0, requests=20, first_token=0.2, each_token=0.031),
        ROLL_BACK,
    ),
    "tokens come a little more slowly": (
        Baseline(first_token=0.2, each_token=0.01),
        Seen(seconds=60.0, requests=20, first_token=0.6, each_token=0.03),
        WAIT,
    ),
    "it generates, the one before did not": (KNOWN, Seen(seconds=60.0, requests=20, first_token=9.0), WAIT),
    "slow at the last moment": (KNOWN, Seen(seconds=600.0, requests=20, median=0.031), ROLL_BACK),
    "busy": (KNOWN, Seen(seconds=60.0, idle_seconds=HUNG_SECONDS - 0.1), WAIT),
    "hung": (KNOWN, Seen(seconds=60.0, idle_seconds=HUNG_SECONDS), ROLL_BACK),
}


@pytest.mark.parametrize("name", CASES)
def test_verdicts(name: str) -> None:
    before, seen, outcome = CASES[name]
    verdict = judge(LIMITS, before, seen)
    assert verdict.outcome is outcome
    assert bool(verdict.reason) == (outcome is ROLL_BACK)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (Seen(seconds=60.0, requests=40, faults=4, recent_faults=2), "4 of its 40 requests failed, at most 5 % may"),
        (Seen(seconds=60.0, requests=12, faults=11, recent_faults=11), "11 of its last 12 requests failed"),
        (
            Seen(seconds=60.0, requests=40, median=0.0456),
            "its requests take 45.6 ms (median), those of the version before took 10 ms; at most 3 times that may be",
        ),
        (Seen(seconds=60.0, idle_seconds=30.0), "it has requests and finished none for 30 s"),
    ],
)
def test_reasons(seen: Seen, reason: str) -> None:
    assert judge(LIMITS, KNOWN, seen).reason == reason


def test_the_limits_are_the_settings() -> None:
    lax = UpdateConfig(probation_seconds=0.0, probation_errors=1.0, probation_latency=100.0)
    worst = Seen(seconds=60.0, requests=100, faults=50, recent_faults=20, median=0.5)
    assert judge(lax, KNOWN, worst).outcome is COMMIT
    assert (
        judge(UpdateConfig(probation_requests=200), KNOWN, Seen(seconds=1.0, requests=199, faults=60)).outcome is WAIT
    )
