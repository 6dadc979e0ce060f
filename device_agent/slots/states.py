"""The states of an attempt to install a release, as a table. `docs/updates.md` draws its picture from it.

Each release that a device takes is one attempt. The state is written durably before the step that it names begins, so
that after a power cut the next start knows what was going on. An attempt whose state allows it is taken up again; the
tries that are left bound how often.
"""

from __future__ import annotations

from enum import Enum


class AttemptState(Enum):
    """Where an attempt stands."""

    DOWNLOADING = "downloading"
    """Its blobs are being fetched. What arrived is kept; the next run goes on."""
    STAGED = "staged"
    """Every file is here, verified, in a slot of its own."""
    CANDIDATE = "candidate"
    """A process of its own loads it and replays its golden set."""
    PROVEN = "proven"
    """It gave its golden answers here; it serves from the next swap or start on."""
    PROBATION = "probation"
    """It serves, and is watched. Its tries are counted before each load."""
    COMMITTED = "committed"
    """It served well for the time of the probation."""
    REJECTED = "rejected"
    """It did not prove itself before it served: the digest is blocked here."""
    ROLLED_BACK = "rolled back"
    """It served badly, or did not start: the previous version serves again, the digest is blocked here."""
    ABANDONED = "abandoned"
    """It was given up without fault of its own: withdrawn, superseded, or removed by hand."""


TRANSITIONS: dict[AttemptState, frozenset[AttemptState]] = {
    AttemptState.DOWNLOADING: frozenset({AttemptState.STAGED, AttemptState.REJECTED, AttemptState.ABANDONED}),
    # Rejected without a load: the tries were used up by candidates that took the machine down.
    AttemptState.STAGED: frozenset(
        {AttemptState.CANDIDATE, AttemptState.REJECTED, AttemptState.DOWNLOADING, AttemptState.ABANDONED}
    ),
    AttemptState.CANDIDATE: frozenset(
        {
            AttemptState.CANDIDATE,
            AttemptState.PROVEN,
            AttemptState.REJECTED,
            AttemptState.DOWNLOADING,
            AttemptState.ABANDONED,
        }
    ),
    AttemptState.PROVEN: frozenset(
        {AttemptState.PROBATION, AttemptState.REJECTED, AttemptState.DOWNLOADING, AttemptState.ABANDONED}
    ),
    # Proven again: it could not be loaded beside what serves, for no fault of its own, and waits for the next start.
    AttemptState.PROBATION: frozenset(
        {
            AttemptState.PROBATION,
            AttemptState.COMMITTED,
            AttemptState.ROLLED_BACK,
            AttemptState.PROVEN,
            AttemptState.ABANDONED,
        }
    ),
    AttemptState.COMMITTED: frozenset(),
    AttemptState.REJECTED: frozenset(),
    AttemptState.ROLLED_BACK: frozenset(),
    AttemptState.ABANDONED: frozenset(),
}

FINAL = frozenset(state for state, following in TRANSITIONS.items() if not following)
"""States after which an attempt is over."""


def check_transition(before: AttemptState, after: AttemptState) -> None:
    """Refuse a step that the table does not have.

    Raises:
        RuntimeError: A fault of the caller.
    """
    if after not in TRANSITIONS[before]:
        raise RuntimeError(f"no transition from {before.value} to {after.value}")
