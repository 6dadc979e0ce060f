"""The binary tensor data extension: a JSON header, then the tensors' bytes one after the other.

`Inference-Header-Content-Length` gives the header's length in bytes. Which tensors follow, in which order and how long
each is, says the header: those with the parameter `binary_data_size`. Sizes must add up to the last byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_agent.api.context import Rendered
from edgeonnx.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.datastructures import Headers

HEADER_LENGTH = "Inference-Header-Content-Length"
MEDIA_TYPE = "application/octet-stream"


class BinaryParts:
    """The tensors' bytes behind the header of one request, taken from front to back.

    Args:
        data: The bytes; empty for a request that is JSON alone.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int, where: str) -> memoryview:
        """The next `size` bytes, without a copy.

        Raises:
            InvalidRequestError: There are fewer.
        """
        left = len(self._data) - self._at
        if not 0 <= size <= left:
            raise InvalidRequestError(
                "does not fit into the body",
                where=where,
                expected=f"0 to {left:,} bytes, which are left",
                found=str(size)[:40],
                hint=None if self._data else f"does the request have the header {HEADER_LENGTH}?",
            )
        self._at += size
        return self._data[self._at - size : self._at]

    def finish(self) -> None:
        """Check that every byte belonged to a tensor.

        Raises:
            InvalidRequestError: Some did not.
        """
        left = len(self._data) - self._at
        if left:
            raise InvalidRequestError(
                "goes on after the last tensor",
                where="body",
                expected=f"{self._at:,} bytes of binary data, the sum of all binary_data_size",
                found=f"{len(self._data):,}",
            )


def split_body(data: bytes, headers: Headers) -> tuple[bytes, BinaryParts]:
    """The JSON header of a request, and the binary data behind it.

    Args:
        data: The whole body, decompressed.
        headers: The HTTP headers.

    Raises:
        InvalidRequestError: The announced length is no number, or larger than the body.
    """
    announced = headers.getlist(HEADER_LENGTH)
    if not announced:
        return data, BinaryParts(memoryview(b""))
    text = announced[0].strip()
    # 18 digits hold any size, and int() takes no quadratic time over them.
    length = int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else -1
    if len(announced) > 1 or not 0 <= length <= len(data):
        raise InvalidRequestError(
            "is no length of the JSON part of this body",
            where=HEADER_LENGTH,
            expected=f"one number from 0 to {len(data):,}, the length of the body",
            found=", ".join(announced)[:80],
        )
    return data[:length], BinaryParts(memoryview(data)[length:])


def frame(header: bytes, buffers: Sequence[bytes | memoryview]) -> Rendered:
    """A response of a JSON header and the binary data of its tensors."""
    return Rendered(data=b"".join((header, *buffers)), media_type=MEDIA_TYPE, headers={HEADER_LENGTH: str(len(header))})
