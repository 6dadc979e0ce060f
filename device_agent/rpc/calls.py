"""One call of gRPC: what is used of it, and how it fails."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from device_agent.api.edge.errors import INTERNAL, INTERNAL_MESSAGE, error_headers, kind_of
from edgeonnx.errors import EdgeOnnxError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("edgeonnx.agent")

RETRY_AFTER = "retry-after"
"""Key of the trailing metadata."""


class Call(Protocol):
    """What is used of `grpc.aio.ServicerContext`."""

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None:
        """The call's headers."""
        ...

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline; None: it has none."""
        ...

    async def abort(self, code: object, details: str, trailing_metadata: Sequence[tuple[str, str]] = ()) -> None:
        """End the call with a status; always raises."""
        ...


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How a call ends that has no result.

    Attributes:
        code: Name of the gRPC status.
        message: What the client reads.
        trailing: Trailing metadata.
    """

    code: str
    message: str
    trailing: tuple[tuple[str, str], ...] = ()


def failure_of(error: Exception, name: str) -> Failure:
    """The status of an exception; only the text of our own errors is shown, and faults of the agent are logged.

    Args:
        error: What was raised.
        name: Name of the call, for the log.
    """
    kind = kind_of(error)
    if kind is INTERNAL:
        logger.error("gRPC %s failed", name, exc_info=error)
    elif kind.fault:
        logger.error("gRPC %s: %s", name, error)
    shown = isinstance(error, EdgeOnnxError) and kind is not INTERNAL
    retry_after = error_headers(error, kind).get("Retry-After")
    return Failure(
        code=kind.grpc_code,
        message=printable(error) if shown else INTERNAL_MESSAGE,
        trailing=() if retry_after is None else ((RETRY_AFTER, retry_after),),
    )
