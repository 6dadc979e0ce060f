"""The codecs of the metadata: what is written is read back, and nothing but our errors comes out of any JSON."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.evidence import Evidence, NodeCost, SearchPoint, VariantEvidence, WorstText
from edgeonnx.spec.generation import (
    MAX_CONTEXT,
    MAX_HEAD_SIZE,
    MAX_HEADS,
    MAX_LAYERS,
    CacheShape,
    Generation,
    SamplingDefaults,
)
from edgeonnx.spec.manifest import (
    Component,
    Manifest,
    Requirements,
    Task,
    TextProcessing,
    Variant,
)
from edgeonnx.spec.numerics import IntegerRange
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.report import Threshold, Verdict
from edgeonnx.spec.tensor import DType, ModelSignature, TensorSpec
from edgeonnx.spec.timings import Timing, Timings
from tests.support.outcome import refusal

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
SEGMENT = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,6}", fullmatch=True).filter(
    lambda text: (
        text.split(".")[0].lower() not in ("con", "prn", "aux", "nul") and text[:3].lower() not in ("com", "lpt")
    )
)
ASSETS = st.binary(min_size=32, max_size=32).map(lambda data: f"sha256:{data.hex()}")
THRESHOLDS = st.builds(lambda name, bound: Threshold(metric=name, at_most=bound), TEXT, NUMBER) | st.builds(
    lambda name, bound: Threshold(metric=name, at_least=bound), TEXT, NUMBER
)
DIMENSIONS = st.integers(1, 1 << 40) | TEXT.filter(bool)
SPECS = st.builds(
    lambda name, dtype, shape: TensorSpec(name=name, dtype=dtype, shape=tuple(shape)),
    TEXT,
    st.sampled_from(DType),
    st.lists(DIMENSIONS, max_size=4),
)
SIDES = st.lists(SPECS, min_size=1, max_size=3, unique_by=lambda spec: spec.name).map(tuple)
SIGNATURES = st.builds(lambda inputs, outputs: ModelSignature(inputs=inputs, outputs=outputs), SIDES, SIDES)
RANGES = st.builds(
    lambda activation, weight: IntegerRange(activation_max=activation, weight_max=weight),
    st.integers(1, 255),
    st.integers(1, 128),
)
SIZES = st.integers(0, (1 << 31) - 1)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)


FIGURES = st.dictionaries(TEXT, NUMBER, max_size=3)
COUNTS = st.dictionaries(TEXT, SIZES, max_size=3)
MICROSECONDS = st.integers(0, 10**9).map(lambda number: number / 1000)
VARIANT_EVIDENCE = st.builds(
    VariantEvidence,
    precision=TEXT,
    measured_on=TEXT,
    texts=SIZES,
    fidelity=FIGURES,
    invariance=FIGURES,
    gate=st.lists(st.tuples(THRESHOLDS, NUMBER), max_size=2).map(lambda judged: Verdict(judged=tuple(judged))),
    tensor_bytes=SIZES,
    operators=COUNTS,
    loaded=COUNTS,
    quantized=SIZES,
    kept=st.lists(TEXT, max_size=2).map(tuple),
    worst=st.lists(st.builds(WorstText, text=TEXT, tokens=SIZES, score=NUMBER), max_size=2).map(tuple),
    sensitivity=st.lists(st.builds(NodeCost, node=TEXT, cost=NUMBER), max_size=2).map(tuple),
    search=st.lists(
        st.builds(SearchPoint, name=TEXT, kept=SIZES, metrics=FIGURES, passed=st.booleans(), chosen=st.booleans()),
        max_size=2,
    ).map(tuple),
)
TIMINGS = st.builds(
    Timings,
    machine=st.dictionaries(TEXT, TEXT, max_size=2),
    graphs=st.dictionaries(
        TEXT,
        st.builds(
            Timing,
            threads=st.integers(1, 64),
            texts=SIZES,
            tokens=SIZES,
            **dict.fromkeys(Timing.FLOATS, MICROSECONDS),
        ),
        max_size=2,
    ),
    stages=st.dictionaries(TEXT, MICROSECONDS, max_size=2),
)


@st.composite
def variants(draw: st.DrawFn) -> Variant:
    return Variant(
        name=draw(SEGMENT),
        device=draw(TEXT),
        model_file=draw(st.lists(SEGMENT, min_size=1, max_size=3).map("/".join)),
        tensors=draw(st.none() | ASSETS),
        precision=draw(TEXT),
        requirements=Requirements(
            provider=draw(TEXT),
            instruction_sets=tuple(draw(st.lists(TEXT, max_size=2))),
            memory_bytes=draw(SIZES),
            integer=draw(st.none() | RANGES),
        ),
        golden=tuple(draw(st.lists(THRESHOLDS, min_size=1, max_size=2))),
        recipe=draw(OBJECTS),
    )


@st.composite
def generations(draw: st.DrawFn) -> Generation:
    penalty = st.floats(0, 100, exclude_min=True, allow_subnormal=False)
    return Generation(
        cache=CacheShape(
            layers=draw(st.integers(1, MAX_LAYERS)),
            heads=draw(st.integers(1, MAX_HEADS)),
            head_size=draw(st.integers(1, MAX_HEAD_SIZE)),
        ),
        context_length=draw(st.integers(1, MAX_CONTEXT)),
        stop_ids=tuple(draw(st.lists(st.integers(0, (1 << 31) - 1), max_size=3, unique=True))),
        chat_template=draw(st.none() | ASSETS.map(lambda asset: f"{asset}/chat_template.jinja")),
        special_tokens=draw(st.dictionaries(TEXT, TEXT, max_size=2)),
        sampling=SamplingDefaults(
            temperature=draw(st.floats(0, 100, allow_subnormal=False)),
            top_k=draw(SIZES),
            top_p=draw(st.floats(0, 1, exclude_min=True, allow_subnormal=False)),
            repetition_penalty=draw(penalty),
        ),
    )


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = draw(st.lists(SEGMENT, min_size=1, max_size=2, unique=True))
    task = draw(st.sampled_from(Task))
    components = {
        name: Component(
            name=name,
            signature=draw(SIGNATURES),
            variants=tuple(draw(st.lists(variants(), min_size=1, max_size=3, unique_by=lambda item: item.name))),
        )
        for name in names
    }
    return Manifest(
        name=draw(st.from_regex(r"[a-bd-km-oq-z0-9][a-z0-9_-]{0,20}", fullmatch=True))
        .replace("aux", "a")
        .replace("nul", "n"),
        version=draw(st.from_regex(r"[0-9]\.[0-9]\.[0-9](-rc)?", fullmatch=True)),
        task=task,
        components=components,
        entry=draw(st.sampled_from(names)),
        processing=TextProcessing(
            tokenizer=draw(ASSETS) + "/tokenizer.json",
            backend=draw(st.sampled_from(TextProcessing.BACKENDS)),
            max_length=draw(st.integers(1, (1 << 31) - 1)),
            pad_id=draw(SIZES),
            pad_type_id=draw(SIZES),
            prefix=draw(TEXT),
        ),
        golden=draw(ASSETS),
        labels=tuple(draw(st.lists(TEXT, max_size=3))),
        properties=draw(OBJECTS),
        generation=draw(generations()) if task is Task.TEXT_GENERATION else None,
    )


def read(manifest: bytes, components: dict[str, bytes]) -> Manifest:
    root = parse_document(manifest, "manifest.json")
    files = Manifest.component_files(root)
    return Manifest.from_dict(root, {name: parse_document(components[name], file) for name, file in files.items()})


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(manifests())
def test_a_manifest_is_read_back(manifest: Manifest) -> None:
    components = {name: canonical_json(item.to_dict()) for name, item in manifest.components.items()}
    data = canonical_json(manifest.to_dict())
    again = read(data, components)
    assert again == manifest
    assert canonical_json(again.to_dict()) == data


@given(SIGNATURES)
def test_a_signature_is_read_back(signature: ModelSignature) -> None:
    data = canonical_json(signature.to_dict())
    assert ModelSignature.from_dict(parse_document(data, "s.json")) == signature


@given(THRESHOLDS)
def test_a_threshold_is_read_back(threshold: Threshold) -> None:
    assert Threshold.from_dict(parse_document(canonical_json(threshold.to_dict()), "t.json")) == threshold


@given(OBJECTS, st.dictionaries(TEXT, TEXT, max_size=3), OBJECTS)
def test_evidence_is_read_back(source: dict[str, Any], tools: dict[str, str], parity: dict[str, Any]) -> None:
    evidence = Evidence(source=source, tools=tools, parity=parity)
    assert Evidence.from_dict(parse_document(canonical_json(evidence.to_dict()), "e.json")) == evidence


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(OBJECTS, st.dictionaries(TEXT, VARIANT_EVIDENCE, max_size=2))
def test_evidence_of_variants_is_read_back(texts: dict[str, Any], made: dict[str, VariantEvidence]) -> None:
    evidence = Evidence(source={}, tools={}, texts=texts, variants=made)
    assert Evidence.from_dict(parse_document(canonical_json(evidence.to_dict()), "e.json")) == evidence


@given(TIMINGS)
def test_timings_are_read_back(timings: Timings) -> None:
    assert Timings.from_dict(parse_document(canonical_json(timings.to_dict()), "t.json")) == timings


def paths_of(document: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [prefix] if prefix else []
    children = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in children:
        found += paths_of(value, (*prefix, key))
    return found


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(manifests(), JSON, st.booleans(), st.data())
def test_any_value_anywhere_parses_or_is_refused(
    manifest: Manifest, value: Any, remove: bool, data: st.DataObject
) -> None:
    documents = json.loads(
        canonical_json([manifest.to_dict(), {name: item.to_dict() for name, item in manifest.components.items()}])
    )
    path = data.draw(st.sampled_from([path for path in paths_of(documents) if len(path) > 1]))
    target = documents
    for key in path[:-1]:
        target = target[key]
    if remove:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    whole, parts = documents
    contents = {name: canonical_json(parts.get(name, {})) for name in {*parts, *manifest.components}}
    if set(whole.get("components") or {}) <= set(contents):
        error = refusal(lambda: read(canonical_json(whole), contents))
        assert error is None or error.where


@given(JSON)
def test_any_json_as_a_whole_document_parses_or_is_refused(value: Any) -> None:
    node = parse_document(canonical_json(value), "x.json")
    for parse in (
        Evidence.from_dict,
        VariantEvidence.from_dict,
        Timings.from_dict,
        Threshold.from_dict,
        ModelSignature.from_dict,
        IntegerRange.from_dict,
        Manifest.component_files,
    ):
        error = refusal(lambda parse=parse: parse(node))  # type: ignore[misc]
        assert error is None or (error.where or "").startswith("x.json")


@given(
    st.binary(max_size=64) | st.text(alphabet='{}[]",:0123456789.eE+-nulltrefasNI\\ud8', max_size=40).map(str.encode)
)
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    error = refusal(lambda: parse_document(data, "x.json"))
    if error is None:
        canonical_json(parse_document(data, "x.json").value)  # what was read can be written
    else:
        assert error.where == "x.json"
