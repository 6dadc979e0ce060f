"""Added tokens in plain Python: the twin of `_added.pxd`, to be read beside tokenizer/added_vocabulary.rs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx_ext._word_chars import WHITESPACE, is_word

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from edgeonnx_ext.sections import AddedToken


@dataclass(frozen=True, kw_only=True)
class Match:
    """A place of an added token.

    Attributes:
        start: First character, in code points; whitespace that the token strips is part of it.
        end: One past the last character.
        token_id: Its id.
    """

    start: int
    end: int
    token_id: int


def next_added(tokens: Iterable[AddedToken], text: str, start: int, end: int) -> Match | None:
    """Return the next of `tokens` in `text[start:end]`: leftmost, then longest.

    Args:
        tokens: One set (the tokens that are not normalized, or those that are).
        text: The whole text.
        start: Start of the section that is searched, or end of the match before.
        end: End of the section.
    """
    limit = start
    while True:
        hits = [(text.find(token.content, start, end), -len(token.content), token) for token in tokens]
        first, negative_length, token = min(
            (hit for hit in hits if hit[0] >= 0), key=lambda hit: hit[:2], default=(-1, 0, None)
        )
        if token is None:
            return None
        last = start = first - negative_length
        before, after = text[:first][-1:], text[last:end][:1]
        # The search goes on behind a discarded match: it may hide a shorter token, or one that overlaps it.
        if token.single_word and any(char and is_word(char) for char in (before, after)):
            continue
        while token.lstrip and first > limit and text[first - 1] in WHITESPACE:
            first -= 1
        while token.rstrip and last < end and text[last] in WHITESPACE:
            last += 1
        return Match(start=first, end=last, token_id=token.token_id)


def sections(
    tokens: Iterable[AddedToken], text: str, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, int | None]]:
    """Yield what `text[start:end]` consists of, in order: (start, end, id) of a token, (start, end, None) between.

    Sections without characters are left out.
    """
    tokens = tuple(tokens)
    stop = len(text) if end is None else end
    while start < stop and (match := next_added(tokens, text, start, stop)) is not None:
        if start < match.start:
            yield start, match.start, None
        yield match.start, match.end, match.token_id
        start = match.end
    if start < stop:
        yield start, stop, None
