"""Reading a GGUF file once and quietly, and leaving the libraries as they were."""

from __future__ import annotations

import contextlib

import gguf
import pytest
from transformers import modeling_gguf_pytorch_utils as reading

from edgeonnx.export.decoder.gguf_library import gguf_reading


def test_names_are_remembered_and_bars_hidden_only_inside(capsys: pytest.CaptureFixture[str]) -> None:
    before = (gguf.GGUFReader, gguf.get_tensor_name_map, reading.tqdm)
    with contextlib.suppress(KeyError), gguf_reading():
        first, second = (gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2) for _ in range(2))
        assert first is second
        assert list(reading.tqdm(range(3))) == [0, 1, 2]
        raise KeyError("a file that is not read to its end")
    assert (gguf.GGUFReader, gguf.get_tensor_name_map, reading.tqdm) == before
    assert capsys.readouterr().err == ""
