"""`edgeonnx package` for models that generate text: a Llama, which ORT GenAI's builder exports, and a GPT-2, which it
does not know. Their bundles verify, repeat byte for byte, and open in ORT GenAI itself.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from tokenizers import Tokenizer

from edgeonnx.bundle import open_bundle
from edgeonnx.errors import UsageError
from edgeonnx.model.decoder import open_decoder
from edgeonnx.pipeline.plan import plan
from edgeonnx.pipeline.recipe import PackageRequest
from edgeonnx.pipeline.run import PackageResult, package
from edgeonnx.pipeline.verify import verify
from edgeonnx.spec.manifest import Task
from tests.support.agent import Agent
from tests.support.cli import edgeonnx
from tests.support.decoder_sources import save_gpt2, save_llama
from tests.support.decoders import END_OF_TURN, TEMPLATE, VOCABULARY

FREE = {"top1": 0.0, "kl_mean": 100.0, "perplexity_ratio": 100.0}
"""No bound on what random weights lose; invariance stays asked for."""
ANSWER = 24


def request(source: Path, out: Path, **changes: Any) -> PackageRequest:
    fields: dict[str, Any] = {"source": str(source), "name": "m", "version": "1", "out": out, "thresholds": FREE}
    return PackageRequest(**{**fields, **changes})


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {"llama": save_llama(folder / "llama"), "gpt2": save_gpt2(folder / "gpt2")}


@pytest.fixture(scope="module")
def results(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, PackageResult]:
    folder = tmp_path_factory.mktemp("bundles")
    lengths = {"llama": 500, "gpt2": None}
    return {name: package(request(source, folder / name, max_length=lengths[name])) for name, source in sources.items()}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_bundle_holds_what_a_device_needs(results: dict[str, PackageResult], family: str) -> None:
    bundle = open_bundle(results[family].path)
    generation = bundle.manifest.generation
    assert bundle.manifest.task is Task.TEXT_GENERATION
    assert generation is not None
    assert (generation.cache.layers, generation.context_length) == (2, 500 if family == "llama" else 512)
    assert bundle.manifest.processing.max_length == generation.context_length
    assert generation.stop_ids == (VOCABULARY[END_OF_TURN],)
    assert generation.special_tokens["eos_token"] == END_OF_TURN
    assert bundle.chat_template() == TEMPLATE
    component = bundle.manifest.entry_component
    assert [variant.name for variant in component.variants] == ["cpu-int4", "cpu-int8", "cpu-fp32"]
    assert [spec.name for spec in component.signature.inputs] == ["input_ids", "attention_mask"]
    assert [(spec.name, spec.shape) for spec in component.signature.outputs] == [
        ("logits", ("batch", 1, len(VOCABULARY)))
    ]
    evidence = results[family].evidence
    positions: Any = evidence.parity["positions"]
    assert set(positions) == {"alone", "padded", "one by one", "in pieces", "side by side", "long row"}
    assert positions["one by one"] == 64
    assert evidence.parity["greedy_tokens"] == 3 * 64
    assert evidence.variants["cpu-fp32"].fidelity["top1"] == 1.0
    assert evidence.texts["positions"] >= 2000  # type: ignore[operator]
    sizes = {name: found.tensor_bytes for name, found in evidence.variants.items()}
    assert sizes["cpu-int4"] < sizes["cpu-int8"] < sizes["cpu-fp32"]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_it_verifies_and_says_so_at_the_command_line(results: dict[str, PackageResult], family: str) -> None:
    report = verify(results[family].path)
    assert [item.variant for item in report.replays] == ["cpu-int4", "cpu-int8", "cpu-fp32"]
    assert report.replays[-1].comparison.scaled_diff < 1e-4


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("variant", ["cpu-int8", "cpu-fp32"])
def test_ort_genai_opens_a_variant_and_writes_the_same(
    results: dict[str, PackageResult], family: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    og = pytest.importorskip("onnxruntime_genai")
    bundle = open_bundle(results[family].path)
    monkeypatch.chdir(bundle.root.parent)  # the tensors are found from the file, wherever one works
    prompt = [int(token) for token in bundle.golden().inputs["input_ids"][0, :8]]
    model = og.Model(str(bundle.root / "decoder" / variant))
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, max_length=len(prompt) + ANSWER, min_length=len(prompt) + ANSWER)
    generator = og.Generator(model, parameters)
    generator.append_tokens(prompt)
    for _ in range(ANSWER):
        generator.generate_next_token()
    found = [int(token) for token in generator.get_sequence(0)][len(prompt) :]
    assert found == _greedy(bundle, variant, prompt)


def _greedy(bundle: Any, name: str, prompt: list[int]) -> list[int]:
    """What our own runs write; the stop token is never taken, as ORT GenAI does not take it before `min_length`."""
    component, generation = bundle.manifest.entry_component, bundle.manifest.generation
    variant = next(item for item in component.variants if item.name == name)
    decoder = open_decoder(
        bundle.model_path(component.name, variant), bundle.tensors_path(variant), generation.cache, threads=1
    )
    decoder.reserve(1, len(prompt) + ANSWER)
    logits, tokens = decoder.extend(0, prompt, 0)[-1], []
    for place in range(ANSWER):
        logits[list(generation.stop_ids)] = -np.inf
        tokens.append(int(logits.argmax()))
        logits = decoder.step(np.array(tokens[-1:]), np.array([len(prompt) + place]))[0]
    return tokens


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_an_agent_streams_the_sources_own_answer(
    sources: dict[str, Path], results: dict[str, PackageResult], family: str
) -> None:
    import torch
    import transformers

    bundle = open_bundle(results[family].path)
    prompt = [int(token) for token in bundle.golden().inputs["input_ids"][0, :8]]
    model = transformers.AutoModelForCausalLM.from_pretrained(sources[family])
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(ANSWER):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    expected = Tokenizer.from_buffer(bundle.tokenizer_json()).decode(ids[0, len(prompt) :].tolist())
    with (
        Agent(bundle=bundle.root, arguments=("--variant", "cpu-fp32")) as agent,
        openai.OpenAI(base_url=f"{agent.url}/v1", api_key="none") as client,
    ):
        stream = client.completions.create(
            model="m", prompt=prompt, max_tokens=ANSWER, temperature=0, stream=True, extra_body={"ignore_eos": True}
        )
        assert "".join(chunk.choices[0].text for chunk in stream) == expected


def test_two_builds_give_the_same_bytes(
    sources: dict[str, Path], results: dict[str, PackageResult], tmp_path: Path
) -> None:
    moved = shutil.copytree(sources["gpt2"], tmp_path / "elsewhere" / "gpt2")
    again = package(request(moved, tmp_path / "out"))
    assert again.evidence.to_dict() == results["gpt2"].evidence.to_dict()
    assert again.digest == results["gpt2"].digest


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"base": Path("there")}, "--base"),
        ({"targets": ("tensorrt",)}, None),
        ({"variants": ("cpu-int8-avx2",)}, None),
        ({"thresholds": {"cosine_min": 0.5}}, "thresholds"),
    ],
)
def test_what_makes_no_sense_for_a_decoder_is_refused_early(
    sources: dict[str, Path], tmp_path: Path, changes: dict[str, Any], where: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        package(request(sources["gpt2"], tmp_path / "out", **changes))
    assert caught.value.where == where
    assert not (tmp_path / "out").exists()


def test_the_plan_is_that_of_a_decoder(sources: dict[str, Path], tmp_path: Path) -> None:
    planned = plan(request(sources["llama"], tmp_path))
    assert planned.facts()["task"] == "text-generation"
    assert planned.facts()["variants"] == "cpu-int4, cpu-int8, cpu-fp32"
    assert "caches" in dict(planned.stages)["export"]
    assert list(tmp_path.iterdir()) == []


def test_report_and_inspection_speak_of_decoders(results: dict[str, PackageResult]) -> None:
    path = str(results["llama"].path)
    report = edgeonnx("report", path).stdout
    assert "tokens/s" in report
    assert "worst positions" in report
    assert "texts/s" not in report
    inspection = edgeonnx("inspect", path).stdout
    assert "500 tokens, prompt and answer together" in inspection
    assert "template of the model" in inspection
    page = (results["llama"].path / "report.html").read_text(encoding="utf-8")
    assert "tokens per second" in page
    assert "Worst positions" in page
    assert "tokenizer and chat template" in page
    document = json.loads(edgeonnx("report", path, "--json").stdout)
    assert document["timings"]["graphs"]["cpu-fp32"]["tokens_per_second"] > 0
