"""The texts of the text benches: short English ones, and a mix of many languages."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from tests.support.texts import CACHE, ROOT, vader_texts

SEED = 7
MIXED = 8000
LONGEST = 2000
# Where Debian's fortunes packages put their files; a copy without installing them goes below .work/data/fortunes.
FORTUNES = (Path("/usr/share/games"), CACHE / "fortunes" / "usr" / "share" / "games")
HOW_TO = (
    "apt-get download fortunes fortunes-de fortunes-ru fortunes-zh fortunes-es fortunes-it fortunes-pl fortunes-cs "
    "fortunes-bg fortunes-br fortunes-eo, then dpkg -x each into .work/data/fortunes"
)
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|.\x08")  # colours, and overstriking


def fortune_texts() -> list[str]:
    """Every fortune that is at hand and not longer than 2,000 characters, cleaned, in a fixed order, each once."""
    found: dict[str, None] = {}
    for path in sorted({path for folder in FORTUNES for path in folder.glob("fortunes*/**/*") if path.is_file()}):
        if path.suffix in {".dat", ".u8"}:
            continue
        try:
            content = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
        for text in re.split(r"^%.*$", content, flags=re.MULTILINE):
            cleaned = ESCAPES.sub("", text).strip("\n")
            if 0 < len(cleaned) <= LONGEST:
                found[cleaned] = None
    return list(found)


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


def megabytes(texts: list[str]) -> float:
    """Their size in UTF-8, in 10**6 bytes."""
    return sum(len(text.encode()) for text in texts) / 1e6
