from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from edgeonnx.spec.signing import read_stamp, stamp


def test_a_time_is_read_as_it_was_written() -> None:
    moment = datetime(2026, 11, 30, 13, 0, tzinfo=timezone(timedelta(hours=1)))
    assert stamp(moment) == "2026-11-30T12:00:00Z"
    assert read_stamp(stamp(moment)) == datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize("text", [None, "", 7, "2026-11-30", "2026-11-30T12:00:00+01:00", "2026-13-01T00:00:00Z"])
def test_what_is_no_time(text: object) -> None:
    assert read_stamp(text) is None
