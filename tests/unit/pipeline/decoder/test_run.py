"""Packaging a decoder, stage by stage, with a source that needs no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgeonnx.bundle import open_bundle
from edgeonnx.errors import GateError, ParityError, UsageError
from edgeonnx.evaluate import decoding
from edgeonnx.pipeline.decoder.run import DecoderJob, package_decoder
from edgeonnx.pipeline.decoder.yardstick import gate_of, read_user_texts
from edgeonnx.pipeline.finish import PackageResult
from edgeonnx.pipeline.progress import Silent, StageTimer
from edgeonnx.pipeline.recipe import DECODERS, FP32, PackageRequest
from tests.support.decoders import TinyDecoder
from tests.support.tiny_source import TinySource

FREE = {"top1": 0.0, "kl_mean": 100.0, "perplexity_ratio": 100.0}
"""No bound on what random weights lose."""


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MIN_ROUNDS", 1)
    monkeypatch.setattr(decoding, "NEW_TOKENS", 2)
    monkeypatch.setattr(decoding.measure_decoding, "__kwdefaults__", {"tokens": 2, "seconds": -1.0, "clock": _clock})


def _clock() -> float:
    return 0.0


def run(source: TinySource, out: Path, **changes: Any) -> PackageResult:
    fields: dict[str, Any] = {"source": "tiny", "name": "m", "version": "1", "out": out, "thresholds": FREE}
    request = PackageRequest(**{**fields, **changes})
    job = DecoderJob(request=request, source=source, user=read_user_texts(request.texts), summary="")  # type: ignore[arg-type]
    return package_decoder(job, StageTimer(progress=Silent()))


@pytest.fixture
def source(tmp_path: Path) -> TinySource:
    return TinySource(tmp_path / "source")


def test_two_builds_give_the_same_bytes_and_all_is_there(source: TinySource, tmp_path: Path) -> None:
    first, second = run(source, tmp_path / "a"), run(source, tmp_path / "b")
    assert first.digest == second.digest
    assert list(first.seconds) == [name for name, _ in DECODERS.stages if name != "load"]
    bundle = open_bundle(first.path)
    assert bundle.chat_template() is not None
    files = {entry.path for entry in bundle.contents.files}
    for name in ("cpu-int4", "cpu-int8", "cpu-fp32"):
        assert {f"decoder/{name}/model.onnx", f"decoder/{name}/genai_config.json"} <= files
    assert bundle.evidence().texts["positions"] >= 2000  # type: ignore[operator]
    json.dumps(first.to_dict(), allow_nan=False)


def test_a_gpu_variant_is_measured_here_and_not_timed(source: TinySource, tmp_path: Path) -> None:
    result = run(source, tmp_path / "out", targets=("cuda",), thresholds={})
    assert list(result.evidence.variants) == ["cuda-fp16", "cpu-fp32"]
    half = result.evidence.variants["cuda-fp16"]
    assert half.measured_on == "CPUExecutionProvider"
    assert 0 < half.fidelity["kl_mean"] < 1e-3
    assert list(result.timings.graphs) == ["cpu-fp32"]


def test_own_texts_are_measured_instead(source: TinySource, tmp_path: Path) -> None:
    texts = tmp_path / "own.txt"
    texts.write_text("the cat and the dog\n" * 3 + "x\n", encoding="utf-8")
    result = run(source, tmp_path / "out", texts=texts, variants=("cpu-fp32",))
    assert result.evidence.texts["origin"] == "own.txt"
    assert (result.evidence.texts["texts"], result.evidence.texts["evaluated"]) == (4, 3)


def test_texts_in_which_nothing_follows_are_refused(source: TinySource, tmp_path: Path) -> None:
    texts = tmp_path / "own.txt"
    texts.write_text("x\ny\n", encoding="utf-8")
    with pytest.raises(UsageError, match="two tokens"):
        run(source, tmp_path / "out", texts=texts, variants=("cpu-fp32",))


def test_a_failed_gate_names_the_worst_positions_and_writes_nothing(source: TinySource, tmp_path: Path) -> None:
    with pytest.raises(GateError) as caught:
        run(source, tmp_path / "out", variants=("cpu-int4",), thresholds={"kl_mean": 0.0})
    error = caught.value
    assert error.where == "cpu-int4"
    assert "kl_mean <= 0" in str(error.expected)
    assert "the source says" in error.details[0]
    assert "--max-kl" in str(error.hint)
    assert list((tmp_path / "out").iterdir()) == []


def test_another_model_s_graph_is_no_export(source: TinySource, tmp_path: Path) -> None:
    other = TinySource(tmp_path / "other", TinyDecoder(seed=1, every_position=True))
    source.export = other.export  # type: ignore[method-assign]
    with pytest.raises(ParityError, match="does not give the source model's logits"):
        run(source, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_labels_are_refused(tmp_path: Path) -> None:
    texts = tmp_path / "own.jsonl"
    texts.write_text('{"text": "the cat", "label": "good"}\n', encoding="utf-8")
    with pytest.raises(UsageError, match="labels"):
        read_user_texts(texts)


def test_overrides_do_not_touch_fp32() -> None:
    bounds = {item.metric: item.at_least for item in gate_of(FP32, {"top1": 0.5})}
    assert bounds["top1"] == 0.999
    bounds = {item.metric: item.at_least for item in gate_of(DECODERS.recipes["cpu-int8"], {"top1": 0.5})}
    assert bounds["top1"] == 0.5


def test_a_metric_of_encoders_is_refused() -> None:
    with pytest.raises(UsageError, match="not measured"):
        gate_of(FP32, {"cosine_min": 0.5})
