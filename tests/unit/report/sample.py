"""A report such as a build of MiniLM gives: made-up evidence with figures of the right size."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from edgeonnx.report.content import Report
from edgeonnx.spec.contents import Contents, FileEntry
from edgeonnx.spec.evidence import Evidence, NodeCost, SearchPoint, VariantEvidence, WorstText
from edgeonnx.spec.generation import CacheShape, Generation
from edgeonnx.spec.manifest import Component, Manifest, Requirements, Task, TextProcessing, Variant
from edgeonnx.spec.report import Threshold, Verdict
from edgeonnx.spec.tensor import DType, ModelSignature, TensorSpec
from edgeonnx.spec.timings import DecodingTiming, Timing, Timings

PARTS = ("attention.self.query+key+value", "attention.output.dense", "intermediate.dense", "output.dense")
KEPT = ("encoder.layer.5.output.dense", "encoder.layer.0.output.dense")
WORST = (
    ("1,284.50 / 17:42 / 0x7F", 14, 0.990512),
    ('<script>alert(1)</script> & "quotes"', 13, 0.991),
    ("colour \x1b[31mred\x1b[0m, bell \x07, direction \u202eoverride", 17, 0.99187),
    ("Der Zug nach Süden fährt heute von Gleis 14 ab.", 19, 0.992204),
    ("電車は遅れています。", 11, 0.992951),
)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def asset(text: str) -> str:
    return f"sha256:{digest(text)}"


def variant(name: str, precision: str, memory: int, sets: tuple[str, ...] = ()) -> Variant:
    return Variant(
        name=name,
        device="cpu",
        model_file="model.onnx",
        tensors=asset(name),
        precision=precision,
        requirements=Requirements(provider="CPUExecutionProvider", instruction_sets=sets, memory_bytes=memory),
        golden=(Threshold(metric="min_cosine", at_least=0.99),),
        recipe={"precision": precision, "opset": 23, "exporter": "torch.onnx.export(dynamo=True)"},
    )


def manifest() -> Manifest:
    ports = (TensorSpec(name="input_ids", dtype=DType.INT64, shape=("batch", "sequence")),)
    outputs = (TensorSpec(name="sentence_embedding", dtype=DType.FLOAT, shape=("batch", 384)),)
    variants = (
        variant("cpu-int8", "int8", 26_412_032, ("avx512_vnni",)),
        variant("cpu-fp32", "fp32", 90_265_600),
    )
    component = Component(name="encoder", signature=ModelSignature(inputs=ports, outputs=outputs), variants=variants)
    return Manifest(
        name="minilm",
        version="1.0.0",
        task=Task.EMBEDDING,
        components={"encoder": component},
        entry="encoder",
        processing=TextProcessing(
            tokenizer=f"{asset('tokenizer')}/tokenizer.json", backend="wordpiece", max_length=256, pad_id=0
        ),
        golden=asset("golden"),
    )


def contents() -> Contents:
    def entry(path: str, size: int, content: str) -> FileEntry:
        return FileEntry(path=path, size=size, sha256=digest(content))

    def tensors(name: str, sizes: dict[str, int]) -> list[FileEntry]:
        folder = f"shared_assets/sha256-{digest(name)}"
        return [entry(f"{folder}/{digest(content)}", size, content) for content, size in sizes.items()]

    return Contents.of(
        [
            *tensors("cpu-fp32", {"words": 46_881_792, "layers": 42_597_376, "positions": 786_432}),
            *tensors("cpu-int8", {"words8": 11_720_448, "layers8": 13_905_152, "positions": 786_432}),
            entry("encoder/cpu-fp32/model.onnx", 81_204, "graph32"),
            entry("encoder/cpu-int8/model.onnx", 164_377, "graph8"),
            entry("encoder/component.json", 3_120, "component"),
            entry(f"shared_assets/sha256-{digest('tokenizer')}/tokenizer.json", 466_081, "tokenizer.json"),
            entry(f"shared_assets/sha256-{digest('golden')}/inputs.npy", 46_512, "golden inputs"),
            entry("evidence.json", 11_930, "evidence"),
            entry("manifest.json", 1_044, "manifest"),
        ]
    )


def sensitivity() -> tuple[NodeCost, ...]:
    costs = [
        NodeCost(
            node=f"encoder.layer.{layer}.{part}", cost=round(4.1e-4 / (1 + 0.31 * (3 * layer + 5 * index) % 7.3), 9)
        )
        for layer in range(6)
        for index, part in enumerate(PARTS)
        if f"encoder.layer.{layer}.{part}" not in KEPT
    ]
    costs += [NodeCost(node=KEPT[0], cost=1.32e-3), NodeCost(node=KEPT[1], cost=8.7e-4)]
    costs += [NodeCost(node="embeddings.word_embeddings", cost=2.4e-5), NodeCost(node="pooler.dense", cost=0.0)]
    return tuple(sorted(costs, key=lambda item: -item.cost))


def search() -> tuple[SearchPoint, ...]:
    def point(name: str, kept: int, mean: float, low: float, *, passed: bool, chosen: bool = False) -> SearchPoint:
        metrics = {"cosine_mean": mean, "cosine_min": low, "invariance_min": 1.0}
        return SearchPoint(name=name, kept=kept, metrics=metrics, passed=passed, chosen=chosen)

    return (
        point("rowwise", 0, 0.996512, 0.961204, passed=False),
        point("rowwise, alpha 0.50", 0, 0.998204, 0.984101, passed=False),
        point("rowwise, alpha 0.65", 0, 0.998931, 0.988744, passed=False),
        point("rowwise, alpha 0.65, 2 kept", 2, 0.999127, 0.990512, passed=True, chosen=True),
        point("rowwise, alpha 0.65, 4 kept", 4, 0.999302, 0.991877, passed=True),
        point("rowwise, alpha 0.65, 8 kept", 8, 0.999511, 0.993004, passed=True),
        point("rowwise, alpha 0.80", 0, 0.998502, 0.982207, passed=False),
    )


def int8_evidence() -> VariantEvidence:
    fidelity = {"cosine_mean": 0.999127, "cosine_p1": 0.996804, "cosine_min": 0.990512, "rank_correlation": 0.998731}
    invariance = {"invariance_min": 0.9999998, "invariance_diff": 3.1e-7}
    bounds = (
        (Threshold(metric="cosine_mean", at_least=0.999), fidelity["cosine_mean"]),
        (Threshold(metric="cosine_min", at_least=0.99), fidelity["cosine_min"]),
        (Threshold(metric="invariance_min", at_least=0.9999), invariance["invariance_min"]),
    )
    return VariantEvidence(
        precision="int8",
        measured_on="CPUExecutionProvider",
        texts=5000,
        fidelity=fidelity,
        invariance=invariance,
        gate=Verdict(judged=bounds),
        tensor_bytes=26_412_032,
        operators={
            "Mul": 98, "Cast": 61, "MatMulInteger": 36, "Abs": 24, "ReduceMax": 24, "Add": 51, "Gelu": 6,
            "Attention": 6, "LayerNormalization": 13, "Gather": 4, "MatMul": 2, "Div": 24,
        },
        loaded={
            "Mul": 61, "Cast": 37, "MatMulInteger": 12, "Abs": 24, "ReduceMax": 24, "Add": 14, "Gather": 4,
            "Attention": 6, "LayerNormalization": 1, "MatMul": 2, "Div": 24,
            "com.microsoft.MatMulIntegerToFloat": 24, "com.microsoft.SkipLayerNormalization": 12,
            "com.microsoft.BiasGelu": 6,
        },
        quantized=24,
        kept=KEPT,
        worst=tuple(WorstText(text=text, tokens=tokens, score=score) for text, tokens, score in WORST),
        sensitivity=sensitivity(),
        search=search(),
    )  # fmt: skip


def fp32_evidence() -> VariantEvidence:
    fidelity = {"cosine_mean": 1.0, "cosine_p1": 1.0, "cosine_min": 0.9999999, "rank_correlation": 1.0}
    return VariantEvidence(
        precision="fp32",
        measured_on="CPUExecutionProvider",
        texts=5000,
        fidelity=fidelity,
        invariance={"invariance_min": 0.9999999, "invariance_diff": 2.8e-7},
        gate=Verdict(judged=((Threshold(metric="cosine_min", at_least=0.9999), 0.9999999),)),
        tensor_bytes=90_265_600,
        operators={"MatMul": 38, "Add": 75, "Gelu": 6, "Attention": 6, "LayerNormalization": 13, "Gather": 4},
        loaded={
            "MatMul": 38, "Add": 20, "Attention": 6, "LayerNormalization": 1, "Gather": 4,
            "com.microsoft.SkipLayerNormalization": 12, "com.microsoft.BiasGelu": 6,
        },
    )  # fmt: skip


def timing(texts_per_second: float) -> Timing:
    return Timing(
        threads=1,
        texts=5000,
        tokens=125_000,
        texts_per_second=texts_per_second,
        tokens_per_second=texts_per_second * 25,
        latency_ms=1000 / texts_per_second * 1.21,
        latency_p95_ms=1000 / texts_per_second * 3.37,
    )


def timings() -> Timings:
    speeds = {
        "cpu-int8": 352.4,
        "cpu-fp32": 148.1,
        "rowwise": 371.0,
        "rowwise, alpha 0.50": 364.8,
        "rowwise, alpha 0.65": 365.3,
        "rowwise, alpha 0.65, 4 kept": 338.9,
        "rowwise, alpha 0.65, 8 kept": 304.2,
        "rowwise, alpha 0.80": 363.1,
    }
    return Timings(
        machine={
            "processor": "x86-64, AVX-512 VNNI", "architecture": "x86_64", "cores": "2", "onnxruntime": "1.32.0",
        },
        graphs={name: timing(speed) for name, speed in speeds.items()},
        stages={
            "load": 2.1, "export": 10.4, "check": 0.6, "parity": 9.8, "quantize": 14.2, "evaluate": 31.5, "bundle": 1.3,
        },
    )  # fmt: skip


def evidence() -> Evidence:
    return Evidence(
        source={
            "identity": "sentence-transformers/all-MiniLM-L6-v2",
            "architecture": "BertModel",
            "model_type": "bert",
            "revision": None,
            "files": {name: digest(name) for name in ("config.json", "model.safetensors", "tokenizer.json")},
        },
        tools={"edgeonnx": "0.1.0", "torch": "2.13.0+cpu", "transformers": "5.24.0", "onnxruntime": "1.32.0"},
        tokenizer={"backend": "wordpiece", "mismatches": 0, "reason": None, "texts_compared": 105},
        parity={
            "batches": {"alone": 105, "batch of 32, padded": 4, "batch of 7, padded": 15},
            "max_abs_diff": 2.8e-07, "min_cosine": 1.0, "rows": 416, "texts": 105,
            "reference": "the source model on each text alone, unpadded",
        },
        graph={"nodes": 200, "opset": 23, "tensors": 102, "tensor_bytes": 90_265_600},
        texts={"origin": "texts.txt", "evaluated": 5000, "calibrated": 256, "labelled": 0},
        variants={"cpu-int8": int8_evidence(), "cpu-fp32": fp32_evidence()},
    )  # fmt: skip


def full() -> Report:
    """A report with every part."""
    listed = contents()
    return Report(manifest=manifest(), evidence=evidence(), timings=timings(), contents=listed, digest=listed.digest)


def replaced(report: Report, name: str, **changes: object) -> Report:
    """The report with other evidence of one variant."""
    variants = dict(report.evidence.variants)
    variants[name] = replace(variants[name], **changes)
    return replace(report, evidence=replace(report.evidence, variants=variants))


def with_text(text: str) -> Report:
    """A report in which every text of the evidence, the timings and the manifest is `text`."""
    base = full()
    found = replace(
        int8_evidence(),
        precision=text,
        measured_on=text,
        fidelity={text: 0.999127},
        invariance={text: 1.0},
        gate=Verdict(judged=((Threshold(metric=text, at_least=2.0), 0.999127),)),
        operators={text: 3},
        loaded={text: 2, f"{text}2": 1},
        kept=(text,),
        worst=(WorstText(text=text, tokens=7, score=0.9),),
        sensitivity=(NodeCost(node=text, cost=0.01),),
        search=(SearchPoint(name=text, kept=1, metrics={text: 0.9}, passed=False),),
    )
    needs = Requirements(provider=text, instruction_sets=(text,), memory_bytes=1, unknown=(text,))
    odd = replace(variant("odd", text, 1), name=text, tensors=None, requirements=needs, recipe={text: text})
    component = replace(base.manifest.entry_component, variants=(odd,))
    return Report(
        manifest=replace(
            base.manifest, name=text, version=text, components={"encoder": component}, properties={text: text}
        ),
        evidence=Evidence(
            source={"identity": text, "architecture": [text], text: text, "files": {text: text}},
            tools={text: text, "edgeonnx": text},
            tokenizer={text: {text: text}},
            parity={text: [text]},
            graph={text: text},
            texts={text: text},
            variants={text: found},
        ),
        timings=Timings(machine={text: text}, graphs={text: timing(100.0)}, stages={text: 1.0}),
        contents=base.contents,
        digest=text,
    )


def bare() -> Report:
    """A report of a bundle that knows of no evidence, no timings and no files."""
    return Report(manifest=manifest(), evidence=Evidence(source={}, tools={}))


def decoder() -> Report:
    """A report such as a build of a small language model gives."""
    texts = f"{asset('tokenizer')}"
    tokens = tuple(
        TensorSpec(name=name, dtype=DType.INT64, shape=("batch", axis))
        for name, axis in (("input_ids", "sequence"), ("attention_mask", "total"))
    )
    logits = TensorSpec(name="logits", dtype=DType.FLOAT, shape=("batch", 1, 49152))
    made = replace(
        manifest(),
        name="smol",
        task=Task.TEXT_GENERATION,
        components={
            "decoder": Component(
                name="decoder",
                signature=ModelSignature(inputs=tokens, outputs=(logits,)),
                variants=(variant("cpu-int4", "int4", 86_000_000), variant("cpu-fp32", "fp32", 540_000_000)),
            )
        },
        entry="decoder",
        generation=Generation(
            cache=CacheShape(layers=30, heads=3, head_size=64),
            context_length=8192,
            stop_ids=(2,),
            chat_template=f"{texts}/chat_template.jinja",
        ),
    )
    found = {"cpu-int4": _decoder_evidence("int4", 0.913, 86_000_000), "cpu-fp32": _decoder_evidence("fp32", 1.0, 1)}
    speeds = {"cpu-int4": (180.5, 91.25), "cpu-fp32": (35.25, 210.0)}
    graphs = {
        name: DecodingTiming(threads=2, prompt_tokens=128, new_tokens=64, prompt_ms=prompt, tokens_per_second=rate)
        for name, (rate, prompt) in speeds.items()
    }
    listed = Contents.of(
        [
            FileEntry(path="manifest.json", size=1_000, sha256=digest("m")),
            FileEntry(
                path=f"shared_assets/sha256-{digest('tokenizer')}/tokenizer.json", size=2_000, sha256=digest("t")
            ),
            FileEntry(
                path=f"shared_assets/sha256-{digest('tokenizer')}/chat_template.jinja", size=300, sha256=digest("c")
            ),
        ]
    )
    return Report(
        manifest=made,
        evidence=replace(evidence(), variants=found),
        timings=replace(timings(), graphs=dict(graphs)),
        contents=listed,
        digest=listed.digest,
    )


def _decoder_evidence(precision: str, top1: float, size: int) -> VariantEvidence:
    worst = WorstText(text="The capital of Norway is", tokens=5, score=0.0451, expected=" Oslo", found=' "the')
    return VariantEvidence(
        precision=precision,
        measured_on="CPUExecutionProvider",
        texts=10,
        fidelity={"top1": top1, "kl_mean": 0.0213, "perplexity": 14.2, "perplexity_ratio": 1.013},
        invariance={"invariance_min": 1.0, "invariance_diff": 2e-7},
        gate=Verdict(judged=((Threshold(metric="top1", at_least=0.9), top1),)),
        tensor_bytes=size,
        worst=(worst,),
    )
