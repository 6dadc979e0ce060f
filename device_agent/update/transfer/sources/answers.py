"""What the head of an answer says about the bytes that follow. Pure.

The rules are those of RFC 9110: ranges in section 14, validators in section 8.8, conditional ranges in section 13.1.5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_agent.update.transfer.sources import RangeError
from device_agent.update.transfer.sources.failures import parsed_date
from edgeonnx.errors import FetchError, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_VALIDATOR_CHARACTERS = 256

_ETAG = re.compile(r'"[\x21\x23-\x7e]*"')
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_UNSATISFIED = re.compile(r"bytes \*/(\d{1,18})")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The head of an answer.

    Attributes:
        offset: Where the bytes of the body belong in the file.
        total: Size of the file, or None.
        validator: What a later range can be asked with, or None.
        has_body: Whether the body is part of the file; False: the file ends at `offset`.
    """

    offset: int
    total: int | None
    validator: str | None
    has_body: bool = True


def range_headers(offset: int, validator: str | None) -> dict[str, str]:
    """Headers that ask for the rest of a file; without a validator, for the rest of whatever lies there."""
    if offset == 0:
        return {}
    headers = {"Range": f"bytes={offset}-"}
    if validator is not None:
        headers["If-Range"] = validator
    return headers


def read_answer(status: int, headers: Mapping[str, str], *, asked: int, validator: str | None, url: str) -> Answer:
    """What an answer with the file, or with a part of it, means.

    Args:
        status: 200, 206 or 416.
        headers: Of the answer; names in any case.
        asked: The offset that was asked for.
        validator: The validator that was sent with it, or None.
        url: For messages.

    Raises:
        RangeError: It is another part than the one that was asked for, or a part of another state of the file.
        FetchError: It is compressed, or a part although the whole was asked for.
    """
    coding = headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise FetchError(
            "the server changes the file on its way",
            where=url,
            expected="the bytes as they lie there (Accept-Encoding: identity)",
            found=f"Content-Encoding: {printable(coding[:40])}",
            hint="turn compression off for the repository; its blobs are compressed already",
        )
    if status == 200:
        return Answer(offset=0, total=_length(headers), validator=validator_of(headers))
    if asked == 0:
        raise FetchError(
            "the server gives a part although the whole was asked for", where=url, found=f"status {status}"
        )
    if status == 416:
        match = _UNSATISFIED.fullmatch(headers.get("Content-Range", ""))
        if match is None or int(match[1]) != asked:
            raise RangeError("ends before the place to go on at", where=url, found="status 416")
        return Answer(offset=asked, total=asked, validator=validator, has_body=False)
    return _part(headers, asked=asked, validator=validator, url=url)


def _part(headers: Mapping[str, str], *, asked: int, validator: str | None, url: str) -> Answer:
    text = headers.get("Content-Range", "")
    match = _RANGE.fullmatch(text)
    if match is None:
        raise RangeError("the server gives a part and does not say which", where=url, found=repr(text[:60]))
    first, last = int(match[1]), int(match[2])
    total = last + 1 if match[3] == "*" else int(match[3])
    length = _length(headers)
    if first != asked or last + 1 != total or (length is not None and length != total - first):
        raise RangeError(
            "the server gives another part than the one that was asked for",
            where=url,
            expected=f"bytes {asked}- to the end",
            found=f"Content-Range: {text}" + ("" if length is None else f", Content-Length: {length}"),
        )
    found = validator_of(headers)
    comparable = validator is not None and found is not None and found.startswith('"') == validator.startswith('"')
    if comparable and found != validator:
        raise RangeError("the file changed, and the server goes on in the new one", where=url)
    return Answer(offset=first, total=total, validator=found or validator)


def _length(headers: Mapping[str, str]) -> int | None:
    """`Content-Length`, unless the body says itself where it ends."""
    if headers.get("Transfer-Encoding"):
        return None
    text = headers.get("Content-Length", "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def validator_of(headers: Mapping[str, str]) -> str | None:
    """What identifies the file's bytes: a strong entity tag, or a date of change that is one.

    A date is a strong validator only if the file could not have changed again within the same second, that is if the
    server's own `Date` is later (RFC 9110, 8.8.2.2).
    """
    tag = headers.get("ETag", "").strip()
    if len(tag) <= MAX_VALIDATOR_CHARACTERS and _ETAG.fullmatch(tag):
        return tag
    changed = headers.get("Last-Modified", "").strip()
    at, now = parsed_date(changed), parsed_date(headers.get("Date"))
    if len(changed) > MAX_VALIDATOR_CHARACTERS or not changed.isprintable():
        return None
    return changed if at is not None and now is not None and now >= at + 1 else None
