"""Thresholds and verdicts; evidence is read back as it was written."""

from __future__ import annotations

import math

import pytest

from edgeonnx.errors import ManifestError, SchemaVersionError
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.evidence import Evidence
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.report import Threshold, judge

AT_MOST = Threshold(metric="diff", at_most=0.5)
AT_LEAST = Threshold(metric="cosine", at_least=0.9)


@pytest.mark.parametrize(
    ("threshold", "value", "passes"),
    [
        (AT_MOST, 0.5, True),
        (AT_MOST, 0.5000001, False),
        (AT_MOST, -math.inf, True),
        (AT_MOST, math.nan, False),
        (AT_LEAST, 0.9, True),
        (AT_LEAST, 0.8999, False),
        (AT_LEAST, math.nan, False),
        (Threshold(metric="m", at_least=0.0), -1e-9, False),
        (Threshold(metric="m", at_most=0.0), 0.0, True),
    ],
)
def test_bounds_are_inclusive_and_nan_never_passes(threshold: Threshold, value: float, passes: bool) -> None:
    assert threshold.passes(value) is passes


def test_a_threshold_has_exactly_one_bound() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Threshold(metric="m")
    with pytest.raises(ValueError, match="exactly one"):
        Threshold(metric="m", at_most=1, at_least=0)


def test_a_verdict_says_what_failed_and_by_how_much() -> None:
    verdict = judge({"diff": 0.75, "cosine": 0.99}, [AT_MOST, AT_LEAST])
    assert not verdict.passed
    assert verdict.failures == ("diff <= 0.5 was asked for, measured 0.75",)


def test_a_metric_that_was_not_measured_fails() -> None:
    verdict = judge({}, [AT_LEAST])
    assert verdict.failures == ("cosine >= 0.9 was asked for, measured nan",)


def test_all_kept_passes() -> None:
    assert judge({"diff": 0.1, "cosine": 1.0}, [AT_MOST, AT_LEAST]).passed


@pytest.mark.parametrize("threshold", [AT_MOST, AT_LEAST, Threshold(metric="m", at_least=0.0)])
def test_thresholds_are_read_back(threshold: Threshold) -> None:
    assert Threshold.from_dict(parse_document(canonical_json(threshold.to_dict()), "t.json")) == threshold


def test_evidence_is_read_back() -> None:
    evidence = Evidence(
        source={"identity": "x"}, tools={"onnx": "1"}, tokenizer={"a": 1}, parity={"b": 0.5}, graph={"c": []}
    )
    assert Evidence.from_dict(parse_document(canonical_json(evidence.to_dict()), "e.json")) == evidence


@pytest.mark.parametrize(
    ("change", "kind", "where"),
    [
        ({"schema_version": "2.0"}, SchemaVersionError, "e.json: schema_version"),
        ({"tools": {"onnx": 1}}, ManifestError, "e.json: tools.onnx"),
        ({"parity": []}, ManifestError, "e.json: parity"),
    ],
)
def test_broken_evidence_names_the_field(change: dict[str, object], kind: type[Exception], where: str) -> None:
    document = {**Evidence(source={}, tools={}).to_dict(), **change}
    with pytest.raises(kind) as caught:
        Evidence.from_dict(parse_document(canonical_json(document), "e.json"))
    assert getattr(caught.value, "where", None) == where
