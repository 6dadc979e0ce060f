"""The plain Python twin of byte-level BPE: same name, same arguments, same errors as `_bpe.pyx`.

Written to be read beside the Hugging Face sources that it agrees with (pre_tokenizers/byte_level.rs and digits.rs,
models/bpe/model.rs and word.rs, tokenizer/normalizer.rs for the offsets): strings and lists, one step after the other.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from edgeonnx_ext import _regex_unicode
from edgeonnx_ext._regex_unicode import LETTER, NUMBER, NUMERIC, SPACE
from edgeonnx_ext._word_chars import WHITESPACE
from edgeonnx_ext.bpe import byte_characters
from edgeonnx_ext.reference import rows
from edgeonnx_ext.reference.added import sections
from edgeonnx_ext.reference.nfc import nfc_aligned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgeonnx_ext.bpe import BpeModel

OTHER = 0  # neither a letter, nor a number, nor whitespace
NO_CLASS = -1  # of what stands behind the end
# The character that stands for a space in tokens; trimming takes it for one in added tokens, too.
SPACE_CHARACTER = "\u0120"


@lru_cache(maxsize=8192)
def _flags(char: str) -> int:
    return _regex_unicode.load_table().flags(ord(char))


def _class(text: str, at: int) -> int:
    """Return LETTER, NUMBER, SPACE or OTHER for the character at `at`, NO_CLASS behind the end."""
    return _flags(text[at]) & (LETTER | NUMBER | SPACE) if at < len(text) else NO_CLASS


def _run(text: str, at: int, wanted: int, most: int | None = None) -> int:
    """Return the end of the characters from `at` on, at most `most`, that are of the class `wanted`."""
    end = len(text) if most is None else min(len(text), at + most)
    while at < end and _class(text, at) == wanted:
        at += 1
    return at


def _spaces(text: str, at: int) -> int:
    r"""Match `\s+(?!\S)|\s+`: all of a run at the end of the text, else all but its last character."""
    end = _run(text, at, SPACE)
    return end if end == len(text) or end == at + 1 else end - 1


def _gpt2(text: str, at: int) -> int:
    r"""Match `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`."""
    for contraction in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
        if text.startswith(contraction, at):
            return at + len(contraction)
    first = at + 1 if text[at] == " " else at
    if _class(text, first) in {LETTER, NUMBER, OTHER}:
        return _run(text, first, _class(text, first))
    return _spaces(text, at)


def _line_breaks(text: str, at: int) -> int:
    while text[at : at + 1] in {"\r", "\n"}:
        at += 1
    return at


def _llama3(text: str, at: int, most_numbers: int) -> int:
    r"""Match the pattern of Llama 3 (`most_numbers` 3) or Qwen 2 (1), an alternative a paragraph.

    (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
    """
    # The long s (U+017F) is an s in another case.
    folded = text[at : at + 3].replace("\u017f", "s")
    folded = "".join(char.lower() if char.isascii() else char for char in folded)
    for contraction in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
        if folded.startswith(contraction):
            return at + len(contraction)

    may_lead = _class(text, at) in {SPACE, OTHER} and text[at] not in "\r\n"
    first = at + 1 if may_lead and _class(text, at + 1) == LETTER else at
    if _class(text, first) == LETTER:
        return _run(text, first, LETTER)

    if _class(text, at) == NUMBER:
        return _run(text, at, NUMBER, most_numbers)

    first = at + 1 if text[at] == " " else at
    if _class(text, first) == OTHER:
        return _line_breaks(text, _run(text, first, OTHER))

    run = text[at : _run(text, at, SPACE)]
    last_break = max(run.rfind("\r"), run.rfind("\n"))
    return at + last_break + 1 if last_break >= 0 else _spaces(text, at)


def _piece_end(model: BpeModel, text: str, at: int) -> int:
    if model.pattern == "gpt2":
        return _gpt2(text, at)
    if model.pattern == "whole":
        return len(text)
    return _llama3(text, at, 3 if model.pattern == "llama3" else 1)


def _without_digits(model: BpeModel, text: str) -> Iterator[str]:
    """Yield what Digits makes of `text`: digits, each alone or in runs, and what stands between."""
    start = 0
    for at in range(1, len(text) + 1):
        inside = at < len(text) and bool(_flags(text[at]) & NUMERIC) == bool(_flags(text[at - 1]) & NUMERIC)
        if not inside or (model.digits == "single" and _flags(text[at]) & NUMERIC):
            yield text[start:at]
            start = at


def pieces(model: BpeModel, section: str) -> Iterator[str]:
    """Yield the pieces of a section, which has its prefix space already."""
    for part in (section,) if model.digits is None else _without_digits(model, section):
        start = 0
        while start < len(part):
            end = _piece_end(model, part, start)
            yield part[start:end]
            start = end


@dataclass(slots=True)
class Symbol:
    """A part of a piece.

    Attributes:
        id: Its token.
        data: The bytes that it covers, but for those that vanished.
        previous: Index of the one before, -1 for none.
        next: Index of the one behind, -1 for none.
    """

    id: int
    data: bytes
    previous: int
    next: int


def merge(model: BpeModel, data: bytes) -> list[Symbol]:
    """Return the symbols of a piece: of all pairs the one of lowest rank merges first, of equal ones the leftmost.

    A byte without a token vanishes beforehand, so that its neighbours may merge.
    """
    known = [(model.vocab[byte_characters()[byte]], byte) for byte in data if byte_characters()[byte] in model.vocab]
    symbols = [Symbol(token_id, bytes([byte]), at - 1, at + 1) for at, (token_id, byte) in enumerate(known)]
    if symbols:
        symbols[-1].next = -1
    heap: list[tuple[int, int]] = []

    def rank(at: int) -> int | None:
        left = symbols[at]
        merged = model.merges.get((left.id, symbols[left.next].id)) if left.data and left.next >= 0 else None
        return merged[0] if merged else None

    def note(at: int) -> None:
        found = rank(at)
        if found is not None:
            heapq.heappush(heap, (found, at))

    for at in range(len(symbols)):
        note(at)
    while heap:
        lowest, at = heapq.heappop(heap)
        if rank(at) != lowest:  # one of the two merged with another meanwhile
            continue
        left = symbols[at]
        right = symbols[left.next]
        left.id, left.data, left.next = model.merges[left.id, right.id][1], left.data + right.data, right.next
        right.data = b""
        if left.next >= 0:
            symbols[left.next].previous = at
        note(at)
        if left.previous >= 0:
            note(left.previous)
    return [symbol for symbol in symbols if symbol.data]


@dataclass(frozen=True, kw_only=True)
class Section:
    """An added token, or what stands between two of them.

    Attributes:
        text: Its characters, normalized unless it is an added token of the plain set.
        origins: The character of the whole text that each one stands for.
        added: The added token's id, or None.
    """

    text: str
    origins: list[int]
    added: int | None


class BpeTokenizer(rows.Tokenizer):
    """A byte-level BPE tokenizer: text to ids, exactly as Hugging Face `tokenizers` gives them.

    Args:
        model: The tokenizer's description.
    """

    def __init__(self, model: BpeModel) -> None:
        super().__init__(model.single, model.pair)
        self._model = model
        self._plain = tuple(token for token in model.added_tokens if not token.normalized)
        self._normalized = tuple(token for token in model.added_tokens if token.normalized)

    def _tokenize(self, text: str, enough: int | None) -> tuple[list[int], list[tuple[int, int]]]:
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for section in self._sections(text):
            if enough is not None and len(ids) >= enough:
                break
            for token_id, token, span in self._tokens(section):
                spans.append(self._trimmed(token, span, first=not ids))
                ids.append(token_id)
                if enough is not None and len(ids) >= enough:
                    break
        return ids, spans

    def _sections(self, text: str) -> Iterator[Section]:
        """Yield added tokens, and what stands between them: the normalized ones are looked for last, in NFC."""
        for start, end, added in sections(self._plain, text):
            between, origins = text[start:end], list(range(start, end))
            if added is not None:
                yield Section(text=between, origins=origins, added=added)
                continue
            if self._model.nfc:
                between, positions = nfc_aligned(between)
                origins = [start + position for position in positions.tolist()]
            for first, last, normalized in sections(self._normalized, between):
                yield Section(text=between[first:last], origins=origins[first:last], added=normalized)

    def _tokens(self, section: Section) -> Iterator[tuple[int, str, tuple[int, int]]]:
        """Yield id, spelling and span of each token of a section."""
        if section.added is not None:
            yield section.added, section.text, (section.origins[0], section.origins[-1] + 1)
            return
        text, origins = section.text, section.origins
        if self._model.add_prefix_space and not text.startswith(" "):
            # The prefix space counts as part of the character behind it.
            text, origins = f" {text}", [origins[0], *origins]
        at = 0
        for piece in pieces(self._model, text):
            chars = [origins[at + index] for index, char in enumerate(piece) for _ in char.encode()]
            yield from self._piece_tokens(piece.encode(), chars)
            at += len(piece)

    def _piece_tokens(self, data: bytes, chars: list[int]) -> Iterator[tuple[int, str, tuple[int, int]]]:
        """Yield the tokens of a piece; `chars` holds the text's character of each of its bytes.

        The library counts the place of a token in bytes of UTF-8 of its spelling, and leaves out bytes that vanished,
        so that what stands behind them seems to stand earlier.
        """
        letters = byte_characters()
        spelling = "".join(letters[byte] for byte in data)
        places = [char for letter, char in zip(spelling, chars, strict=True) for _ in letter.encode()]
        if self._model.ignore_merges and spelling in self._model.vocab:
            yield self._model.vocab[spelling], spelling, (chars[0], chars[-1] + 1)
            return
        start = 0
        for symbol in merge(self._model, data):
            token = "".join(letters[byte] for byte in symbol.data)
            end = start + len(token.encode())
            yield symbol.id, token, (places[start], places[end - 1] + 1)
            start = end

    def _trimmed(self, token: str, span: tuple[int, int], *, first: bool) -> tuple[int, int]:
        """Return the span without the token's spaces, as process_offsets in byte_level.rs trims it.

        There the first token of a window keeps a space that may be the prefix space; `rows` knows the windows, so a
        number which that changes becomes its complement.
        """
        if not self._model.trim.spaces:
            return span
        blank = "".join(WHITESPACE) + SPACE_CHARACTER
        before, behind = len(token) - len(token.lstrip(blank)), len(token) - len(token.rstrip(blank))
        may_keep = before == 1 and self._model.trim.keeps_prefix
        kept = _without_spaces(span, 0 if may_keep else before, behind)
        if first or span[0] == 0:
            return kept
        start, end = _without_spaces(span, before, behind)
        return start if start == kept[0] else ~start, end if end == kept[1] else ~end


def _without_spaces(span: tuple[int, int], before: int, behind: int) -> tuple[int, int]:
    start, end = span
    start = min(start + before, end)
    if behind and end >= behind:
        end = max(end - behind, start)
    return start, end
