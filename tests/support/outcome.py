"""The invariant of hostile input: it is accepted, or refused with an error of ours, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from edgeonnx.errors import EdgeOnnxError


def refusal(action: Callable[[], object]) -> EdgeOnnxError | None:
    """Our error that `action` ends in, or None if it succeeds; any other exception passes through."""
    try:
        action()
    except EdgeOnnxError as error:
        return error
    return None
