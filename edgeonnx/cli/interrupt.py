"""Ctrl-C, SIGTERM and SIGHUP: unwind the stack, so that a half-written bundle is removed, and end with one exit code.

The signal raises where the program happens to be. That can be inside a library that swallows every exception (a
callback from compiled code, a finalizer), so it is also remembered, and raised again at the next step of the run.
"""

from __future__ import annotations

import signal


class Interrupted(BaseException):
    """The user, or the system, wants the program to stop.

    Not a KeyboardInterrupt: where one passes through `exec` of a text, CPython notes it and ends the process by SIGINT
    at its very end, although it was handled, and the exit code is lost.
    """


_received: list[int] = []


def install() -> None:
    """Take the signals; one that is ignored (by nohup, for one) stays so."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, receive)


def receive(number: int, _frame: object) -> None:
    """Remember a signal, and raise."""
    _received.append(number)
    raise Interrupted


def received() -> bool:
    """Whether a signal has come."""
    return bool(_received)


def check() -> None:
    """Raise if a signal has come; a long run calls it between its steps.

    Raises:
        Interrupted: As said.
    """
    if received():
        raise Interrupted
