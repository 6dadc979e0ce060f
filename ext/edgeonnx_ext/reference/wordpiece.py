"""WordPiece in plain Python: the twin of `_wordpiece.pyx`.

Written to be read beside the Hugging Face sources that it agrees with (tokenizers/src/normalizers/bert.rs,
tokenizer/normalizer.rs, pre_tokenizers/bert.rs, models/wordpiece/mod.rs): one step after the other over all characters,
where the compiled kernel streams. It serves where there is no compiler, and is an oracle of the tests.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from edgeonnx_ext import _unicode
from edgeonnx_ext._word_chars import WHITESPACE
from edgeonnx_ext.reference import rows
from edgeonnx_ext.reference.added import sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from edgeonnx_ext.wordpiece import WordPieceModel

# A character, and the position in the text that the library says it comes from.
Placed = tuple[str, int]


@lru_cache(maxsize=8192)
def _facts(char: str) -> _unicode.CharFacts:
    return _unicode.load_table().facts(ord(char))


def _flags(char: str) -> int:
    return _facts(char).flags


def _combining(part: tuple[str, bool]) -> int:
    return _facts(part[0]).combining


def decompose(chars: Iterable[Placed]) -> list[Placed]:
    """Return NFD: decompose, then sort each run of nonstarters by class, stably (UAX #15).

    The library hands out positions after sorting: the first characters of decompositions take those of the originals in
    order, whichever came from where; a further character shares the position of the one before (transform_range).
    """
    chars = list(chars)
    ordered: list[tuple[str, bool]] = []
    run: list[tuple[str, bool]] = []
    for part in ((part, index == 0) for char, _ in chars for index, part in enumerate(_facts(char).nfd)):
        if _combining(part):
            run.append(part)
            continue
        ordered += [*sorted(run, key=_combining), part]
        run.clear()
    positions = iter([position for _, position in chars])
    placed: list[Placed] = []
    for char, first in ordered + sorted(run, key=_combining):
        placed.append((char, next(positions) if first else placed[-1][1]))
    return placed


def normalize(model: WordPieceModel, chars: Iterable[Placed]) -> list[Placed]:
    """Return what the BertNormalizer of `model` makes of `chars`."""
    chars = list(chars)
    if model.clean_text:
        kept = ((char, place) for char, place in chars if not _flags(char) & _unicode.CLEAN_DROP)
        chars = [(" " if _flags(char) & _unicode.CLEAN_SPACE else char, place) for char, place in kept]
    if model.handle_chinese_chars:
        spaced = ((f" {char} " if _flags(char) & _unicode.CJK else char, place) for char, place in chars)
        chars = [(part, place) for parts, place in spaced for part in parts]
    if model.strip_accents:
        chars = [(char, place) for char, place in decompose(chars) if not _flags(char) & _unicode.NONSPACING]
    if model.lowercase:
        chars = [(part, place) for char, place in chars for part in _facts(char).lower]
    return chars


def words(chars: Iterable[Placed]) -> Iterator[list[Placed]]:
    """Yield the words of normalized `chars`: cut at whitespace, each punctuation mark a word of its own."""
    word: list[Placed] = []
    for placed in chars:
        flags = _flags(placed[0])
        if not flags & (_unicode.SPLIT | _unicode.PUNCTUATION):
            word.append(placed)
            continue
        if word:
            yield word
            word = []
        if flags & _unicode.PUNCTUATION:
            yield [placed]
    if word:
        yield word


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Return start and end of an added token without the whitespace that it took along."""
    while text[start] in WHITESPACE:
        start += 1
    while text[end - 1] in WHITESPACE:
        end -= 1
    return start, end


class WordPieceTokenizer(rows.Tokenizer):
    """BERT's tokenizer: text to ids, exactly as Hugging Face `tokenizers` gives them.

    Args:
        model: The tokenizer's description.
    """

    def __init__(self, model: WordPieceModel) -> None:
        super().__init__(model.single, model.pair)
        self._model = model
        self._longest_token = max(map(len, model.vocab))

    def _tokenize(self, text: str, enough: int | None) -> tuple[list[int], list[tuple[int, int]]]:
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for start, end, added in sections(self._model.added_tokens, text):
            if added is not None:
                ids.append(added)
                spans.append(_trimmed(text, start, end) if self._model.trims_spans else (start, end))
                continue
            for word in words(normalize(self._model, zip(text[start:end], range(start, end), strict=True))):
                for token_id, first, stop in self._split("".join(char for char, _ in word)):
                    ids.append(token_id)
                    spans.append((word[first][1], word[stop - 1][1] + 1))
                if enough is not None and len(ids) >= enough:
                    return ids, spans
        return ids, spans

    def _split(self, word: str) -> list[tuple[int, int, int]]:
        """Return the tokens of `word` as (id, start, end): from its start always the longest that fits.

        Of a word that is too long, or does not split, the unknown token for all of it.
        """
        model = self._model
        unknown = [(model.unk_id, 0, len(word))]
        if len(word) > model.max_word_chars:
            return unknown
        tokens: list[tuple[int, int, int]] = []
        start = 0
        while start < len(word):
            prefix = model.prefix if start else ""
            ends = range(min(len(word), start + self._longest_token), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in model.vocab), None)
            if end is None:
                return unknown
            tokens.append((model.vocab[prefix + word[start:end]], start, end))
            start = end
        return tokens
