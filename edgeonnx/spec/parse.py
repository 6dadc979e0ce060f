"""Reading JSON documents strictly: every error names the file and the field, as in `contents.json: files[3].sha256`.

A `Node` is one value of a parsed document together with the path that leads to it. The manifest's `from_dict`
functions walk nodes, so they need no error handling of their own.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn, TypeVar

from edgeonnx.errors import ManifestError, SchemaVersionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T", str, int, float, bool, dict, list)  # type: ignore[type-arg]

_JSON_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "true or false", int: "an integer"}
_VERSION = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})")
MAX_INTEGER = (1 << 63) - 1
"""Largest integer field: what a file size, a token id or a dimension can be on any machine."""


def parse_document(data: bytes, file: str) -> Node:
    """Parse UTF-8 JSON into its root node.

    What two readers could understand differently is refused: duplicate keys, numbers that are not finite (NaN, 1e999),
    and escapes of half a surrogate pair, which are no text.

    Raises:
        ManifestError: The bytes are not such a document.
    """
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise ManifestError(
            "is not UTF-8", where=file, found=f"byte {data[error.start]:#04x} at {error.start}"
        ) from None
    except UnicodeEncodeError as error:
        raise ManifestError(
            "has a text that is not Unicode", where=file, found=f"half a surrogate pair {error.object[error.start]!a}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ManifestError("is not JSON", where=file, found=str(error) or "nesting too deep") from None
    return Node(value=value, file=file, path="")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"duplicate key {max(counts, key=lambda key: counts[key])[:80]!r}")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond the range of a double")
    return value


@dataclass(frozen=True, kw_only=True)
class Node:
    """One value of a document, with the file and the path that lead to it."""

    value: object
    file: str
    path: str
    newer: bool = False
    """Whether the document says that it follows a newer minor version, whose further fields are then ignored."""

    @property
    def where(self) -> str:
        """`file: path`, or the file alone at the root."""
        return f"{self.file}: {self.path}" if self.path else self.file

    def fail(self, message: str, *, expected: str | None = None, hint: str | None = None) -> NoReturn:
        """Raise `ManifestError` about this value."""
        raise ManifestError(message, where=self.where, expected=expected, found=_show(self.value), hint=hint)

    def typed(self, kind: type[T]) -> T:
        """The value, which must be of JSON type `kind`; a bool is no integer, an integer is a float."""
        value = self.value
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            if abs(value) > MAX_INTEGER:
                self.fail("is too large", expected=f"at most {MAX_INTEGER}")
            return float(value)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            self.fail("has the wrong type", expected=_JSON_NAMES.get(kind, "a number"))
        return value

    def child(self, key: str) -> Node | None:
        """The member `key` of this object, or None if it is absent."""
        members = self.typed(dict)
        if key not in members:
            return None
        path = f"{self.path}.{key}" if self.path else key
        return Node(value=members[key], file=self.file, path=path, newer=self.newer)

    def required(self, key: str) -> Node:
        """The member `key` of this object; raises `ManifestError` if it is absent."""
        found = self.child(key)
        if found is None:
            raise ManifestError(f"lacks the required field {key!r}", where=self.where)
        return found

    def text(self, key: str) -> str:
        """The required string member `key`."""
        return self.required(key).typed(str)

    def optional_text(self, key: str) -> str | None:
        """The string member `key`, or None if it is absent or null."""
        found = self.child(key)
        return None if found is None or found.value is None else found.typed(str)

    def integer(self, key: str, *, minimum: int = 0, maximum: int = MAX_INTEGER) -> int:
        """The required integer member `key`, from `minimum` to `maximum`."""
        found = self.required(key)
        number = found.typed(int)
        if not minimum <= number <= maximum:
            found.fail("is out of range", expected=f"{minimum} to {maximum}")
        return number

    def flag(self, key: str, *, default: bool) -> bool:
        """The boolean member `key`, or `default` if it is absent."""
        found = self.child(key)
        return default if found is None else found.typed(bool)

    def items(self) -> Iterator[Node]:
        """The elements of this array."""
        for index, value in enumerate(self.typed(list)):
            yield Node(value=value, file=self.file, path=f"{self.path}[{index}]", newer=self.newer)

    def members(self) -> Iterator[tuple[str, Node]]:
        """The members of this object, in the document's order."""
        for key in self.typed(dict):
            child = self.child(key)
            if child is not None:
                yield key, child

    def only(self, known: Iterable[str], *, always: bool = False) -> None:
        """Refuse members that are not in `known`: a misspelt field must not be silently ignored.

        A document of a newer minor version may have more fields, unless `always` is set.
        """
        allowed = set(known)
        for key, child in self.members():
            if key not in allowed and (always or not self.newer):
                child.fail("is not a known field", expected=f"one of {', '.join(sorted(allowed))}")

    def version(self, key: str, *, known: str) -> Node:
        """Check the required `<major>.<minor>` member `key` against the version that this release knows.

        Returns:
            This node; if its minor version is newer than `known`, one on which unknown fields are ignored.

        Raises:
            SchemaVersionError: The document was written for another major version.
        """
        found = self.required(key)
        match = _VERSION.fullmatch(found.typed(str))
        if match is None:
            found.fail("is not a version", expected='"<major>.<minor>"')
        major, minor = (int(part) for part in known.split("."))
        if int(match.group(1)) != major:
            raise SchemaVersionError(
                "was written for another version of the format",
                where=found.where,
                expected=f"{major}.x",
                found=match.group(),
                hint="use a release of edgeonnx that reads this version, or build the bundle again",
            )
        return self.relaxed(newer=int(match.group(2)) > minor)

    def relaxed(self, *, newer: bool) -> Node:
        """This node as part of a document that is newer, if `newer` is set."""
        return replace(self, newer=self.newer or newer)


def _show(value: object, limit: int = 80) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
