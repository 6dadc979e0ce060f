"""The folder of links that libraries are given in place of a source."""

from __future__ import annotations

from pathlib import Path

from edgeonnx.export.decoder.staging import staged
from edgeonnx.export.source import Source


def make(folder: Path, gguf: str | None = None) -> Source:
    for name in (
        "config.json",
        "model.safetensors",
        "pytorch_model.bin",
        "a.gguf",
        "modeling.py",
        "chat_template.jinja",
    ):
        (folder / name).write_text(name)
    (folder / "adapter").mkdir()
    weights = ("model.safetensors",) if gguf is None else (gguf,)
    return Source(path=folder, identity="m", revision=None, config={}, weights=weights, gguf=gguf)


def test_only_what_may_be_read_is_there_and_the_source_outlives_it(tmp_path: Path) -> None:
    with staged(make(tmp_path)) as folder:
        found = {path.name: path.read_text() for path in folder.iterdir()}
        (folder / "config.json").unlink()
    assert set(found) == {"config.json", "model.safetensors", "chat_template.jinja"}
    assert all(name == text for name, text in found.items())
    assert (tmp_path / "config.json").read_text() == "config.json"
    assert not folder.exists()


def test_beside_a_gguf_file_nothing_is_read(tmp_path: Path) -> None:
    with staged(make(tmp_path, "a.gguf")) as folder:
        assert [path.name for path in folder.iterdir()] == ["a.gguf"]
