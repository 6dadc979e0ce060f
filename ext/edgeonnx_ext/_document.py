"""Strict reading of a JSON document: each problem is told with its place.

The parsers of `tokenizer.json` use it; it knows nothing of what the fields mean.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Object: TypeAlias = "dict[str, Json]"

# Ids travel as int32 in the kernels and as int64 in the buffers.
MAX_INDEX = 2**31 - 1


def parse(data: bytes) -> Object:
    """Return the JSON object in `data`.

    Raises:
        TokenizerDataError: Empty, not UTF-8, not JSON, nested too deeply, a duplicate key, or not an object.
    """
    if not data:
        raise TokenizerDataError("tokenizer.json: expected a JSON document, found 0 bytes. Copy the file again.")
    try:
        root: Json = json.loads(data.decode("utf-8"), object_pairs_hook=_unique_keys)
    except UnicodeDecodeError as error:
        raise TokenizerDataError(
            f"tokenizer.json: expected UTF-8, found byte {data[error.start]:#04x} at {error.start}"
        ) from error
    except json.JSONDecodeError as error:
        raise TokenizerDataError(f"tokenizer.json: expected JSON, found {error} in {len(data)} bytes") from error
    except RecursionError as error:
        raise TokenizerDataError(
            "tokenizer.json: expected a tokenizer, found JSON that is nested too deeply"
        ) from error
    if not isinstance(root, dict):
        raise TokenizerDataError(f"tokenizer.json: expected a JSON object, found {type(root).__name__}")
    return root


def _unique_keys(pairs: list[tuple[str, Json]]) -> Object:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = sorted(key for key, _ in pairs)
        twice = next(key for key, following in pairwise(keys) if key == following)
        raise TokenizerDataError(f"tokenizer.json: expected unique keys in each object, found {twice!r} twice")
    return result


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def get_object(parent: Object, key: str, path: str) -> Object:
    """Return the object at `key`; raise TokenizerDataError if it is none."""
    value = parent.get(key)
    if not isinstance(value, dict):
        raise TokenizerDataError(f"tokenizer.json: expected an object at {_join(path, key)}, found {_shown(value)}")
    return value


def get_text(parent: Object, key: str, path: str) -> str:
    """Return the text at `key`; raise TokenizerDataError if it is none or holds a lone surrogate."""
    value = parent.get(key)
    if not isinstance(value, str):
        raise TokenizerDataError(f"tokenizer.json: expected a text at {_join(path, key)}, found {_shown(value)}")
    refuse_surrogates(value, _join(path, key))
    return value


def get_flag(parent: Object, key: str, path: str) -> bool:
    """Return true or false at `key`; raise TokenizerDataError if it is neither."""
    value = parent.get(key)
    if not isinstance(value, bool):
        raise TokenizerDataError(f"tokenizer.json: expected true or false at {_join(path, key)}, found {_shown(value)}")
    return value


def get_index(parent: Object, key: str, path: str) -> int:
    """Return the integer in [0, 2**31) at `key`; raise TokenizerDataError if it is none."""
    return index_of(parent.get(key), _join(path, key))


def index_of(value: Json, path: str) -> int:
    """Return `value` if it is an integer in [0, 2**31); raise TokenizerDataError naming `path` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INDEX:
        raise TokenizerDataError(f"tokenizer.json: expected an integer in [0, 2**31) at {path}, found {_shown(value)}")
    return value


def refuse_surrogates(text: str, path: str) -> None:
    r"""Raise TokenizerDataError if `text` holds a lone surrogate (JSON can spell one: "\ud800")."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise TokenizerDataError(
            f"tokenizer.json: expected Unicode text at {path}, found a lone surrogate in {text!r}"
        ) from None


def refuse_unknown_keys(parent: Object, known: AbstractSet[str], path: str) -> None:
    """Raise UnknownTokenizerError for the first key that is not `known`: a later format may give it a meaning."""
    for key in parent:
        if key not in known:
            raise UnknownTokenizerError(f"field {key!r} at {path}")


def expect_type(section: Object, what: str, path: str, known: AbstractSet[str]) -> None:
    """Raise UnknownTokenizerError if `section`'s type is not `known`."""
    found = section.get("type")
    if not isinstance(found, str) or found not in known:
        raise UnknownTokenizerError(f"{what} type {found!r} at {path}")


def unwrap(root: Object, key: str, items_key: str, known: AbstractSet[str]) -> tuple[Object, str]:
    """Return the one `known` section at `key` and its path; a "Sequence" of exactly that one is the same thing.

    Raises:
        UnknownTokenizerError: It is null or missing, another type, or a sequence of several.
        TokenizerDataError: It is not an object.
    """
    if root.get(key) is None:
        raise UnknownTokenizerError(f"no {key}")
    section = get_object(root, key, "")
    if section.get("type") != "Sequence":
        expect_type(section, key, key, known)
        return section, key
    refuse_unknown_keys(section, {"type", items_key}, key)
    items = section.get(items_key)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise TokenizerDataError(
            f"tokenizer.json: expected a list of objects at {key}.{items_key}, found {_shown(items)}"
        )
    sections = [item for item in items if isinstance(item, dict)]
    for index, item in enumerate(sections):
        expect_type(item, key, f"{key}.{items_key}[{index}]", known)
    if len(sections) != 1:
        raise UnknownTokenizerError(f"{len(sections)} sections at {key}.{items_key}")
    return sections[0], f"{key}.{items_key}[0]"


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
