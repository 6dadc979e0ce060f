"""The ORT GenAI builder's process: what is told when it fails, and what is done with the graph that it leaves."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeonnx.errors import ExportError, RuntimeUnavailableError
from edgeonnx.export.decoder import builder
from edgeonnx.export.decoder.rotary import RotaryTables
from edgeonnx.model.graph import StoredGraph
from tests.support.decoders import HEAD_SIZE, VOCABULARY, TinyDecoder, write_graph

TINY = TinyDecoder(every_position=True)
PLACES = 40


def tables(width: int = HEAD_SIZE // 2) -> RotaryTables:
    generator = np.random.default_rng(0)
    cosine, sine = generator.standard_normal((2, PLACES, width)).astype(np.float32)
    return RotaryTables(cosine=cosine, sine=sine)


def build(given: RotaryTables) -> StoredGraph:
    return builder.build(Path("source"), given, TINY.cache, ir.DataType.FLOAT, len(VOCABULARY))


def leave(graph: TinyDecoder = TINY) -> Callable[[list[str]], None]:
    """A builder that writes this graph."""

    def run(arguments: list[str]) -> None:
        write_graph(Path(arguments[arguments.index("-o") + 1]), graph)

    return run


@pytest.fixture(autouse=True)
def _scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_program_that_fails_shows_the_end_of_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "PROGRAM", "py_compile")
    with pytest.raises(ExportError) as caught:
        build(tables())
    assert caught.value.found == "exit code 2"
    assert any("error" in line for line in caught.value.details)
    assert len(caught.value.details) <= builder.SHOWN_LINES
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "PROGRAM", "timeit")
    monkeypatch.setattr(builder, "TIMEOUT_SECONDS", 0.5)
    with pytest.raises(ExportError, match="took too long"):
        builder._run(["-n", "1000000000000", "pass"])


def test_the_process_has_no_network_and_nothing_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "probe.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(builder, "PROGRAM", "probe")
    with pytest.raises(ExportError) as caught:
        builder._run([])
    assert any("No module named probe" in line for line in caught.value.details)
    assert builder._environment()["HF_HUB_OFFLINE"] == "1"


def test_a_builder_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RuntimeUnavailableError) as caught:
        builder.builder_version()
    assert caught.value.hint == "install it: pip install onnxruntime-genai"


def test_the_version_of_the_builder_is_evidence() -> None:
    assert builder.builder_version().startswith("onnxruntime-genai ")


def test_the_sources_rotary_tables_take_the_place_of_the_builders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_run", leave())
    given = tables()
    stored = build(given)
    assert {given.cosine.tobytes(), given.sine.tobytes()} <= set(stored.tensors.values())
    assert all(len(data) >= 1024 for data in stored.tensors.values())


def test_tables_of_another_width_are_not_forced_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_run", leave())
    with pytest.raises(ExportError, match="other rotary tables"):
        build(tables(HEAD_SIZE))


def test_a_builder_that_leaves_no_graph_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_run", lambda _: None)
    with pytest.raises(ExportError, match="no graph that can be read"):
        build(tables())


def test_a_graph_of_other_caches_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_run", leave(TinyDecoder(layers=3, every_position=True)))
    with pytest.raises(ExportError, match="other inputs or outputs"):
        build(tables())
    assert list(tmp_path.iterdir()) == []
