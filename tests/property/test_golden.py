"""Golden sets: any set is read back, and any damage to a file is found or harmless, never a foreign exception."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeonnx.bundle.golden import GoldenSet, compare_outputs
from edgeonnx.spec.manifest import Task
from tests.support.bundles import golden_set
from tests.support.outcome import refusal

FILES = golden_set(Task.TEXT_RANKING).to_files()
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@st.composite
def golden_sets(draw: st.DrawFn) -> GoldenSet:
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    rows, width = len(lengths), max(lengths) + draw(st.integers(0, 2))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int64)
    shape = draw(st.sampled_from([(rows, 3), (rows, width, 2)]))
    return GoldenSet(
        texts=tuple(draw(st.lists(TEXT, min_size=rows, max_size=rows))),
        pairs=draw(st.none() | st.lists(TEXT, min_size=rows, max_size=rows).map(tuple)),
        inputs={"input_ids": rng.integers(0, 1 << 40, (rows, width)), "attention_mask": mask},
        outputs={"out": rng.standard_normal(shape).astype(np.float32)},
    )


@given(golden_sets())
def test_any_set_is_read_back_bit_for_bit(golden: GoldenSet) -> None:
    files = golden.to_files()
    again = GoldenSet.from_files(files.__getitem__)
    assert again.to_files() == files


@settings(max_examples=300)
@given(st.sampled_from(sorted(FILES)), st.data())
def test_a_damaged_file_is_read_or_refused(name: str, data: st.DataObject) -> None:
    damaged = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] ^= data.draw(st.integers(1, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))]) if data.draw(st.booleans()) else bytes(damaged)
    read({**FILES, name: cut})


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # NumPy reads the header as a literal
@settings(max_examples=200)
@given(st.sampled_from(sorted(name for name in FILES if name.endswith(".npy"))), st.data())
def test_a_damaged_npy_header_is_read_or_refused(name: str, data: st.DataObject) -> None:
    header = bytearray(FILES[name][10:128])
    words = st.sampled_from(
        [b"(", b")", b"'", b"{", b"}", b",", b"0", b"-1", b"9" * 18, b"None", b"True", b"[", b"O", b"\x00", b"\\"]
    )
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(header) - 1))
        word = data.draw(words)
        header[place : place + len(word)] = word
    read({**FILES, name: FILES[name][:10] + bytes(header[:118]) + FILES[name][128:]})


def read(files: dict[str, bytes]) -> None:
    error = refusal(lambda: GoldenSet.from_files(lambda name: files.get(name, b"")))
    assert error is None or error.where


ARRAYS = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)).flatmap(
    lambda shape: st.lists(st.floats(width=32), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))).map(
        lambda values: np.array(values, np.float32).reshape(shape)
    )
)


@given(ARRAYS, st.data())
def test_the_comparison_passes_only_what_is_equal(value: Any, data: st.DataObject) -> None:
    mask = np.ones(value.shape[:2], np.int64)
    found = compare_outputs({"x": value}, {"x": value}, mask)
    if np.isfinite(value).all():
        assert found.max_abs_diff == 0.0
        assert found.min_cosine == 1.0
    else:
        assert np.isnan(found.max_abs_diff)
    changed = value.copy()
    changed[tuple(data.draw(st.integers(0, size - 1)) for size in value.shape)] = np.float32(np.nan)
    assert np.isnan(compare_outputs({"x": value}, {"x": changed}, mask).scaled_diff)


def test_the_files_of_the_fixture_are_whole() -> None:
    read(FILES)
    assert np.load(io.BytesIO(FILES["outputs.scores.npy"])).shape == (4, 1)
