"""The plain twin of `_nfc.pyx`: Unicode normalization form C, with the facts and the alignments of `tokenizers`.

UAX #15 in its three steps, over whole strings: decompose each character, sort each run of nonstarters by combining
class, compose. Each character on the way carries how far the number of characters has changed at it, as the library
counts (crate unicode-normalization-alignments): 0 for a character that stands for one of the text, 1 for each further
one of a decomposition; a composite takes the sum, less 1 for each composition.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from edgeonnx_ext import _nfc_unicode, _unicode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    # A character, and the change of their number at it.
    Change: TypeAlias = tuple[str, int]


@lru_cache(maxsize=8192)
def _facts(char: str) -> _unicode.CharFacts:
    return _unicode.load_table().facts(ord(char))


@lru_cache(maxsize=1)
def _pairs() -> dict[tuple[str, str], str]:
    return _nfc_unicode.load_table().pairs()


@lru_cache(maxsize=1)
def _unstable() -> NDArray[np.bool_]:
    return _nfc_unicode.unstable(_nfc_unicode.load_table())


def is_stable(text: str) -> bool:
    """Return whether a quick look tells that NFC leaves `text` as it is (UAX #15, section 9).

    False means that it may or may not.

    Raises:
        TypeError: `text` is not a str.
    """
    _expect_text(text)
    before = 0
    for char in text:
        combining = _facts(char).combining
        if _unstable()[ord(char)] or before > combining > 0:
            return False
        before = combining
    return True


def nfc(text: str) -> str:
    """Return NFC of `text`; lone surrogates stay.

    Raises:
        TypeError: `text` is not a str.
    """
    return "".join(char for char, _ in _changes(text))


def nfc_aligned(text: str) -> tuple[str, NDArray[np.int32]]:
    """Return NFC of `text`, and which character of `text` each of its characters is aligned with.

    A composite is aligned with the first of the characters that it replaces, and each further character of a
    decomposition with the last one before it: so the library does (tokenizers/src/tokenizer/normalizer.rs).

    Returns:
        The text, and int32 (its length,): indices of `text`.

    Raises:
        TypeError: `text` is not a str.
    """
    chars: list[str] = []
    positions: list[int] = []
    consumed = 0
    for char, change in _changes(text):
        chars.append(char)
        positions.append(consumed - 1 if change > 0 else consumed)
        consumed += 1 - change
    return "".join(chars), np.array(positions, dtype=np.int32)


def _expect_text(text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"text: expected a str, found {type(text).__name__}")


def _changes(text: str) -> Iterator[Change]:
    _expect_text(text)
    pairs = _pairs()
    return compose(decompose(text), lambda first, second: compose_hangul(first, second) or pairs.get((first, second)))


def decompose(text: str) -> Iterator[Change]:
    """Yield the canonical decomposition of `text`, in canonical order."""
    run: list[Change] = []
    for char in text:
        for index, part in enumerate(_facts(char).nfd):
            if not _facts(part).combining:
                yield from _sorted(run)
                run.clear()
                yield part, int(index > 0)
            else:
                run.append((part, int(index > 0)))
    yield from _sorted(run)


def _sorted(run: Iterable[Change]) -> list[Change]:
    return sorted(run, key=lambda change: _facts(change[0]).combining)


def compose(changes: Iterable[Change], composite: Callable[[str, str], str | None]) -> Iterator[Change]:
    """Compose a text in canonical order: each character with the last starter, unless one between them blocks it."""
    starter: Change | None = None
    marks: list[Change] = []  # what stands between the starter and this character
    for char, change in changes:
        combining = _facts(char).combining
        blocked = bool(marks) and _facts(marks[-1][0]).combining >= combining
        composed = composite(starter[0], char) if starter and not blocked else None
        if composed and starter:
            starter = (composed, starter[1] + change - 1)
        elif combining:
            marks.append((char, change))
        else:
            yield from [starter, *marks] if starter else marks
            starter, marks = (char, change), []
    yield from [starter, *marks] if starter else marks


def compose_hangul(first: str, second: str) -> str | None:
    """Return the Hangul syllable of two jamo, or of a syllable and a trailing jamo (The Unicode Standard, 3.12)."""
    leading, vowel = ord(first) - 0x1100, ord(second) - 0x1161
    if 0 <= leading < 19 and 0 <= vowel < 21:
        return chr(0xAC00 + (leading * 21 + vowel) * 28)
    syllable, trailing = ord(first) - 0xAC00, ord(second) - 0x11A7
    if 0 <= syllable < 11172 and syllable % 28 == 0 and 0 < trailing < 28:
        return chr(ord(first) + trailing)
    return None
