"""`evidence.json`: what is written is read back, the older form is read, and each broken field is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from edgeonnx.errors import EdgeOnnxError, ManifestError, SchemaVersionError
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.evidence import Evidence, NodeCost, SearchPoint, VariantEvidence, WorstText
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.report import Threshold, judge

FIGURES = {"cosine_mean": 0.9991, "cosine_min": 0.9908}


def variant() -> VariantEvidence:
    return VariantEvidence(
        precision="int8",
        measured_on="CPUExecutionProvider",
        texts=5000,
        fidelity=FIGURES,
        invariance={"cosine_min": 1.0},
        gate=judge(
            FIGURES, [Threshold(metric="cosine_mean", at_least=0.999), Threshold(metric="cosine_min", at_least=0.995)]
        ),
        tensor_bytes=23_000_000,
        operators={"MatMulInteger": 36, "com.microsoft.FusedMatMul": 1},
        loaded={"MatMulIntegerToFloat": 36},
        quantized=35,
        kept=("encoder.layer.0.output.dense",),
        worst=(WorstText(text="Sooo SAD \u2026", tokens=7, score=0.9908),),
        sensitivity=(NodeCost(node="encoder.layer.0.output.dense", cost=0.004), NodeCost(node="pooler", cost=0.0)),
        search=(
            SearchPoint(name="int8/0", kept=0, metrics=FIGURES, passed=False),
            SearchPoint(name="int8/1", kept=1, metrics={}, passed=True, chosen=True),
        ),
    )


def evidence() -> Evidence:
    return Evidence(
        source={"identity": "all-MiniLM-L6-v2"},
        tools={"onnxruntime": "1.32.0"},
        parity={"texts": 64},
        texts={"origin": "shipped", "evaluated": 5000},
        variants={"cpu-int8": variant()},
    )


def read(document: dict[str, Any]) -> Evidence:
    return Evidence.from_dict(parse_document(canonical_json(document), "evidence.json"))


def document() -> dict[str, Any]:
    return copy.deepcopy(evidence().to_dict())


def test_what_is_written_is_read_back_in_its_order() -> None:
    assert read(document()) == evidence()
    assert list(read(document()).variants["cpu-int8"].operators) == sorted(variant().operators)


def test_the_verdict_is_that_of_the_gate() -> None:
    gate = read(document()).variants["cpu-int8"].gate
    assert not gate.passed
    assert gate.failures == ("cosine_min >= 0.995 was asked for, measured 0.9908",)


def test_evidence_without_variants_is_read_as_older_releases_wrote_it() -> None:
    old = document()
    del old["texts"]
    del old["variants"]
    old["schema_version"] = "1.0"
    found = read(old)
    assert found.variants == {}
    assert found.texts == {}
    assert found.parity == {"texts": 64}


def test_fields_of_a_newer_minor_version_are_ignored() -> None:
    newer = document()
    newer["schema_version"] = "1.9"
    newer["of_a_later_release"] = 1
    newer["variants"]["cpu-int8"]["of_a_later_release"] = 1
    newer["variants"]["cpu-int8"]["worst"][0]["of_a_later_release"] = 1
    assert read(newer) == evidence()


def first(d: dict[str, Any]) -> dict[str, Any]:
    return d["variants"]["cpu-int8"]  # type: ignore[no-any-return]


AT = "variants.cpu-int8"
BROKEN: dict[str, tuple[Callable[[dict[str, Any]], Any], type[EdgeOnnxError], str]] = {
    "another major schema": (lambda d: d.update(schema_version="2.0"), SchemaVersionError, "schema_version"),
    "variants as a list": (lambda d: d.update(variants=[]), ManifestError, "variants"),
    "variants that are null": (lambda d: d.update(variants=None), ManifestError, "variants"),
    "a tool without a version": (lambda d: d["tools"].update(onnx=1), ManifestError, "tools.onnx"),
    "an unknown field": (lambda d: first(d).update(x=1), ManifestError, f"{AT}.x"),
    "no precision": (lambda d: first(d).pop("precision"), ManifestError, AT),
    "a figure in words": (lambda d: first(d)["fidelity"].update(a="1"), ManifestError, f"{AT}.fidelity.a"),
    "a figure that is true": (lambda d: first(d)["invariance"].update(a=True), ManifestError, f"{AT}.invariance.a"),
    "half an operator": (lambda d: first(d)["operators"].update(Add=0.5), ManifestError, f"{AT}.operators.Add"),
    "operators below zero": (lambda d: first(d)["loaded"].update(Add=-1), ManifestError, f"{AT}.loaded.Add"),
    "a name that is none": (lambda d: first(d).update(kept=[1]), ManifestError, f"{AT}.kept[0]"),
    "a gate without a value": (lambda d: first(d)["gate"][1].pop("measured"), ManifestError, f"{AT}.gate[1]"),
    "a threshold without a bound": (
        lambda d: first(d)["gate"][0].update(threshold={"metric": "m"}),
        ManifestError,
        f"{AT}.gate[0].threshold",
    ),
    "a text that is none": (lambda d: first(d)["worst"][0].update(text=1), ManifestError, f"{AT}.worst[0].text"),
    "an unknown field of a text": (lambda d: first(d)["worst"][0].update(x=1), ManifestError, f"{AT}.worst[0].x"),
    "a cost in words": (
        lambda d: first(d)["sensitivity"][1].update(cost="0"),
        ManifestError,
        f"{AT}.sensitivity[1].cost",
    ),
    "a candidate that passed by 1": (
        lambda d: first(d)["search"][0].update(passed=1),
        ManifestError,
        f"{AT}.search[0].passed",
    ),
    "a candidate that kept less than nothing": (
        lambda d: first(d)["search"][1].update(kept=-1),
        ManifestError,
        f"{AT}.search[1].kept",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_evidence_names_the_field(case: str) -> None:
    change, kind, field = BROKEN[case]
    broken = document()
    change(broken)
    with pytest.raises(kind) as caught:
        read(broken)
    assert caught.value.where == f"evidence.json: {field}"


def test_equal_evidence_gives_equal_bytes_whatever_the_order_of_making() -> None:
    made = evidence().to_dict()
    turned = dict(reversed(made.items()))
    assert canonical_json(turned) == canonical_json(made)
