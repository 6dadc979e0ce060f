"""Changing a model's state while the process that serves, or a command, may change it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_agent.slots.store import STATE_LOCK, STATE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_agent.slots.state import SlotState
    from device_agent.slots.store import Store


def change_state(store: Store, model: str, change: Callable[[SlotState], SlotState]) -> SlotState:
    """Read a model's state, make the next one from it, and write that; nobody else writes in between.

    Args:
        store: The state directory.
        model: The model's name.
        change: Gives the next state; the same object: nothing is written.

    Returns:
        The state as it is now.

    Raises:
        NoSpaceError, StateError: It could not be written, or is held too long by another process.
    """
    with store.locked(STATE_LOCK, "another process", wait=STATE_SECONDS):
        before = store.read_state(model)
        after = change(before)
        return before if after is before else store.write_state(after)
