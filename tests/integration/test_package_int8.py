"""int8 from the command line: what the evidence says, what the gate refuses, and what the agent serves."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgeonnx.bundle import open_bundle
from edgeonnx.errors import GateError, UsageError
from edgeonnx.pipeline.plan import plan
from edgeonnx.pipeline.recipe import PackageRequest, choose_variants
from edgeonnx.pipeline.run import PackageResult, package
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.numerics import IntegerRange
from tests.support.agent import Agent
from tests.support.cli import edgeonnx
from tests.support.models import tiny_model
from tests.support.packaged import open_packaged

pytestmark = pytest.mark.slow
GROUPS_OF_MINILM = 26
LABELS = ("negative", "positive")
FREE = {"cosine_mean": 0.0, "cosine_p1": 0.0, "cosine_min": 0.0, "rank_correlation": 0.0}
FROZEN = "embeddings"
UNSEALED = {"report.html", "timings.json", "contents.json"}


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _locations(bundle: Path, variant: str) -> dict[str, str]:
    """The file of each external tensor of a variant, by the tensor's name."""
    import onnx

    model = onnx.load(str(bundle / "encoder" / variant / "model.onnx"), load_external_data=False)
    return {
        tensor.name: next(entry.value for entry in tensor.external_data if entry.key == "location")
        for tensor in model.graph.initializer
        if tensor.external_data
    }


class TestMinilm:
    def test_int8_comes_before_fp32(self, minilm_bundle: Path) -> None:
        component = open_bundle(minilm_bundle).manifest.entry_component
        assert [variant.name for variant in component.variants] == ["cpu-int8", "cpu-fp32"]
        first, second = component.variants
        assert first.requirements.integer == IntegerRange(activation_max=255, weight_max=127)
        assert second.requirements.integer is None

    def test_its_tensors_are_a_quarter_and_are_shared(self, minilm_bundle: Path) -> None:
        bundle = open_bundle(minilm_bundle)
        int8, fp32 = bundle.manifest.entry_component.variants
        assert bundle.tensors_path(int8) == bundle.tensors_path(fp32)
        folder = bundle.tensors_path(int8)
        small, large = _locations(minilm_bundle, "cpu-int8"), _locations(minilm_bundle, "cpu-fp32")
        assert sum((folder / name).stat().st_size for name in set(small.values())) <= 27e6
        assert {path.name for path in folder.iterdir()} == {*small.values(), *large.values()}
        norms = [name for name in large if "LayerNorm" in name]
        assert len(norms) >= 26
        assert [name for name in norms if small.get(name) != large[name]] == []

    def test_the_evidence(self, minilm_bundle: Path) -> None:
        evidence = open_bundle(minilm_bundle).evidence()
        int8 = evidence.variants["cpu-int8"]
        assert int8.gate.passed
        assert int8.gate.judged, "no threshold was judged"
        assert int8.fidelity["cosine_mean"] >= 0.998
        assert int8.invariance["invariance_min"] >= 0.9999
        assert evidence.texts["origin"] == "the texts that ship with edgeonnx"
        assert int8.texts == evidence.texts["evaluated"] == 105
        assert len(int8.sensitivity) == int8.quantized == GROUPS_OF_MINILM
        assert int8.kept == ()
        assert int8.loaded["com.microsoft.MatMulIntegerToFloat"] == 36
        assert int8.tensor_bytes <= 27e6

    def test_report_and_timings_stand_beside_what_is_sealed(self, minilm_bundle: Path) -> None:
        sealed = (minilm_bundle / "contents.json").read_text(encoding="utf-8")
        for name in ("report.html", "timings.json"):
            assert (minilm_bundle / name).stat().st_size > 500
            assert name not in sealed
        assert "evidence.json" in sealed
        assert set(_json(minilm_bundle / "timings.json")["graphs"]) >= {"cpu-int8", "cpu-fp32"}

    def test_its_answers_are_near_the_sources_but_not_fp32s(self, minilm_bundle: Path) -> None:
        golden = open_bundle(minilm_bundle).golden()
        found = np.stack(open_packaged(minilm_bundle).answer(golden.texts)["sentence_embedding"])
        cosines = (found * golden.outputs["sentence_embedding"]).sum(axis=1)
        assert 0.99 < cosines.min() < 1 - 1e-6

    def test_an_agent_serves_it_and_says_so(self, minilm_bundle: Path) -> None:
        golden = open_bundle(minilm_bundle).golden()
        with Agent(bundle=minilm_bundle) as agent:
            # A processor without VNNI would take fp32: the build host refuses to make this bundle there.
            assert "cpu-int8" in agent.ready_line
            answer = httpx.post(
                f"{agent.url}/v1/embeddings", json={"model": "minilm", "input": list(golden.texts)}, timeout=30
            )
        found = np.array([item["embedding"] for item in answer.json()["data"]])
        cosines = (found * golden.outputs["sentence_embedding"]).sum(axis=1)
        assert 0.99 < cosines.min() < 1 - 1e-6


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("encoder") / "m", seed=3)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("classifier") / "m"
    return tiny_model(place, task=Task.TEXT_CLASSIFICATION, labels=LABELS, seed=3, num_hidden_layers=1)


