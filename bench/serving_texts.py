"""The texts that servers are loaded with, alone and in requests of many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.support.texts import vader_texts

MOST_TEXTS = 32


def sample(count: int) -> list[str]:
    """Real texts (mean about 100 characters), drawn with a fixed seed."""
    texts = vader_texts()
    return [texts[index] for index in np.random.default_rng(7).integers(0, len(texts), count)]


def singles(texts: Sequence[str]) -> list[list[str]]:
    """One text a request."""
    return [[text] for text in texts]


def mixed(texts: Sequence[str], *, most: int = MOST_TEXTS) -> list[list[str]]:
    """1 to `most` texts a request, every size as likely, drawn with a fixed seed."""
    rng = np.random.default_rng(11)
    groups: list[list[str]] = []
    start = 0
    while start < len(texts):
        size = int(rng.integers(1, most + 1))
        groups.append(list(texts[start : start + size]))
        start += size
    return groups
