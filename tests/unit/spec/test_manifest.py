"""The metadata's codec: what is written is read back, and each broken field is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from edgeonnx.errors import EdgeOnnxError, ManifestError, SchemaVersionError, UnsafePathError
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.generation import CacheShape, Generation
from edgeonnx.spec.manifest import Component, Manifest, Requirements, Task, TextProcessing, Variant
from edgeonnx.spec.numerics import IntegerRange
from edgeonnx.spec.parse import Node, parse_document
from edgeonnx.spec.report import Threshold
from edgeonnx.spec.tensor import DType, ModelSignature, TensorSpec

ASSET = "sha256:" + "0123456789abcdef" * 4


def variant(name: str, tensors: str | None = ASSET) -> Variant:
    return Variant(
        name=name,
        device="cpu",
        model_file="model.onnx",
        tensors=tensors,
        precision="fp32",
        requirements=Requirements(
            provider="CPUExecutionProvider",
            instruction_sets=("avx2",),
            memory_bytes=5,
            integer=None if tensors else IntegerRange(activation_max=255, weight_max=64),
        ),
        golden=(Threshold(metric="scaled_diff", at_most=1e-3), Threshold(metric="min_cosine", at_least=0.99)),
        recipe={"precision": "fp32"},
    )


def manifest() -> Manifest:
    signature = ModelSignature(
        inputs=(TensorSpec(name="input_ids", dtype=DType.INT64, shape=("batch", "sequence")),),
        outputs=(TensorSpec(name="scores", dtype=DType.FLOAT, shape=("batch", 2)),),
    )
    component = Component(
        name="encoder", signature=signature, variants=(variant("cpu-int8"), variant("cpu-fp32", None))
    )
    return Manifest(
        name="tiny",
        version="1.0.0",
        task=Task.TEXT_CLASSIFICATION,
        components={"encoder": component},
        entry="encoder",
        processing=TextProcessing(
            tokenizer=f"{ASSET}/tokenizer.json", backend="wordpiece", max_length=16, pad_id=0, prefix="query: "
        ),
        golden=ASSET,
        labels=("no", "yes"),
        properties={"dimension": 2},
    )


def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    made = manifest()
    return copy.deepcopy(made.to_dict()), copy.deepcopy(made.components["encoder"].to_dict())


def read(document: dict[str, Any], component: dict[str, Any]) -> Manifest:
    root = parse_document(canonical_json(document), "manifest.json")
    files = Manifest.component_files(root)
    nodes = {name: parse_document(canonical_json(component), file) for name, file in files.items()}
    return Manifest.from_dict(root, nodes)


def test_what_is_written_is_read_back_variants_in_their_order() -> None:
    assert read(*documents()) == manifest()


def test_generation_belongs_to_models_that_generate_text_and_to_no_others() -> None:
    generation = Generation(cache=CacheShape(layers=1, heads=1, head_size=2), context_length=8, stop_ids=(1,))
    for task in Task:
        made = replace(manifest(), task=task, generation=generation)
        document = made.to_dict()
        component = made.components["encoder"].to_dict()
        if task is Task.TEXT_GENERATION:
            assert read(document, component) == made
            del ours(document)["generation"]
        with pytest.raises(ManifestError, match="generation"):
            read(document, component)


def test_every_task_is_read_back() -> None:
    for task in Task:
        if task is Task.TEXT_GENERATION:
            continue
        document, component = documents()
        document["additional_metadata"]["edgeonnx"]["task"] = task.value
        assert read(document, component).task is task


def ours(document: dict[str, Any]) -> dict[str, Any]:
    return document["additional_metadata"]["edgeonnx"]  # type: ignore[no-any-return]


BROKEN_MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], Any], type[EdgeOnnxError], str]] = {
    "another major schema": (lambda d: d.update(schema_version="2.0"), SchemaVersionError, "schema_version"),
    "no schema": (lambda d: d.pop("schema_version"), ManifestError, ""),
    "another major schema of ours": (
        lambda d: ours(d).update(schema_version="9.1"),
        SchemaVersionError,
        "additional_metadata.edgeonnx.schema_version",
    ),
    "an unknown field": (lambda d: d.update(pakage="x"), ManifestError, "pakage"),
    "an unknown field of ours": (lambda d: ours(d).update(x=1), ManifestError, "additional_metadata.edgeonnx.x"),
    "no metadata of ours": (lambda d: d.pop("additional_metadata"), ManifestError, ""),
    "a name that is a path": (lambda d: d.update(package_name="../x"), ManifestError, "package_name"),
    "a name with an escape sequence": (lambda d: d.update(package_name="a\x1b[2J"), ManifestError, "package_name"),
    "a version that is a path": (lambda d: d.update(package_version="1/../2"), ManifestError, "package_version"),
    "a version of another type": (lambda d: d.update(package_version=1), ManifestError, "package_version"),
    "an unknown task": (lambda d: ours(d).update(task="speech"), ManifestError, "additional_metadata.edgeonnx.task"),
    "no component": (lambda d: d.update(components={}), ManifestError, "components"),
    "a component in another folder": (
        lambda d: d.update(components={"encoder": "elsewhere"}),
        ManifestError,
        "components.encoder",
    ),
    "a component outside": (
        lambda d: d.update(components={"encoder": "../encoder"}),
        UnsafePathError,
        "components.encoder",
    ),
    "an entry that is no component": (
        lambda d: ours(d).update(entry="decoder"),
        ManifestError,
        "additional_metadata.edgeonnx.entry",
    ),
    "a golden set that is no asset": (
        lambda d: ours(d).update(golden="golden"),
        UnsafePathError,
        "additional_metadata.edgeonnx.golden",
    ),
    "a label that is no text": (
        lambda d: ours(d).update(labels=["a", 1]),
        ManifestError,
        "additional_metadata.edgeonnx.labels[1]",
    ),
    "another kind of processing": (
        lambda d: ours(d)["processing"].update(kind="image"),
        ManifestError,
        "additional_metadata.edgeonnx.processing.kind",
    ),
    "an unknown text path": (
        lambda d: ours(d)["processing"].update(backend="fast"),
        ManifestError,
        "additional_metadata.edgeonnx.processing.backend",
    ),
    "no room for a token": (
        lambda d: ours(d)["processing"].update(max_length=0),
        ManifestError,
        "additional_metadata.edgeonnx.processing.max_length",
    ),
    "a padding id beyond 32 bits": (
        lambda d: ours(d)["processing"].update(pad_id=1 << 31),
        ManifestError,
        "additional_metadata.edgeonnx.processing.pad_id",
    ),
    "a tokenizer outside": (
        lambda d: ours(d)["processing"].update(tokenizer=f"{ASSET}/../../tokenizer.json"),
        UnsafePathError,
        "additional_metadata.edgeonnx.processing.tokenizer",
    ),
}


@pytest.mark.parametrize("case", BROKEN_MANIFESTS)
def test_a_broken_manifest_names_the_field(case: str) -> None:
    change, kind, field = BROKEN_MANIFESTS[case]
    document, component = documents()
    change(document)
    with pytest.raises(kind) as caught:
        read(document, component)
    assert caught.value.where == (f"manifest.json: {field}" if field else caught.value.where)
    assert (caught.value.where or "").startswith("manifest.json")


def first(component: dict[str, Any]) -> dict[str, Any]:
    return component["variants"]["cpu-int8"]  # type: ignore[no-any-return]


def info(component: dict[str, Any], side: str) -> dict[str, Any]:
    return first(component)["executor_info"][side]  # type: ignore[no-any-return]


INFO = "variants.cpu-int8.executor_info"
EXTERNAL = "session.model_external_initializers_file_folder_path"
BROKEN_COMPONENTS: dict[str, tuple[Callable[[dict[str, Any]], Any], type[EdgeOnnxError], str]] = {
    "another name": (lambda c: c.update(component_name="decoder"), ManifestError, "component_name"),
    "no variant": (lambda c: c.update(variants={}), ManifestError, "variants"),
    "an unknown field": (lambda c: c.update(x=1), ManifestError, "x"),
    "a preference that lacks a variant": (
        lambda c: ours(c).update(preference=["cpu-int8"]),
        ManifestError,
        "additional_metadata.edgeonnx.preference",
    ),
    "a preference with a variant twice": (
        lambda c: ours(c).update(preference=["cpu-int8", "cpu-int8", "cpu-fp32"]),
        ManifestError,
        "additional_metadata.edgeonnx.preference",
    ),
    "a variant in another folder": (
        lambda c: first(c).update(variant_directory="cpu-fp32"),
        ManifestError,
        "variants.cpu-int8.variant_directory",
    ),
    "a graph outside": (
        lambda c: info(c, "ort").update(model_file="../../../etc/model.onnx"),
        UnsafePathError,
        f"{INFO}.ort.model_file",
    ),
    "a session option that changes the computation": (
        lambda c: info(c, "ort")["session_options"].update({"session.disable_prepacking": "1"}),
        ManifestError,
        f"{INFO}.ort.session_options.session.disable_prepacking",
    ),
    "a custom operator library": (
        lambda c: info(c, "ort").update(custom_ops_library="evil.so"),
        ManifestError,
        f"{INFO}.ort.custom_ops_library",
    ),
    "provider options": (
        lambda c: info(c, "ort").update(provider_options={}),
        ManifestError,
        f"{INFO}.ort.provider_options",
    ),
    "tensors by path": (
        lambda c: info(c, "ort").update(session_options={EXTERNAL: "/etc"}),
        UnsafePathError,
        f"{INFO}.ort.session_options.{EXTERNAL}",
    ),
    "a replay that nothing judges": (
        lambda c: info(c, "edgeonnx").update(golden=[]),
        ManifestError,
        f"{INFO}.edgeonnx.golden",
    ),
    "a threshold with both bounds": (
        lambda c: info(c, "edgeonnx").update(golden=[{"metric": "m", "at_most": 1, "at_least": 0}]),
        ManifestError,
        f"{INFO}.edgeonnx.golden[0]",
    ),
    "a provider that differs": (
        lambda c: first(c).update(ep="CUDAExecutionProvider"),
        ManifestError,
        "variants.cpu-int8.ep",
    ),
    "negative memory": (
        lambda c: info(c, "edgeonnx")["requirements"].update(memory_bytes=-1),
        ManifestError,
        f"{INFO}.edgeonnx.requirements.memory_bytes",
    ),
    "an 8-bit range that cannot be": (
        lambda c: info(c, "edgeonnx")["requirements"].update(integer={"activation_max": 255, "weight_max": 129}),
        ManifestError,
        f"{INFO}.edgeonnx.requirements.integer.weight_max",
    ),
    "an 8-bit range of another type": (
        lambda c: info(c, "edgeonnx")["requirements"].update(integer=127),
        ManifestError,
        f"{INFO}.edgeonnx.requirements.integer",
    ),
    "an unknown requirement": (
        lambda c: info(c, "edgeonnx")["requirements"].update(numa=1),
        ManifestError,
        f"{INFO}.edgeonnx.requirements.numa",
    ),
    "no output": (
        lambda c: ours(c)["signature"].update(outputs=[]),
        ManifestError,
        "additional_metadata.edgeonnx.signature.outputs",
    ),
    "an input twice": (
        lambda c: ours(c)["signature"]["inputs"].append(ours(c)["signature"]["inputs"][0]),
        ManifestError,
        "additional_metadata.edgeonnx.signature.inputs",
    ),
    "an unknown element type": (
        lambda c: ours(c)["signature"]["inputs"][0].update(dtype="int65"),
        ManifestError,
        "additional_metadata.edgeonnx.signature.inputs[0].dtype",
    ),
    "a dimension of zero": (
        lambda c: ours(c)["signature"]["outputs"][0].update(shape=["batch", 0]),
        ManifestError,
        "additional_metadata.edgeonnx.signature.outputs[0].shape[1]",
    ),
    "a dimension without a name": (
        lambda c: ours(c)["signature"]["outputs"][0].update(shape=[""]),
        ManifestError,
        "additional_metadata.edgeonnx.signature.outputs[0].shape[0]",
    ),
    "a dimension that is true": (
        lambda c: ours(c)["signature"]["outputs"][0].update(shape=[True]),
        ManifestError,
        "additional_metadata.edgeonnx.signature.outputs[0].shape[0]",
    ),
}


@pytest.mark.parametrize("case", BROKEN_COMPONENTS)
def test_a_broken_component_names_the_field(case: str) -> None:
    change, kind, field = BROKEN_COMPONENTS[case]
    document, component = documents()
    change(component)
    with pytest.raises(kind) as caught:
        read(document, component)
    assert caught.value.where == f"encoder/component.json: {field}"


def test_newer_minor_schemas_are_read() -> None:
    document, component = documents()
    document["schema_version"] = "1.9"
    ours(document).update({"schema_version": "1.4", "of_a_later_release": {"any": "thing"}})
    component["additional_metadata"]["edgeonnx"]["of_a_later_release"] = True
    assert read(document, component) == manifest()


def requirements(component: dict[str, Any], version: str = "1.0", **changes: Any) -> Requirements:
    document, _ = documents()
    ours(document)["schema_version"] = version
    info(component, "edgeonnx")["requirements"].update(changes)
    return read(document, component).entry_component.variants[0].requirements


def test_the_range_of_integers_is_optional() -> None:
    component = documents()[1]
    assert "integer" not in info(component, "edgeonnx")["requirements"]
    assert requirements(component).integer is None
    assert requirements(component, integer=None).integer is None
    stated = IntegerRange(activation_max=255, weight_max=127)
    assert requirements(component, integer=stated.to_dict()).integer == stated


def test_requirements_of_a_newer_minor_schema_are_remembered_not_ignored() -> None:
    """Ignored, a requirement would let a variant run where it must not."""
    found = requirements(documents()[1], "1.4", numa=None, cache_bytes=5)
    assert found.unknown == ("cache_bytes", "numa")
    assert requirements(documents()[1], "1.4").unknown == ()


def test_nothing_in_the_range_of_integers_is_ignored() -> None:
    stated = {"activation_max": 255, "weight_max": 127, "pairs": 2}
    with pytest.raises(ManifestError, match="not a known field"):
        requirements(documents()[1], "1.4", integer=stated)


def test_a_newer_minor_schema_may_still_not_set_session_options() -> None:
    document, component = documents()
    ours(document)["schema_version"] = "1.4"
    next(iter(component["variants"].values()))["executor_info"]["ort"]["session_options"]["ep.dynamic"] = "1"
    with pytest.raises(ManifestError, match="not a known field"):
        read(document, component)


def test_a_document_that_is_no_object_is_refused() -> None:
    with pytest.raises(ManifestError, match="has the wrong type"):
        Manifest.component_files(Node(value=[], file="manifest.json", path=""))


def test_only_ranking_takes_pairs() -> None:
    assert [task for task in Task if task.takes_pairs] == [Task.TEXT_RANKING]
