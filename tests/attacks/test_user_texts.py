"""Hostile and mistaken `--texts` files: each is refused by its name, before any model is loaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgeonnx.errors import UsageError
from edgeonnx.pipeline.recipe import PackageRequest
from edgeonnx.pipeline.run import package
from edgeonnx.spec.manifest import Task
from tests.support.cli import edgeonnx
from tests.support.models import tiny_model

FILES: dict[str, tuple[str, bytes]] = {
    "UTF-16 with its mark": ("texts.txt", "a text\nanother".encode("utf-16")),
    "UTF-16 without its mark": ("texts.txt", "a text\nanother".encode("utf-16-le")),
    "Latin-1": ("texts.txt", "one\ntwo\ncaf\u00e9\n".encode("latin-1")),
    "nothing": ("texts.txt", b""),
    "blank lines": ("texts.txt", b"\n \n\t\n"),
    "a JSON array": ("texts.json", b'[\n"a",\n"b"\n]'),
    "a nest of brackets": ("texts.jsonl", b"[" * 100_000),
    "a number": ("texts.jsonl", b"1\n"),
    "labels of some": ("texts.jsonl", b'{"text": "a", "label": "x"}\n{"text": "b"}\n'),
    "NaN as a label": ("texts.jsonl", b'{"text": "a", "label": NaN}\n'),
    "a lone surrogate": ("texts.jsonl", b'{"text": "\\ud800"}\n'),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "m", num_hidden_layers=1)


def _refused(source: Path, texts: Path, out: Path) -> UsageError:
    request = PackageRequest(source=str(source), name="m", version="1", out=out, task=Task.EMBEDDING, texts=texts)
    with pytest.raises(UsageError) as caught:
        package(request)
    assert not out.exists()
    return caught.value


@pytest.mark.slow
def test_the_command_line_names_the_file_and_the_encoding(source: Path, tmp_path: Path) -> None:
    texts, out = tmp_path / "texts.txt", tmp_path / "out"
    texts.write_bytes("a text".encode("utf-16"))
    arguments = ("--name", "m", "--version", "1", "--out", str(out), "--task", "embedding", "--texts", str(texts))
    done = edgeonnx("package", str(source), *arguments)
    assert done.returncode == 2, done.stderr
    assert "texts.txt" in done.stderr.replace("\n", "")
    assert "UTF-16" in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_list_of_texts(case: str, source: Path, tmp_path: Path) -> None:
    name, data = FILES[case]
    texts = tmp_path / name
    texts.write_bytes(data)
    assert name in str(_refused(source, texts, tmp_path / "out").where)


@pytest.mark.parametrize("kind", ["directory", "pipe", "missing"])
def test_what_is_no_file(kind: str, source: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    if kind == "directory":
        texts.mkdir()
    elif kind == "pipe":
        os.mkfifo(texts)
    _refused(source, texts, tmp_path / "out")
