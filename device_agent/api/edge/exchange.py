"""What the application may know of the connection that its request came on, beyond ASGI's messages.

`device_agent.api.edge.protocol` puts an `Exchange` into the scope's extensions. Another server does not, and then
`exchange` gives None: the application falls back to `receive()`, which says the same, only later and for more work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from typing import Any

EXTENSION = "edgeonnx"
"""Key in the scope's `extensions`."""


class Exchange:
    """One request and its answer, as its connection sees them. To be used in the event loop's thread only.

    Attributes:
        body_arrived: The whole body is there, so reading it waits for nothing.
        gone: The client left before its answer was complete.
    """

    __slots__ = ("_callbacks", "body_arrived", "gone")

    def __init__(self) -> None:
        self.body_arrived = False
        self.gone = False
        self._callbacks: list[Callable[[], object]] | None = None

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, as soon as the client leaves; at once if it already did.

        It is never called after the answer was complete.
        """
        if self.gone:
            callback()
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def leave(self) -> None:
        """The client left: the connection's side of `on_disconnect`."""
        self.gone = True
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback()


def exchange(scope: MutableMapping[str, Any]) -> Exchange | None:
    """The exchange of a request, where the server gives one."""
    extensions = scope.get("extensions")
    found = extensions.get(EXTENSION) if extensions else None
    return found if isinstance(found, Exchange) else None
