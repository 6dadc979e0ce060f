"""Token classification: the scores of tokens to entities, as transformers' TokenClassificationPipeline aggregates them.

The pipeline decodes an entity's word from its token ids; here it is the piece of the text between start and end, which
keeps case, accents and spaces. All else (labels, scores, where an entity starts and ends) agrees. This is plain Python:
a text has a few entities, and NumPy does what is done for each token.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edgeonnx_ext import _checks

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray


class Aggregation(StrEnum):
    """How tokens become entities.

    NONE gives each token by itself. SIMPLE joins neighbours of one label; a `B-` starts a new entity. The others first
    give each word one label, so that no entity ends inside a word: that of the word's FIRST token, the label of the
    largest AVERAGE score, or that of the token with the MAX score.
    """

    NONE = "none"
    SIMPLE = "simple"
    FIRST = "first"
    AVERAGE = "average"
    MAX = "max"


@dataclass(frozen=True, kw_only=True)
class Entity:
    """A piece of a text with a label.

    Attributes:
        label: The label; without its `B-` or `I-` unless the aggregation is NONE.
        score: From 0 to 1; the mean of its tokens or words.
        start: Where it starts in the text, in characters.
        end: Where it ends.
        word: text[start:end].
        index: The token's place in its row; None unless the aggregation is NONE.
    """

    label: str
    score: float
    start: int
    end: int
    word: str
    index: int | None = None


class _Piece(NamedTuple):
    """A token, or a word, with its label."""

    label: str
    score: float
    start: int
    end: int
    place: int | None


def aggregate(
    scores: NDArray[np.float32],
    offsets: NDArray[np.integer[Any]],
    special_mask: NDArray[Any],
    labels: Sequence[str],
    text: str,
    strategy: Aggregation | str,
    subword_flags: NDArray[np.bool_] | None = None,
    *,
    ignore_labels: Collection[str] = ("O",),
) -> list[Entity]:
    """Join the tokens of one text to entities.

    Args:
        scores: float32 (tokens, labels), each row the softmax of a token's logits.
        offsets: Integers (tokens, 2): where each token starts and ends in the text, in characters.
        special_mask: Integers or bools (tokens,): other than 0 for special tokens and padding, which are left out.
        labels: The label of each column.
        text: The text.
        strategy: An Aggregation, or its value.
        subword_flags: bool (tokens,): whether a token continues the word of the token before; see
            `wordpiece_subwords`. None: it does unless a space stands at its start or before it, as the pipeline guesses
            for tokenizers that have no prefix for such tokens. Only FIRST, AVERAGE and MAX read it.
        ignore_labels: Entities of these labels are left out.

    Returns:
        The entities in the order of the text.

    Raises:
        TypeError: A wrong dtype, or no ndarray.
        ValueError: Another strategy; shapes that do not fit; offsets outside of the text, or a NaN score, at a token
            that is not left out.
    """
    strategy = Aggregation(strategy)
    places = _kept_places(scores, offsets, special_mask, labels, text)
    kept = scores[places]
    spans: list[list[int]] = offsets[places].tolist()
    if strategy in (Aggregation.NONE, Aggregation.SIMPLE):
        pieces = _label_tokens(kept, spans, places.tolist(), labels)
    else:
        words = _words(_subwords(subword_flags, places, len(scores), spans, text))
        pieces = [_label_word(kept[start:end], spans[start:end], labels, strategy) for start, end in words]
    if strategy is not Aggregation.NONE:
        pieces = [_join(group) for group in _group(pieces)]
    return [
        Entity(
            label=piece.label,
            score=piece.score,
            start=piece.start,
            end=piece.end,
            word=text[piece.start : piece.end],
            index=piece.place,
        )
        for piece in pieces
        if piece.label not in ignore_labels
    ]


def wordpiece_subwords(
    tokens: Sequence[str], offsets: NDArray[np.integer[Any]], unknown: str = "[UNK]"
) -> NDArray[np.bool_]:
    """Tell which tokens of a WordPiece tokenizer continue a word, by the pipeline's rule.

    A token that is longer than its piece of the text has the prefix of such tokens (`##`). Special tokens come out as
    such as well, but `aggregate` leaves them out.

    Args:
        tokens: The tokens of one text.
        offsets: Integers (tokens, 2), as for `aggregate`.
        unknown: The token for unknown words; it never continues one.

    Returns:
        bool (tokens,).
    """
    lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    known = np.fromiter((token != unknown for token in tokens), dtype=np.bool_, count=len(tokens))
    result: NDArray[np.bool_] = (lengths != offsets[:, 1] - offsets[:, 0]) & known
    return result


def _kept_places(scores: Any, offsets: Any, special_mask: Any, labels: Sequence[str], text: str) -> NDArray[np.intp]:
    """Check the arguments; return the places of the tokens that are not special."""
    _checks.array("scores", scores, np.float32, 2)
    tokens = len(scores)
    if not len(labels) or scores.shape[1] != len(labels):
        raise ValueError(f"scores: expected a column for each of the {len(labels)} labels, found {scores.shape}")
    for name, value, shape, kinds in (
        ("offsets", offsets, (tokens, 2), "iu"),
        ("special_mask", special_mask, (tokens,), "iub"),
    ):
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            raise TypeError(f"{name}: expected an array of integers, found {getattr(value, 'dtype', type(value))}")
        if value.shape != shape:
            raise ValueError(f"{name}: expected shape {shape} for scores of {scores.shape}, found {value.shape}")
    places = np.flatnonzero(special_mask == 0)
    starts, ends = offsets[places, 0], offsets[places, 1]
    outside = np.flatnonzero((starts < 0) | (ends < starts) | (ends > len(text)))
    if len(outside):
        token = int(places[outside[0]])
        raise ValueError(
            f"offsets: expected 0 <= start <= end <= {len(text)}, the text's length, found {offsets[token].tolist()} "
            f"at token {token}"
        )
    nans = np.flatnonzero(np.isnan(scores[places]).any(axis=1))
    if len(nans):
        raise ValueError(f"scores: expected numbers, found NaN at token {int(places[nans[0]])}")
    return places


def _subwords(flags: Any, places: NDArray[np.intp], tokens: int, spans: list[list[int]], text: str) -> list[bool]:
    """Whether each kept token continues a word."""
    if flags is None:
        return [start > 0 and " " not in text[start - 1 : start + 1] for start, _ in spans]
    _checks.array("subword_flags", flags, np.bool_, 1)
    if flags.shape != (tokens,):
        raise ValueError(f"subword_flags: expected shape ({tokens},), one for each token, found {flags.shape}")
    result: list[bool] = flags[places].tolist()
    return result


def _words(subwords: list[bool]) -> list[tuple[int, int]]:
    """Where each word starts and ends among the kept tokens."""
    starts = [place for place, subword in enumerate(subwords) if place == 0 or not subword]
    return list(pairwise([*starts, len(subwords)]))


def _label_tokens(
    scores: NDArray[np.float32], spans: list[list[int]], places: list[int], labels: Sequence[str]
) -> list[_Piece]:
    best = scores.argmax(axis=1)
    tops = np.take_along_axis(scores, best[:, None], axis=1)[:, 0]
    return [
        _Piece(labels[column], top, start, end, place)
        for column, top, (start, end), place in zip(best.tolist(), tops.tolist(), spans, places, strict=True)
    ]


def _label_word(
    scores: NDArray[np.float32], spans: list[list[int]], labels: Sequence[str], strategy: Aggregation
) -> _Piece:
    """Give a word one label."""
    if strategy is Aggregation.FIRST:
        word = scores[0]
    elif strategy is Aggregation.MAX:
        word = scores[scores.max(axis=1).argmax()]
    else:
        word = scores.mean(axis=0)
    column = int(word.argmax())
    return _Piece(labels[column], float(word[column]), spans[0][0], spans[-1][1], None)


def _group(pieces: list[_Piece]) -> list[list[_Piece]]:
    """Neighbours of one tag; a `B-` starts a new group."""
    groups: list[list[_Piece]] = []
    for piece in pieces:
        begins, tag = _split_label(piece.label)
        if groups and not begins and tag == _split_label(groups[-1][-1].label)[1]:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups


def _split_label(label: str) -> tuple[bool, str]:
    """Whether the label begins an entity, and its tag; a label without a prefix continues."""
    if label.startswith(("B-", "I-")):
        return label[0] == "B", label[2:]
    return False, label


def _join(group: list[_Piece]) -> _Piece:
    name = group[0].label.split("-", 1)[-1]  # of a label without B- or I- too, as in transformers
    score = sum(piece.score for piece in group) / len(group)
    return _Piece(name, score, group[0].start, group[-1].end, None)
