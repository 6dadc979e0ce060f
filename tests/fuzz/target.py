"""What a fuzz target is: one stated invariant, and attempts to break it that follow from a seed."""

from __future__ import annotations

import importlib
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

Attempt = Callable[[random.Random], None]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A fuzz target.

    Attributes:
        name: As the command line takes it.
        invariant: One sentence: what is true for every input.
        open: Loads models once, and returns the attempt: it makes an input from the random numbers that it is given and
            raises an AssertionError if the invariant does not hold. Any other exception is a failure too.
        short: Attempts of the short form in the suite.
    """

    name: str
    invariant: str
    open: Callable[[], Attempt]
    short: int = 200


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of some attempts.

    Attributes:
        attempts: How many ran.
        seconds: How long they took.
        failed: The seed of the attempt that failed, or None.
        error: What it raised, or None.
    """

    attempts: int
    seconds: float
    failed: int | None = None
    error: Exception | None = None


def attempt_until(attempt: Attempt, seed: int, *, count: int | None, seconds: float) -> Outcome:
    """Run attempts with the seeds `seed`, `seed + 1`, ... until one fails, or `count` or `seconds` are reached."""
    begin = time.monotonic()
    done = 0
    while (count is None or done < count) and time.monotonic() - begin < seconds:
        try:
            attempt(random.Random(seed + done))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            return Outcome(attempts=done + 1, seconds=time.monotonic() - begin, failed=seed + done, error=error)
        done += 1
    return Outcome(attempts=done, seconds=time.monotonic() - begin)


def twins(compiled: str, reference: str) -> dict[str, ModuleType]:
    """Both twins of a kernel: the plain one, and the compiled one unless EDGEONNX_EXT_PURE=1 does without."""
    found = {"reference": importlib.import_module(f"edgeonnx_ext.reference.{reference}")}
    if os.environ.get("EDGEONNX_EXT_PURE") != "1":
        found["compiled"] = importlib.import_module(f"edgeonnx_ext.{compiled}")
    return found


def same_refusal(actions: Mapping[str, Callable[[], object]], *errors: type[Exception]) -> None:
    """Fail unless every twin refuses with one of `errors`, and all with the same words."""
    messages = {}
    for kind, action in actions.items():
        try:
            result = action()
        except errors as error:
            messages[kind] = f"{type(error).__name__}: {error}"
        else:
            raise AssertionError(f"{kind}: expected {' or '.join(e.__name__ for e in errors)}, found {result!r}")
    assert len(set(messages.values())) == 1, messages
