"""The special tokens of a tokenizer, and where a text spells them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def special_tokens(document: Mapping[str, Any]) -> dict[str, int]:
    """Ids of a tokenizer's special tokens by their texts."""
    return {str(token["content"]): int(token["id"]) for token in document.get("added_tokens") or () if token["special"]}


def pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """What finds any of some texts in another one: the first, and of those that begin there the longest."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")
