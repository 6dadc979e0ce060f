from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from edgeonnx_ext.labels import LabelScore, label_scores
from edgeonnx_ext.spans import Aggregation, Entity, aggregate, wordpiece_subwords

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXT = "Ada Lovelace met Babbage in London"
TOKENS = ["[CLS]", "Ada", "Love", "##lace", "met", "Bab", "##bage", "in", "London", "[SEP]", "[PAD]"]
OFFSETS = np.array([[0, 0], [0, 3], [4, 8], [8, 12], [13, 16], [17, 20], [20, 24], [25, 27], [28, 34], [0, 0], [0, 0]])
SPECIAL = np.array([1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1])


def scores_of(*best: tuple[str, float], labels: list[str] = LABELS) -> np.ndarray:
    """Each token's label and its score; the rest is shared by the others."""
    rows = np.empty((len(best), len(labels)), dtype=np.float32)
    for row, (label, score) in zip(rows, best, strict=True):
        row[:] = (1 - score) / (len(labels) - 1)
        row[labels.index(label)] = score
    return rows


SCORES = scores_of(
    ("B-LOC", 0.9),
    ("B-PER", 0.9),
    ("I-PER", 0.8),
    ("I-LOC", 0.85),
    ("O", 0.9),
    ("B-PER", 0.6),
    ("O", 0.7),
    ("O", 0.9),
    ("B-LOC", 0.95),
    ("B-LOC", 0.9),
    ("O", 0.9),
)
FLAGS = wordpiece_subwords(TOKENS, OFFSETS)


def short(entities: list[Entity]) -> list[tuple[str, str, float]]:
    return [(entity.label, entity.word, round(entity.score, 4)) for entity in entities]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (
            "simple",
            [("PER", "Ada Love", 0.85), ("LOC", "lace", 0.85), ("PER", "Bab", 0.6), ("LOC", "London", 0.95)],
        ),
        ("first", [("PER", "Ada Lovelace", 0.85), ("PER", "Babbage", 0.6), ("LOC", "London", 0.95)]),
        ("max", [("PER", "Ada", 0.9), ("LOC", "Lovelace", 0.85), ("LOC", "London", 0.95)]),
        ("average", [("PER", "Ada", 0.9), ("LOC", "Lovelace", 0.45), ("LOC", "London", 0.95)]),
    ],
)
def test_strategies_on_a_sentence(strategy: str, expected: list[tuple[str, str, float]]) -> None:
    assert short(aggregate(SCORES, OFFSETS, SPECIAL, LABELS, TEXT, strategy, FLAGS)) == expected


def test_without_aggregation_each_token_stands_alone() -> None:
    found = aggregate(SCORES, OFFSETS, SPECIAL, LABELS, TEXT, Aggregation.NONE)
    assert [(entity.index, entity.label, entity.word) for entity in found] == [
        (1, "B-PER", "Ada"),
        (2, "I-PER", "Love"),
        (3, "I-LOC", "lace"),
        (5, "B-PER", "Bab"),
        (8, "B-LOC", "London"),
    ]
    assert found[0].score == pytest.approx(0.9)
    assert (found[0].start, found[0].end) == (0, 3)


def test_two_beginnings_are_two_entities() -> None:
    scores = scores_of(("B-LOC", 0.9), ("B-LOC", 0.9), ("I-LOC", 0.9))
    offsets = np.array([[0, 1], [2, 3], [4, 5]])
    found = aggregate(scores, offsets, np.zeros(3, dtype=np.int64), LABELS, "a b c", "simple")
    assert [entity.word for entity in found] == ["a", "b c"]


def test_labels_to_ignore_are_the_callers_choice() -> None:
    found = aggregate(SCORES, OFFSETS, SPECIAL, LABELS, TEXT, "simple", ignore_labels=("O", "PER"))
    assert short(found) == [("LOC", "lace", 0.85), ("LOC", "London", 0.95)]
    everything = aggregate(SCORES, OFFSETS, SPECIAL, LABELS, TEXT, "none", ignore_labels=())
    assert len(everything) == 8


def test_an_unknown_word_continues_none() -> None:
    assert FLAGS.tolist()[1:9] == [False, False, True, False, False, True, False, False]
    assert wordpiece_subwords(["[UNK]", "##s"], np.array([[0, 2], [2, 3]])).tolist() == [False, True]