def _cli(source: Path, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return edgeonnx("package", str(source), "--name", "m", "--version", "1", "--out", str(out), *arguments, timeout=120)


def _package(source: Path, out: Path, **changes: Any) -> PackageResult:
    return package(PackageRequest(source=str(source), name="m", version="1", out=out, **changes))


def _embedding(source: Path, out: Path, **changes: Any) -> PackageResult:
    return _package(source, out, task=Task.EMBEDDING, **changes)


class TestRefused:
    def test_a_threshold_that_cannot_be_reached(self, encoder: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        bounds = ("--task", "embedding", "--min-cosine", "0.999999", "--search-seconds", "0")
        done = _cli(encoder, out, *bounds)
        assert done.returncode == 8, done.stderr
        assert "cosine_min" in done.stderr
        assert "0.999999" in done.stderr
        assert "tokens" in done.stderr, "the worst texts are shown"
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            (("--max-metric-drop", "0.1"), "metric_drop"),
            (("--target", "phone"), "phone"),
            (("--variant", "cpu-int3"), "cpu-int3"),
        ],
        ids=["a metric that needs labels", "target", "variant"],
    )
    def test_wrong_usage(self, classifier: Path, tmp_path: Path, arguments: Sequence[str], named: str) -> None:
        done = _cli(classifier, tmp_path / "out", *arguments)
        assert done.returncode == 2, done.stderr
        assert named in done.stderr.replace("-drop", "_drop")
        assert list(tmp_path.iterdir()) == []


def _labelled(path: Path) -> Path:
    rows = [{"text": f"sentence number {index} of some length", "label": LABELS[index % 2]} for index in range(40)]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_labels_give_the_metrics_that_need_them(classifier: Path, tmp_path: Path) -> None:
    texts = _labelled(tmp_path / "mine.jsonl")
    result = _package(classifier, tmp_path / "out", texts=texts, thresholds={"metric_drop": 0.5, "agreement": 0.5})
    int8 = result.evidence.variants["cpu-int8"]
    assert 0 <= abs(int8.fidelity["metric_drop"]) <= 0.5
    assert {"metric_drop", "accuracy", "agreement"} <= set(int8.fidelity)
    assert result.evidence.texts["origin"] == "mine.jsonl"
    assert result.evidence.texts["labelled"] == int8.texts == 40


