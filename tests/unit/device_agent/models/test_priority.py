from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from device_agent.models.priority import NICE, lowered

pytestmark = pytest.mark.skipif(not hasattr(os, "getpriority"), reason="no niceness here")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def in_thread(function: Callable[[], None]) -> None:
    """Run a test's part in a thread of its own, which may not get its priority back."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_what_serves_later_keeps_the_usual_priority() -> None:
    usual_niceness = niceness()
    lowest = min(19, usual_niceness + NICE)

    def work() -> None:
        with lowered() as usual:
            assert niceness() == lowest
            found: list[int] = []
            # Threads get the priority of whoever starts them.
            for start in (lambda: inner(found), lambda: usual.run(lambda: inner(found))):
                start()
            assert found == [lowest, usual_niceness]
            assert usual.run(niceness) == usual_niceness
            with pytest.raises(ValueError, match="raised there"):
                usual.run(fail)

    in_thread(work)
    assert niceness() == usual_niceness


def inner(found: list[int]) -> None:
    thread = threading.Thread(target=lambda: found.append(niceness()))
    thread.start()
    thread.join()


def fail() -> None:
    raise ValueError("raised there")


def test_nothing_is_lowered_where_nothing_serves() -> None:
    usual_niceness = niceness()

    def work() -> None:
        with lowered(wanted=False) as usual:
            assert niceness() == usual_niceness
            assert usual.run(threading.get_native_id) == threading.get_native_id()

    in_thread(work)
