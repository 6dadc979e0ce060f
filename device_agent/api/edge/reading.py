"""Whether a client still reads its answer.

A stream may be silent for as long as it likes, and a client may read as slowly as it likes, if it reads. What waits
for it may grow although it does: a model may write faster. So what its kernel has acknowledged counts too, where this
machine's kernel tells.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

TCP_INFO_BYTES = 128


class Reading:
    """What a connection's client takes of what waits for it. Pure: told the time and the numbers at each look.

    Args:
        seconds: How long it may take nothing.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None  # when something waited that it has taken nothing of since
        self._waiting = self._acknowledged = 0

    def stuck(self, now: float, waiting: int, acknowledged: int) -> bool:
        """Whether it took nothing for too long.

        Args:
            now: The time, in seconds.
            waiting: Bytes that wait for it in this process.
            acknowledged: Bytes that its kernel has taken since the connection began; 0 where nobody tells.
        """
        took = waiting < self._waiting or acknowledged > self._acknowledged
        self._waiting, self._acknowledged = waiting, acknowledged
        if not waiting:
            self._since = None
        elif took or self._since is None:
            self._since = now
        return self._since is not None and now - self._since > self._seconds


def acknowledged_bytes(transport: asyncio.Transport) -> int:
    """Bytes of a connection that the other side's kernel has, as Linux counts them; 0 elsewhere."""
    found: socket.socket | None = transport.get_extra_info("socket")
    if found is None or not hasattr(socket, "TCP_INFO"):
        return 0
    try:
        info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    except OSError:  # the connection is ending, or is none of TCP
        return 0
    # tcpi_bytes_acked of struct tcp_info (linux/tcp.h), after 8 bytes, 24 words and 2 double words.
    return int.from_bytes(info[120:128], sys.byteorder) if len(info) >= TCP_INFO_BYTES else 0
