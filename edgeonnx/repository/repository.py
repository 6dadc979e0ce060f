"""A repository on the build host: opened, locked for a change, changed, left valid whatever happens."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING

from edgeonnx.errors import RepositoryError
from edgeonnx.repository.create import read_settings
from edgeonnx.repository.files import Files
from edgeonnx.repository.signing import pending
from edgeonnx.repository.signing.draft import Draft
from edgeonnx.repository.signing.roles import utc_now
from edgeonnx.repository.state import State, read_state, signed_at
from edgeonnx.spec.signing import stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from pathlib import Path


MAX_SKEW = timedelta(hours=1)
"""How far the clocks of two publishers may differ: the later signature then bears the earlier one's time."""


class Repository:
    """A repository's folder and the time at which it is changed.

    Args:
        path: The folder.
        now: Gives the time, UTC.
        files: The folder's files; made from `path` if not given.
    """

    def __init__(self, path: Path, *, now: Callable[[], datetime] = utc_now, files: Files | None = None) -> None:
        self.files = files or Files(path)
        self.now = now

    def state(self) -> State:
        """The present signed state."""
        return read_state(self.files)

    @contextlib.contextmanager
    def changing(self) -> Iterator[Draft]:
        """Hold the lock and begin a draft; the caller commits it.

        Raises:
            RepositoryBusyError: Another process has the repository.
            RepositoryError: It is none, or is damaged.
        """
        read_state(self.files)  # before the lock, which would make a folder in what is no repository
        with self.files.lock():
            state = read_state(self.files)
            pending.clear_done(self.files, state)
            expires = read_settings(self.files).expires
            yield Draft(self.files, state, now=signing_time(state, self.now()), expires=expires)


def signing_time(state: State, now: datetime) -> datetime:
    """When a change is signed: now, and never before what was signed last. Pure.

    Devices take the time of a signature for a lower bound of the true time, so it must not go back.

    Raises:
        RepositoryError: This host's clock is far behind the last signature.
    """
    last = max(signed_at(metadata) for metadata in state.metadata.values())
    if now < last - MAX_SKEW:
        raise RepositoryError(
            "the clock of this machine is behind the last signature of the repository",
            expected=f"{stamp(last)} or later",
            found=stamp(now),
            hint="set the clock; devices believe the time of a signature, so it cannot go back",
        )
    return max(now, last)