@pytest.mark.parametrize("strategy", list(Aggregation))
def test_no_tokens_no_entities(strategy: Aggregation) -> None:
    empty = np.empty((0, 5), dtype=np.float32)
    assert aggregate(empty, np.empty((0, 2), np.int64), np.empty(0, np.int64), LABELS, "", strategy) == []
    assert aggregate(SCORES, OFFSETS, np.ones_like(SPECIAL), LABELS, TEXT, strategy) == []


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"strategy": "last"}, ValueError, "last"),
        ({"scores": SCORES.astype(np.float64)}, TypeError, "scores: expected dtype float32"),
        ({"labels": LABELS[:4]}, ValueError, "scores: expected a column for each of the 4 labels"),
        ({"offsets": OFFSETS[:3]}, ValueError, r"offsets: expected shape \(11, 2\)"),
        ({"offsets": OFFSETS.astype(np.float32)}, TypeError, "offsets: expected an array of integers"),
        ({"offsets": OFFSETS + 1}, ValueError, r"offsets: .* 34, the text's length, found \[29, 35\] at token 8"),
        ({"offsets": OFFSETS - 1}, ValueError, r"offsets: .* found \[-1, 2\] at token 1"),
        ({"offsets": OFFSETS[:, ::-1]}, ValueError, r"offsets: .* found \[3, 0\] at token 1"),
        ({"special_mask": SPECIAL[:3]}, ValueError, r"special_mask: expected shape \(11,\)"),
        ({"special_mask": [0]}, TypeError, "special_mask: expected an array of integers"),
        ({"subword_flags": FLAGS[:3]}, ValueError, r"subword_flags: expected shape \(11,\)"),
        ({"subword_flags": SPECIAL}, TypeError, "subword_flags: expected dtype bool"),
        ({"scores": np.where(np.arange(11)[:, None] == 4, np.nan, SCORES).astype(np.float32)}, ValueError, "token 4"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {
        "scores": SCORES,
        "offsets": OFFSETS,
        "special_mask": SPECIAL,
        "labels": LABELS,
        "text": TEXT,
        "strategy": "first",
        "subword_flags": FLAGS,
    }
    with pytest.raises(error, match=message):
        aggregate(**{**arguments, **changes})


WORDS = ["New", "york", "is", "##n", "##t", "in", "[UNK]", "##land", ".", "##x"]
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC", "A-B", "I-A-B"]


def random_case(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str], str]:
    """Scores, offsets, special tokens, tokens and text of a random sentence."""
    tokens = ["[CLS]", *generator.choice(WORDS, size=generator.integers(0, 14)), "[SEP]"]
    text, offsets = "", [(0, 0)]
    for token in tokens[1:-1]:
        if not token.startswith("##") and generator.random() < 0.8:
            text += " "
        piece = "Zoe" if token == "[UNK]" else token.removeprefix("##")
        offsets.append((len(text), len(text) + len(piece)))
        text += piece
    logits = generator.standard_normal((len(tokens), len(TAGS))) * 3
    if generator.random() < 0.5:
        logits = np.round(logits)  # equal scores
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores = (shifted / shifted.sum(axis=1, keepdims=True)).astype(np.float32)
    special = np.array([1, *[0] * (len(tokens) - 2), 1])
    return scores, np.array([*offsets, (0, 0)]), special, tokens, text


def pipeline_of(prefix: str | None) -> Any:
    """The real pipeline, without a model: `aggregate` and what it calls read no more than this."""
    module = pytest.importorskip("transformers.pipelines.token_classification")
    pipeline = module.TokenClassificationPipeline.__new__(module.TokenClassificationPipeline)
    pipeline.model = SimpleNamespace(config=SimpleNamespace(id2label=dict(enumerate(TAGS))))
    pipeline.tokenizer = SimpleNamespace(
        convert_ids_to_tokens=lambda token: token_names[token],
        convert_tokens_to_string=" ".join,
        unk_token_id=0,
        _tokenizer=SimpleNamespace(model=SimpleNamespace(continuing_subword_prefix=prefix)),
    )
    token_names = ["[UNK]", "[CLS]", "[SEP]", *(word for word in WORDS if word != "[UNK]")]
    pipeline.token_names = token_names
    return pipeline, module.AggregationStrategy


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("prefix", ["##", None])
def test_entities_are_those_of_the_pipeline(prefix: str | None) -> None:
    pipeline, strategies = pipeline_of(prefix)
    generator = np.random.default_rng(7)
    compared = 0
    for _ in range(150):
        scores, offsets, special, tokens, text = random_case(generator)
        ids = [pipeline.token_names.index(token) for token in tokens]
        # Without a prefix the pipeline guesses by spaces, but still knows the unknown token.
        flags = wordpiece_subwords(tokens, offsets) if prefix else None
        if not prefix and "[UNK]" in tokens:
            continue
        for strategy in Aggregation:
            theirs = strategies[strategy.name]
            before = pipeline.gather_pre_entities(text, ids, scores, offsets.tolist(), special, theirs)
            expected = [
                (entity.get("entity", entity.get("entity_group")), entity["start"], entity["end"], entity.get("index"))
                for entity in pipeline.aggregate(before, theirs)
            ]
            found = aggregate(scores, offsets, special, TAGS, text, strategy, flags, ignore_labels=())
            assert [(entity.label, entity.start, entity.end, entity.index) for entity in found] == expected
            np.testing.assert_allclose(
                [entity.score for entity in found],
                [entity["score"] for entity in pipeline.aggregate(before, theirs)],
                rtol=1e-6,
            )
            compared += len(found)
    assert compared > 1000


def test_labels_come_with_the_largest_score_first() -> None:
    scores = np.array([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]], dtype=np.float32)
    found = label_scores(scores, ["a", "b", "c"], top_k=2)
    assert [[item.label for item in row] for row in found] == [["b", "c"], ["a", "c"]]
    assert found[0][0] == LabelScore(label="b", score=0.5)
    assert [len(row) for row in label_scores(scores, ["a", "b", "c"])] == [3, 3]
    assert [len(row) for row in label_scores(scores, ["a", "b", "c"], top_k=9)] == [3, 3]
    assert label_scores(scores[:0], ["a", "b", "c"]) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((1, 2), np.float32), ["a"]), "scores: expected a column for each of the 1 labels"),
        ((np.ones((1, 1), np.float32), ["a"], 0), "top_k: expected 1 or more"),
        ((np.array([[0, np.nan]], np.float32), ["a", "b"]), "found NaN at row 0, column 1"),
    ],
)
def test_wrong_arguments_of_label_scores(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        label_scores(*arguments)
