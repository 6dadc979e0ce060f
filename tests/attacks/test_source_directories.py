"""Source models that are broken, hostile or not supported: the right error, exit code 3, and nothing is written.

All of them are refused from their files alone, so torch is not loaded for any.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from edgeonnx.cli.main import app
from edgeonnx.errors import (
    CorruptSourceError,
    SourceError,
    SourceNotFoundError,
    UnsafeSourceError,
    UnsupportedModelError,
)
from edgeonnx.export.source import locate
from edgeonnx.export.tasks import plan_task

CONFIG = {"model_type": "bert", "architectures": ["BertModel"]}


class Bomb:
    """A pickle that makes a file where it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory that passes the checks of files."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    save_file({"w": np.zeros((2, 2), np.float32)}, folder / "model.safetensors")
    return folder


def edit_config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))

    return change


def write(name: str, data: bytes | str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def index(weight_map: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return change


def pickled(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(pickle.dumps(Bomb(folder / "exploded")))

    return change


def pickle_shard(folder: Path) -> None:
    index({"w": "pytorch_model.bin"})(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(folder / "exploded")))


CASES: dict[str, tuple[Callable[[Path], object], type[SourceError], str]] = {
    "no config": (remove("config.json"), CorruptSourceError, "has no config.json"),
    "config of 0 bytes": (write("config.json", b""), CorruptSourceError, "is not readable JSON"),
    "config that is not JSON": (write("config.json", "model_type: bert"), CorruptSourceError, "is not readable JSON"),
    "config that is not UTF-8": (write("config.json", b'{"a": "\xff"}'), CorruptSourceError, "is not readable JSON"),
    "config nested too deep": (write("config.json", "[" * 200_000), CorruptSourceError, "is not readable JSON"),
    "config that is an array": (write("config.json", "[]"), CorruptSourceError, "does not hold an object"),
    "no tokenizer": (remove("tokenizer.json"), CorruptSourceError, "has no tokenizer"),
    "no weights": (remove("model.safetensors"), CorruptSourceError, "has no weights"),
    "truncated weights": (truncate, CorruptSourceError, "is not a whole safetensors file"),
    "weights of 0 bytes": (write("model.safetensors", b""), CorruptSourceError, "is not a whole safetensors file"),
    "weights with a huge header": (
        write("model.safetensors", b"\xff" * 7 + b"\x7f" + b"{}"),
        CorruptSourceError,
        "is not a whole safetensors file",
    ),
    "weights that are a pickle": (
        write("model.safetensors", pickle.dumps({"w": 1})),
        CorruptSourceError,
        "is not a whole safetensors file",
    ),
    "a missing shard": (index({"w": "model-00001-of-00001.safetensors"}), CorruptSourceError, "is missing"),
    "an index without a map": (index(None), CorruptSourceError, "has no weight_map"),
    "an empty index": (index({}), CorruptSourceError, "has no weight_map"),
    "a shard in the parent": (index({"w": "../outside.safetensors"}), UnsafeSourceError, "no safetensors file of this"),
    "a shard at an absolute path": (index({"w": "/outside.safetensors"}), UnsafeSourceError, "no safetensors file of"),
    "a shard that is the parent": (index({"w": ".."}), UnsafeSourceError, "no safetensors file of this"),
    "a shard with a backslash": (index({"w": "..\\x.safetensors"}), UnsafeSourceError, "no safetensors file of this"),
    "a shard with a NUL": (index({"w": "a\0.safetensors"}), UnsafeSourceError, "no safetensors file of this"),
    "a shard that is a number": (index({"w": 3}), UnsafeSourceError, "no safetensors file of this"),
    "a shard that is a pickle": (pickle_shard, UnsafeSourceError, "no safetensors file of this"),
    "pickled weights": (pickled("pytorch_model.bin"), UnsafeSourceError, "only in a pickle format"),
    "pickled weights of another name": (pickled("weights.ckpt"), UnsafeSourceError, "only in a pickle format"),
    "code of its own": (
        edit_config(auto_map={"AutoModel": "modeling.Evil"}),
        UnsupportedModelError,
        "needs code from its own repository",
    ),
    "a tokenizer with code of its own": (
        write("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}}'),
        UnsupportedModelError,
        "needs code from its own repository",
    ),
    "a tokenizer configuration that is not JSON": (
        write("tokenizer_config.json", "{"),
        CorruptSourceError,
        "is not readable JSON",
    ),
    "weights elsewhere": (
        edit_config(transformers_weights="../outside.safetensors"),
        UnsupportedModelError,
        "from another file",
    ),
    "an adapter": (write("adapter_config.json", "{}"), UnsupportedModelError, "is an adapter to another model"),
    "another architecture": (edit_config(model_type="gpt2"), UnsupportedModelError, "architecture is not supported"),
    "no architecture": (edit_config(model_type=None), UnsupportedModelError, "architecture is not supported"),
    "a decoder": (edit_config(is_decoder=True), UnsupportedModelError, "configured as a decoder"),
    "unknown modules": (
        write("modules.json", '[{"type": "evil.Transformer", "path": ""}]'),
        UnsupportedModelError,
        "modules are not supported",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_broken_source_is_refused_and_nothing_is_written(
    source: Path, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, kind, message = CASES[case]
    change(source)
    with pytest.raises(kind, match=message) as caught:
        plan_task(locate(str(source)), None)
    assert type(caught.value) is kind
    assert caught.value.where
    assert caught.value.expected or caught.value.found or caught.value.hint or "decoder" in message
    for extra in ([], ["--dry-run"], ["--json"]):
        out = tmp_path / "out"
        line = ["package", str(source), "--name", "a", "--version", "1", "--out", str(out), *extra]
        done = CliRunner().invoke(app, line)
        assert done.exit_code == 3, (done.stdout, done.stderr, done.exception)
        assert message in done.stderr + done.stdout
        assert not out.exists()
    assert not (source / "exploded").exists(), "the pickle was opened"


def test_the_bomb_of_these_tests_goes_off_when_it_is_read(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "exploded")))
    assert (tmp_path / "exploded").is_dir()


def test_pickles_beside_safe_weights_are_left_alone(source: Path) -> None:
    (source / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(source / "exploded")))
    assert locate(str(source)).weights == ("model.safetensors",)
    assert not (source / "exploded").exists()


def test_a_refused_pickle_says_how_to_convert_it(source: Path) -> None:
    pickled("pytorch_model.bin")(source)
    with pytest.raises(UnsafeSourceError) as caught:
        locate(str(source))
    assert caught.value.found == "pytorch_model.bin"
    assert "safetensors" in (caught.value.hint or "")


@pytest.mark.parametrize("form", ["plain", "trailing slash", "relative", "a link"])
def test_a_directory_is_found_however_it_is_spelled(
    source: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(source)
    spelled = {"plain": str(source), "trailing slash": f"{source}/", "relative": "./model", "a link": "link"}[form]
    found = locate(spelled)
    assert (found.path, found.identity, found.revision) == (source.resolve(), "model", None)


@pytest.mark.parametrize(
    "name",
    ["", " ", "/no/such/dir", "./none", "~nobody-of-that-name/x", "x" * 5000, "a/b/c", "a b", "a\0b", "../..x", "-x"],
    ids=repr,
)
def test_a_name_that_is_neither_a_directory_nor_a_hub_id(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceNotFoundError) as caught:
        locate(name)
    assert len(caught.value.where or "") < 5100
    assert caught.value.hint or caught.value.expected


def test_a_file_is_no_source_and_the_message_says_what_is(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    with pytest.raises(UnsupportedModelError) as caught:
        locate(str(tmp_path / "m.onnx"))
    assert "directory" in (caught.value.expected or "")


def test_a_fifo_is_no_source_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError):
        locate(str(tmp_path / "pipe"))


def test_shards_that_the_index_names_are_all_checked(source: Path) -> None:
    (source / "model.safetensors").rename(source / "model-00001-of-00002.safetensors")
    (source / "model-00002-of-00002.safetensors").write_bytes(b"short")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(CorruptSourceError, match="is not a whole safetensors file") as caught:
        locate(str(source))
    assert (caught.value.where or "").endswith("model-00002-of-00002.safetensors")
    save_file({"b": np.zeros(1, np.float32)}, source / "model-00002-of-00002.safetensors")
    assert locate(str(source)).weights == tuple(shards.values())


def test_the_fingerprint_covers_every_file_that_is_read(source: Path) -> None:
    (source / "modules.json").write_text("[]")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    (source / "2_Dense").mkdir()
    (source / "2_Dense" / "config.json").write_text("{}")
    (source / "2_Dense" / "model.safetensors").write_bytes(b"x")
    (source / "tokenizer.model").write_bytes(b"x")
    (source / "merges.txt").write_bytes(b"x")
    (source / "README.md").write_text("not read")
    files = locate(str(source)).fingerprint()["files"]
    assert isinstance(files, dict)
    assert set(files) == {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "modules.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "tokenizer.model",
        "merges.txt",
    }
