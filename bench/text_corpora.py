"""The texts of the text benches: short English ones, and a mix of many languages."""

from __future__ import annotations

import json
import random

from tests.support.texts import ROOT, fortune_texts, vader_texts

SEED = 7
MIXED = 8000
HOW_TO = (
    "apt-get download fortunes fortunes-de fortunes-ru fortunes-zh fortunes-es fortunes-it fortunes-pl fortunes-cs "
    "fortunes-bg fortunes-br fortunes-eo, then dpkg -x each into .work/data/fortunes"
)


def multilingual_texts() -> tuple[list[str], str]:
    """The texts that ship with edgeonnx and a seeded draw of fortunes; and what one should know about them."""
    own = [json.loads(line) for line in (ROOT / "edgeonnx/data/texts.jsonl").read_text("utf-8").splitlines()]
    fortunes = fortune_texts()
    if not fortunes:
        return own * 40, f"no fortunes at hand, 105 texts 40 times over, which caches like; get them: {HOW_TO}"
    random.Random(SEED).shuffle(fortunes)
    return own + fortunes[:MIXED], f"{len(own)} texts of edgeonnx and {len(fortunes[:MIXED])} fortunes"


def corpora(share: int = 1) -> dict[str, tuple[list[str], str]]:
    """The texts by name, with a note; of each only every `share`-th."""
    english = vader_texts()
    mixed, note = multilingual_texts()
    return {
        "english": (english[::share], "tweets, reviews, editorials"),
        "multilingual": (mixed[::share], note),
    }


def new_texts(share: int = 1) -> list[list[str]]:
    """Parts of the fortunes that have no text in common; none if they are not at hand."""
    fortunes = fortune_texts()
    random.Random(SEED + 1).shuffle(fortunes)
    size = MIXED // share
    return [fortunes[start : start + size] for start in range(0, min(5 * size, len(fortunes) - size + 1), size)]


def megabytes(texts: list[str]) -> float:
    """Their size in UTF-8, in 10**6 bytes."""
    return sum(len(text.encode()) for text in texts) / 1e6