@pytest.fixture(scope="module")
def full_int8(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> PackageResult:
    """Everything quantized, whatever it costs."""
    return _embedding(encoder, tmp_path_factory.mktemp("full"), thresholds=FREE)


def test_a_search_keeps_the_costliest_groups(full_int8: PackageResult, encoder: Path, tmp_path: Path) -> None:
    reached = full_int8.evidence.variants["cpu-int8"]
    assert reached.kept == ()
    # A little above what full int8 reaches.
    bound = 1 - (1 - reached.fidelity["cosine_mean"]) * 0.8
    bounds = {"cosine_mean": bound, "cosine_p1": 0.0, "cosine_min": 0.0, "rank_correlation": 0.0}
    result = _embedding(encoder, tmp_path, thresholds=bounds)
    int8 = result.evidence.variants["cpu-int8"]
    assert 0 < len(int8.kept) < len(int8.sensitivity)
    assert int8.kept == tuple(item.node for item in int8.sensitivity[: len(int8.kept)])
    assert int8.fidelity["cosine_mean"] >= bound > reached.fidelity["cosine_mean"]
    assert len(int8.search) >= 2
    assert not int8.search[0].passed
    assert [point.kept for point in int8.search if point.chosen] == [len(int8.kept)]
    assert int8.quantized == len(int8.sensitivity) - len(int8.kept)
    assert int8.tensor_bytes > reached.tensor_bytes
    with pytest.raises(GateError):
        _embedding(encoder, tmp_path / "none", thresholds=bounds, search_seconds=0)
    assert not (tmp_path / "none").exists() or list((tmp_path / "none").iterdir()) == []


def test_two_builds_have_one_digest_though_they_took_other_times(
    full_int8: PackageResult, encoder: Path, tmp_path: Path
) -> None:
    again = _embedding(encoder, tmp_path, thresholds=FREE)
    assert again.digest == full_int8.digest
    first, second = full_int8.path, again.path
    assert (first / "timings.json").read_bytes() != (second / "timings.json").read_bytes()
    names = {str(path.relative_to(first)) for path in first.rglob("*") if path.is_file()}
    assert names >= UNSEALED
    for name in names - {"report.html", "timings.json"}:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_a_bundle_whose_unsealed_files_are_gone_is_whole(full_int8: PackageResult, tmp_path: Path) -> None:
    copy = tmp_path / "m-1"
    shutil.copytree(full_int8.path, copy)
    for name in ("report.html", "timings.json"):
        (copy / name).unlink()
    assert edgeonnx("verify", str(copy)).returncode == 0


class TestBase:
    """`--base`: a model whose weights moved a little, after a bundle of the model before."""

    def test_a_light_fine_tune_keeps_recipe_scales_and_what_was_frozen(
        self, full_int8: PackageResult, encoder: Path, tmp_path: Path
    ) -> None:
        tuned = _fine_tuned(encoder, tmp_path / "source")
        result = _embedding(tuned, tmp_path / "out", thresholds=FREE, base=full_int8.path)
        base: Any = open_bundle(result.path).evidence().source["base"]
        assert (base["name"], base["version"], base["digest"]) == ("m", "1", full_int8.digest)
        facts = base["variants"]["cpu-int8"]
        assert facts["recipe"] == "recipe and scales of the base kept"
        assert facts["new_weight_scales"] == 0
        assert facts["weight_scales"] > 900, "the vocabulary's entries have scales, too"
        assert 0 < facts["wire_bytes"] < result.evidence.variants["cpu-int8"].tensor_bytes / 4
        for facts in base["variants"].values():
            assert facts["changed"], facts
            assert [name for name in facts["changed"] if FROZEN in name and "LayerNorm" not in name] == []
        assert _decided(result) == _decided(full_int8)

    def test_the_plan_says_what_would_be_kept(self, full_int8: PackageResult, encoder: Path, tmp_path: Path) -> None:
        request = PackageRequest(
            source=str(encoder), name="m", version="2", out=tmp_path, task=Task.EMBEDDING, base=full_int8.path
        )
        facts = plan(request).facts()
        assert facts["base"] == f"m 1, sha256:{full_int8.digest}"
        assert "with migration factors" in facts["cpu-int8 keeps"]
        assert list(tmp_path.iterdir()) == []

    def test_a_base_with_another_task_is_refused_before_the_work(
        self, full_int8: PackageResult, classifier: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(UsageError) as caught:
            _package(classifier, tmp_path / "out", base=full_int8.path)
        assert "task text-classification" in str(caught.value.expected)
        assert "task embedding" in str(caught.value.found)
        assert not (tmp_path / "out").exists()


def _fine_tuned(source: Path, target: Path) -> Path:
    """A copy of a model whose weights moved by up to 0.3 % of themselves, but for the embeddings, which were frozen."""
    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    rng = np.random.default_rng(1)
    for name, array in weights.items():
        if FROZEN not in name:
            weights[name] = (array * rng.uniform(0.997, 1.003, array.shape)).astype(array.dtype)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def _decided(result: PackageResult) -> list[tuple[object, ...]]:
    groups: Any = result.manifest.entry_component.variants[0].recipe["groups"]
    return [(group["group"], group.get("strength"), group.get("zero_point")) for group in groups]


def test_the_default_target_is_the_cpu() -> None:
    assert choose_variants() == ("cpu-int8", "cpu-fp32")
