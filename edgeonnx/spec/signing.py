"""What the signed metadata of a repository says beyond TUF: when it was signed. Pure.

The time in it is a lower bound of the true time for whoever verified it, so a device without a clock learns the time
from its updates.
"""

from __future__ import annotations

from datetime import UTC, datetime

SIGNED_AT = "x-edgeonnx-signed-at"
"""The field of all signed metadata that says when it was signed."""

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def stamp(moment: datetime) -> str:
    """A time as metadata writes it: ISO 8601, UTC, whole seconds."""
    return moment.astimezone(UTC).strftime(_FORMAT)


def read_stamp(text: object) -> datetime | None:
    """The time that `stamp` wrote; None if it is no such text."""
    try:
        return datetime.strptime(str(text), _FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None
