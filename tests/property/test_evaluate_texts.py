"""Any bytes as a file of texts: they are read, or refused with an error of ours."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from edgeonnx.errors import UsageError
from edgeonnx.evaluate.texts import UserTexts, read_texts, spread
from tests.support.outcome import refusal

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "pair", "label"]), inner),
    max_leaves=5,
)
FILES = st.binary() | st.text().map(str.encode) | st.lists(JSON.map(json.dumps)).map("\n".join).map(str.encode)


@settings(deadline=None)
@given(FILES, st.sampled_from(["a.txt", "a.jsonl"]), st.booleans(), st.integers(1, 5))
def test_read_or_refused(data: bytes, name: str, takes_pairs: bool, limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        results: list[UserTexts] = []
        error = refusal(lambda: results.append(read_texts(path, takes_pairs=takes_pairs, limit=limit)))
    if error is not None:
        assert isinstance(error, UsageError)
        assert name in (error.where or "")
        return
    (found,) = results
    assert 1 <= len(found.texts) <= min(limit, found.total)
    assert (found.pairs is not None) == takes_pairs
    for other in (found.pairs, found.labels):
        assert other is None or len(other) == len(found.texts)
    for text in found.texts:
        assert "\n" not in text or name.endswith("jsonl")
        text.encode()


@given(st.integers(0, 300), st.integers(1, 100))
def test_a_spread_is_even(count: int, limit: int) -> None:
    found = spread(count, limit)
    assert len(found) == min(count, limit)
    assert list(found) == sorted(set(found))
    if found:
        assert found[0] == 0
        gaps = [later - earlier for earlier, later in zip(found, [*found[1:], count], strict=True)]
        assert max(gaps) - min(gaps) <= 1
