from __future__ import annotations

from datetime import UTC, datetime

import pytest

from device_agent.update.trust.floor import MAX_VERSION, Floor, Record, signed_at
from edgeonnx.errors import ManifestError, UntrustedError
from edgeonnx.spec.signing import SIGNED_AT

EXPIRES = datetime(2026, 6, 4, tzinfo=UTC)
SNAPSHOT = Record(version=5, signers=("a",), signed_at=10.0, listed={"targets.json": 3, "releases.json": 7})


@pytest.mark.parametrize(
    ("keyids", "threshold", "stands"),
    [
        (["a", "b"], 2, True),
        (["a", "b", "c"], 2, True),
        (["a", "c"], 2, False),
        (["a", "c"], 1, True),
        (["a", "b"], 3, False),
        ([], 1, False),
    ],
)
def test_a_record_stands_as_long_as_its_signers_are_enough(keyids: list[str], threshold: int, stands: bool) -> None:
    assert Record(version=1, signers=("a", "b")).stands(keyids, threshold) is stands


def test_versions_may_stay_and_grow() -> None:
    floor = Floor(records={"snapshot": SNAPSHOT, "timestamp": Record(version=2)})
    floor.check("snapshot", SNAPSHOT)
    floor.check("snapshot", Record(version=1, listed={"targets.json": 4, "releases.json": 7, "rollout.json": 1}))
    floor.check("timestamp", Record(version=2))
    floor.check("targets", Record(version=1))


@pytest.mark.parametrize(
    ("role", "new", "message"),
    [
        ("snapshot", Record(version=6, listed={"targets.json": 2, "releases.json": 7}), "an older targets.*version 2"),
        ("snapshot", Record(version=6, listed={"targets.json": 3}), "no longer lists releases.json"),
        ("timestamp", Record(version=1), "an older timestamp.*version 2 or later"),
        ("root", Record(version=3), "an older root"),
    ],
)
def test_nothing_goes_back(role: str, new: Record, message: str) -> None:
    floor = Floor(records={"snapshot": SNAPSHOT, "timestamp": Record(version=2), "root": Record(version=4)})
    with pytest.raises(UntrustedError, match=message):
        floor.check(role, new)


def test_the_file_gives_the_floor_back() -> None:
    floor = Floor(records={"snapshot": SNAPSHOT, "root": Record(version=MAX_VERSION)})
    assert Floor.from_bytes(floor.to_bytes()) == floor
    assert Floor.from_bytes(Floor().to_bytes()) == Floor()


@pytest.mark.parametrize(
    ("before", "after"),
    [(b'"version": 5', b'"version": 6'), (b"10.0", b"90.0"), (b'"snapshot"', b'"releases"'), (b'"1.0"', b'"1.x"')],
)
def test_a_file_that_was_changed_is_damaged(before: bytes, after: bytes) -> None:
    data = Floor(records={"snapshot": SNAPSHOT}).to_bytes()
    assert before in data
    with pytest.raises(ManifestError):
        Floor.from_bytes(data.replace(before, after))


def test_the_latest_time_is_that_of_the_records_that_are_left() -> None:
    floor = Floor(records={"snapshot": SNAPSHOT, "timestamp": Record(version=2, signed_at=99.0)})
    assert floor.latest == 99.0
    assert floor.without({"timestamp"}).latest == 10.0
    assert floor.without({"timestamp", "snapshot"}).latest is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-06-01T00:00:00Z", 1_780_272_000.0),
        ("2026-06-04T00:00:00Z", EXPIRES.timestamp()),
        ("2026-06-04T00:00:01Z", None),
        ("2099-01-01T00:00:00Z", None),
        ("1969-12-31T23:59:59Z", None),
        ("2026-06-01", None),
        (1_780_272_000, None),
        (None, None),
    ],
)
def test_a_time_of_signing_counts_if_it_is_before_the_expiry(text: object, expected: float | None) -> None:
    assert signed_at({SIGNED_AT: text}, EXPIRES) == expected
