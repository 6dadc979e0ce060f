"""GGUF files that are damaged or hostile, or of which transformers would read only a part: refused at once."""

from __future__ import annotations

import contextlib
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeonnx.errors import (
    CorruptSourceError,
    EdgeOnnxError,
    RuntimeUnavailableError,
    SourceError,
    UnsupportedModelError,
)
from edgeonnx.export.decoder.gguf_file import read_gguf
from edgeonnx.export.decoder.gguf_header import read_header
from edgeonnx.export.source import locate
from edgeonnx.export.tasks import plan_task
from edgeonnx.spec.manifest import Task
from tests.support.tiny_decoders import tiny_decoder, write_gguf

SECONDS = 2.0
HUGE = 1 << 60


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_decoder(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def whole(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", directory).read_bytes()


def refusal(tmp_path: Path, data: bytes) -> EdgeOnnxError:
    """The error of a file; it must come at once, whatever the file claims."""
    file = tmp_path / "model.gguf"
    file.write_bytes(data)
    before = time.monotonic()
    with pytest.raises(SourceError) as caught:
        locate(str(file))
    assert time.monotonic() - before < SECONDS
    return caught.value


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(pairs: bytes = b"", tensors: bytes = b"", *, counts: tuple[int, int] = (0, 0), version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + pairs + tensors


def pair(kind: int, value: bytes, name: bytes = b"a") -> bytes:
    return text(name) + struct.pack("<I", kind) + value


HOSTILE = {
    "empty": b"",
    "four bytes": b"GGUF",
    "another magic": b"GGML" + bytes(100),
    "a pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR." + bytes(40),
    "version 1": header(version=1),
    "big-endian": header(version=3 << 24),
    "more tensors than bytes": header(counts=(HUGE, 0)),
    "more pairs than bytes": header(counts=(0, 60000)),
    "a name longer than the file": header(struct.pack("<Q", HUGE), counts=(0, 1)),
    "a text longer than the file": header(pair(8, struct.pack("<Q", 1 << 19)), counts=(0, 1)),
    "an array of 2**60 bytes": header(pair(9, struct.pack("<IQ", 0, HUGE)), counts=(0, 1)),
    "an array of 2**60 texts": header(pair(9, struct.pack("<IQ", 8, HUGE)), counts=(0, 1)),
    "an array of arrays": header(pair(9, struct.pack("<IQ", 9, 1)), counts=(0, 1)),
    "a type of 99": header(pair(99, b""), counts=(0, 1)),
    "an entry twice": header(pair(4, bytes(4)) * 2, counts=(0, 2)),
    "an alignment of 0": header(pair(4, bytes(4), b"general.alignment"), counts=(0, 1)),
    "a tensor of 100 axes": header(tensors=text(b"t") + struct.pack("<I", 100), counts=(1, 0)),
    "a tensor of 2**60 rows": header(tensors=text(b"t") + struct.pack("<IQIQ", 1, HUGE, 0, 0), counts=(1, 0)),
    "two tensors of one name": header(tensors=(text(b"t") + struct.pack("<IQIQ", 1, 1, 0, 0)) * 2, counts=(2, 0)),
    "no architecture": header(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_claims_what_it_does_not_have_is_refused_at_once(tmp_path: Path, name: str) -> None:
    assert refusal(tmp_path, HOSTILE[name]).where is not None


def test_a_file_cut_anywhere_is_refused(tmp_path: Path, whole: bytes) -> None:
    """Every cut through the header, in steps that are prime to its fields, and a few through the data."""
    file = tmp_path / "whole.gguf"
    file.write_bytes(whole)
    start = read_header(file).data_start
    for end in (*range(0, start, 97), start, start + 1, (start + len(whole)) // 2, len(whole) - 33):
        file.write_bytes(whole[:end])
        with pytest.raises(SourceError):
            read_gguf(file)
    file.write_bytes(whole)
    assert read_gguf(file)["model_type"] == "llama"


def test_changed_bytes_of_the_header_are_our_errors_or_harmless(tmp_path: Path, whole: bytes) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(whole)
    start = read_header(file).data_start
    generator = np.random.default_rng(0)
    for place in generator.integers(0, start, 150):
        data = bytearray(whole)
        data[place] ^= int(generator.integers(1, 256))
        file.write_bytes(data)
        with contextlib.suppress(SourceError):
            read_gguf(file)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"llama.rope.scaling.type": "linear"}, "rope.scaling.type"),
        ({"llama.rope.scale_linear": 2.0}, "rope.scale_linear"),
        ({"llama.expert_count": 4}, "expert_count"),
        ({"llama.attention.sliding_window": 16}, "sliding_window"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count"),
        ({"split.count": 2}, "split.count"),
        ({"general.architecture": "mamba"}, "general.architecture"),
    ],
)
def test_settings_that_would_be_lost_are_refused(
    tmp_path: Path, directory: Path, changes: dict[str, Any], told: str
) -> None:
    if "general.architecture" in changes:
        data = write_gguf(tmp_path / "m.gguf", directory).read_bytes().replace(text(b"llama"), text(b"mamba"), 1)
    else:
        data = write_gguf(tmp_path / "m.gguf", directory, **changes).read_bytes()
    error = refusal(tmp_path, data)
    assert isinstance(error, UnsupportedModelError)
    assert told in str(error.where)


@pytest.mark.parametrize(
    "name", ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.2.attn_q.weight", "blk.0.ffn_gate_inp.weight"]
)
def test_tensors_that_would_be_passed_over_are_refused(tmp_path: Path, directory: Path, name: str) -> None:
    file = write_gguf(tmp_path / "m.gguf", directory, {name: np.ones((8, 8), np.float32)})
    error = refusal(tmp_path, file.read_bytes())
    assert isinstance(error, UnsupportedModelError)
    assert f"not expected: {name}" in error.details


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"llama.block_count": 3}, "missing: blk.2.attn_k.weight"),
        ({"llama.block_count": 1 << 30}, "block_count"),
        ({"llama.feed_forward_length": 1 << 20}, "blk.0.ffn_down.weight"),
        ({"llama.attention.head_count": None}, "attention.head_count"),
        ({"llama.attention.head_count_kv": 4}, "blk.0.attn_k.weight"),
        ({"llama.vocab_size": 100000}, "token_embd.weight"),
        ({"llama.context_length": 0}, "context_length"),
        ({"tokenizer.ggml.tokens": None, "tokenizer.ggml.token_type": None}, "tokenizer.ggml.tokens"),
    ],
)
def test_sizes_that_the_tensors_do_not_have_are_refused(
    tmp_path: Path, directory: Path, changes: dict[str, Any], told: str
) -> None:
    error = refusal(tmp_path, write_gguf(tmp_path / "m.gguf", directory, **changes).read_bytes())
    assert isinstance(error, CorruptSourceError)
    assert told in str(error)


def test_a_directory_is_its_only_gguf_file(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(whole)
    (tmp_path / "config.json").write_text('{"auto_map": {}, "model_type": "bert"}')  # beside a GGUF file: not read
    for source in (locate(str(tmp_path)), locate(str(tmp_path / "model.gguf"))):
        assert (source.gguf, source.weights, source.identity) == ("model.gguf", ("model.gguf",), "model.gguf")
        assert list(source.fingerprint()["files"]) == ["model.gguf"]
        assert plan_task(source, None).task is Task.TEXT_GENERATION
    (tmp_path / "another.gguf").write_bytes(whole)
    with pytest.raises(UnsupportedModelError, match="several GGUF files"):
        locate(str(tmp_path))
    assert locate(str(tmp_path / "another.gguf")).identity == "another.gguf"


def test_a_library_that_is_missing_is_named(tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "model.gguf").write_bytes(whole)
    with pytest.raises(RuntimeUnavailableError) as caught:
        locate(str(tmp_path / "model.gguf"))
    assert caught.value.hint == "install it: pip install gguf"
