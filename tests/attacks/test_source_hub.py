"""Hub ids: offline, unknown, and what a download takes. No network."""

from __future__ import annotations

import fnmatch
import json
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from safetensors.numpy import save_file

from edgeonnx.errors import CorruptSourceError, SourceNotFoundError
from edgeonnx.export.source import locate
from tests.support.cli import edgeonnx

REVISION = "c" * 40
FILES = ("config.json", "tokenizer.json", "vocab.txt", "model.safetensors", "1_Pooling/config.json", "spiece.model")
DANGEROUS = (
    "pytorch_model.bin",
    "model.pt",
    "rust_model.ot",
    "tf_model.h5",
    "modeling_evil.py",
    "flax_model.msgpack",
    "onnx/model.onnx",
    "onnx/config.json",
    "openvino/openvino_model.xml",
    "weights.pkl",
)


class Hub:
    """Stands for `snapshot_download`: keeps what it was asked and gives a directory that obeys the patterns."""

    def __init__(self, cache: Path, offered: tuple[str, ...]) -> None:
        self.folder = cache / "snapshots" / REVISION
        self.offered = offered
        self.asked: list[str] = []

    def __call__(self, repo_id: str, *, allow_patterns: list[str], ignore_patterns: list[str], **_: Any) -> str:
        self.asked.append(repo_id)
        for name in self.offered:
            wanted = any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns)
            if wanted and not any(fnmatch.fnmatch(name, pattern) for pattern in ignore_patterns):
                self._write(name)
        return str(self.folder)

    def _write(self, name: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".safetensors"):
            save_file({"w": np.zeros(1, np.float32)}, file)
        else:
            file.write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))


def test_a_download_takes_what_is_safe_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(tmp_path, FILES + DANGEROUS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    source = locate("org/some-model")
    assert hub.asked == ["org/some-model"]
    assert (source.path, source.identity, source.revision) == (hub.folder, "org/some-model", REVISION)
    taken = {str(path.relative_to(hub.folder)) for path in hub.folder.rglob("*") if path.is_file()}
    assert taken == set(FILES)


def test_a_repository_with_pickles_only_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = ("config.json", "tokenizer.json", "pytorch_model.bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", Hub(tmp_path, offered))
    with pytest.raises(CorruptSourceError, match="has no weights") as caught:
        locate("org/pickles")
    assert "pickles are neither downloaded nor opened" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "failure",
    [
        LocalEntryNotFoundError("cannot find the snapshot\nmore lines"),
        HFValidationError("not an id"),
        OSError("no route to host"),
        ConnectionError("reset"),
        OSError(),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_download_that_fails_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise failure

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(SourceNotFoundError) as caught:
        locate("org/some-model")
    assert caught.value.where == "org/some-model"
    assert caught.value.found
    assert "\n" not in caught.value.found
    assert "local directory" in (caught.value.hint or "")


def test_offline_and_not_in_the_cache_is_exit_code_3(tmp_path: Path) -> None:
    line = ("package", "org/some-model", "-n", "a", "-v", "1", "-o", str(tmp_path / "out"))
    done = edgeonnx(*line, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "cache"))
    assert done.returncode == 3, done.stderr
    assert "error: org/some-model: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
