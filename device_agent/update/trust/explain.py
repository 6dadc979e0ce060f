"""What python-tuf refuses, said so that a person can act on it: which role, what was expected, what was found."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tuf.api.exceptions import (
    BadVersionNumberError,
    DownloadError,
    DownloadHTTPError,
    ExpiredMetadataError,
    LengthOrHashMismatchError,
    RepositoryError,
    UnsignedMetadataError,
)
from tuf.api.metadata import Metadata

from edgeonnx.errors import FetchError, UntrustedError, first_line

if TYPE_CHECKING:
    from device_agent.update.trust.clock import Clock
    from device_agent.update.trust.verifier import Fetcher, Verifier
    from edgeonnx.errors import EdgeOnnxError

TELL = "nothing was changed on this device; if this does not pass, tell whoever runs the repository"


_BEFORE = {"root": "root", "timestamp": "root", "snapshot": "timestamp"}
"""The role whose expiry python-tuf checks before it loads another one; `snapshot` for all others."""


def explained(
    error: RepositoryError | DownloadError, verifier: Verifier, fetcher: Fetcher, clock: Clock
) -> EdgeOnnxError:
    """Our error for one of python-tuf's."""
    role, where = verifier.loading, fetcher.path or "the repository"
    if isinstance(error, DownloadHTTPError):
        return FetchError(
            f"the repository has no {role}",
            where=where,
            hint="check the repository's address; if it is right, a copy of the repository is incomplete",
        )
    if isinstance(error, DownloadError):
        return FetchError(f"{role} could not be fetched", where=where, found=first_line(error))
    if isinstance(error, ExpiredMetadataError):
        return _expired(*_culprit(verifier, fetcher), clock, verifier.reference_time)
    if isinstance(error, UnsignedMetadataError):
        return UntrustedError(
            f"{role} is not signed by enough of the keys that may sign it",
            where=where,
            found=first_line(error),
            hint=TELL,
        )
    if isinstance(error, BadVersionNumberError):
        return UntrustedError(f"{role} is not of the right version", where=where, found=first_line(error), hint=TELL)
    if isinstance(error, LengthOrHashMismatchError):
        return UntrustedError(
            f"{role} is not the file that was signed", where=where, found=first_line(error), hint=TELL
        )
    cause = error.__cause__
    found = first_line(error) if cause is None else f"{first_line(error)}: {first_line(cause)}"
    return UntrustedError(f"{role} cannot be trusted", where=where, found=found, hint=TELL)


def _culprit(verifier: Verifier, fetcher: Fetcher) -> tuple[str, datetime | None]:
    """Which role has expired, and when: the one that was being loaded, or the one before, which is looked at again.

    Signatures are checked before the expiry is, so what the refused metadata say of it can be told.
    """
    before = _BEFORE.get(verifier.loading, "snapshot")
    signed = verifier.signed.get(before)
    if signed is not None and signed.is_expired(verifier.reference_time):
        return before, signed.expires
    with contextlib.suppress(RepositoryError):
        return verifier.loading, Metadata.from_bytes(fetcher.data).signed.expires
    return verifier.loading, None


def _expired(role: str, expiry: datetime | None, clock: Clock, reference: datetime) -> UntrustedError:
    """The message names both times, and which of the two is likely to be wrong."""
    system = datetime.fromtimestamp(clock.system(), UTC)
    verified = datetime.fromtimestamp(clock.bound(), UTC)
    expected = "a signature that holds" if expiry is None else f"a time before {_text(expiry)}, when it expired"
    if reference > system:
        found = f"{_text(reference)}, which verified metadata prove; the system clock says {_text(system)}"
        hint = (
            "whoever runs the repository must renew it (edgeonnx repo refresh), or somebody holds back newer metadata; "
            "if the proven time cannot be, a stolen key made it up and must be replaced"
        )
    else:
        found = f"{_text(system)} on the system clock; verified metadata prove {_text(verified)} or later"
        hint = (
            "if the system clock is wrong, set it and try again; if it is right, the repository must be renewed "
            "(edgeonnx repo refresh), or somebody holds back newer metadata"
        )
    return UntrustedError(f"{role} has expired", where="the repository", expected=expected, found=found, hint=hint)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
