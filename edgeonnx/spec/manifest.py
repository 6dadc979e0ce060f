"""A bundle's metadata as data: `manifest.json`, one `component.json` per component, and what is ours inside them.

The files follow ONNX Runtime's model package format, schema 1.x: unknown fields are refused there, so everything of
ours lives in `additional_metadata.edgeonnx` and `executor_info.edgeonnx`. `from_dict` functions are strict and name
the field that is wrong; `to_dict` gives what `from_dict` reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from edgeonnx.errors import UsageError
from edgeonnx.spec.generation import Generation
from edgeonnx.spec.numerics import IntegerRange
from edgeonnx.spec.paths import check_bundle_name, check_bundle_version, check_relative_path, split_asset_reference
from edgeonnx.spec.report import Threshold
from edgeonnx.spec.tensor import ModelSignature

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeonnx.spec.parse import Node

PACKAGE_SCHEMA = "1.0"
"""Version of ONNX Runtime's model package schema that we write."""
EDGEONNX_SCHEMA = "1.0"
"""Version of our own metadata inside the package. Another major version is refused, a newer minor one is read."""

MAX_TOKENS = (1 << 31) - 1
"""Bound on token ids and row lengths: what 32-bit token counts can hold."""

EXTERNAL_FOLDER_OPTION = "session.model_external_initializers_file_folder_path"
"""The session option by which ONNX Runtime finds tensors that lie outside the model's own folder."""


class Task(Enum):
    """What a bundle computes, in the words of the Hugging Face hub."""

    EMBEDDING = "embedding"
    FEATURE_EXTRACTION = "feature-extraction"
    TEXT_CLASSIFICATION = "text-classification"
    TOKEN_CLASSIFICATION = "token-classification"  # noqa: S105 - a task's name
    TEXT_RANKING = "text-ranking"
    TEXT_GENERATION = "text-generation"

    @property
    def takes_pairs(self) -> bool:
        """Whether a request gives two texts per row (query and document)."""
        return self is Task.TEXT_RANKING


@dataclass(frozen=True, kw_only=True)
class TextProcessing:
    """How text becomes the graph's inputs; both host and device follow it.

    Attributes:
        tokenizer: Asset reference of the `tokenizer.json`.
        backend: `wordpiece` or `bpe` (a compiled path, proven equal when the bundle was built) or `tokenizers`.
        max_length: Longest row in tokens, special tokens included; longer texts are cut off at the end.
        pad_id: Token id that fills a row up.
        pad_type_id: Token type id that fills a row up.
        prefix: Text that is put in front of every text (a model's default prompt).
    """

    tokenizer: str
    backend: str
    max_length: int
    pad_id: int
    pad_type_id: int = 0
    prefix: str = ""

    BACKENDS = ("wordpiece", "bpe", "tokenizers")

    @classmethod
    def from_dict(cls, node: Node) -> TextProcessing:
        """Read the `processing` object."""
        fields = ("kind", "tokenizer", "backend", "max_length", "pad_id", "pad_type_id", "prefix")
        node.only(fields)
        if node.text("kind") != "text":
            node.required("kind").fail("is not a kind of processing that this release knows", expected='"text"')
        tokenizer = node.required("tokenizer")
        split_asset_reference(tokenizer.typed(str), where=tokenizer.where)
        if node.text("backend") not in cls.BACKENDS:
            node.required("backend").fail("is not a known backend", expected=" or ".join(cls.BACKENDS))
        return cls(
            tokenizer=node.text("tokenizer"),
            backend=node.text("backend"),
            max_length=node.integer("max_length", minimum=1, maximum=MAX_TOKENS),
            pad_id=node.integer("pad_id", maximum=MAX_TOKENS),
            pad_type_id=node.integer("pad_type_id", maximum=MAX_TOKENS),
            prefix=node.optional_text("prefix") or "",
        )

    def to_dict(self) -> dict[str, object]:
        """The `processing` object."""
        return {
            "kind": "text",
            "tokenizer": self.tokenizer,
            "backend": self.backend,
            "max_length": self.max_length,
            "pad_id": self.pad_id,
            "pad_type_id": self.pad_type_id,
            "prefix": self.prefix,
        }


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a variant needs of a device; see `edgeonnx.spec.selection`.

    Attributes:
        provider: Execution provider in ONNX Runtime's spelling.
        instruction_sets: CPU features that must all be present, in the spelling of /proc/cpuinfo.
        memory_bytes: Memory that loading the variant takes at least (its tensors).
        integer: Range of the 8-bit products that the CPU computes, or None if it computes none.
        unknown: Names of requirements that a later release stated and this one cannot judge. They are never met.
    """

    provider: str
    instruction_sets: tuple[str, ...] = ()
    memory_bytes: int = 0
    integer: IntegerRange | None = None
    unknown: tuple[str, ...] = ()

    KNOWN = ("provider", "instruction_sets", "memory_bytes", "integer")

    @classmethod
    def from_dict(cls, node: Node) -> Requirements:
        """Read the `requirements` object.

        Ignoring an unknown field is safe elsewhere in a document of a newer minor version, but not here: it would let a
        variant run where it must not. So the names of such fields are kept, and the variant is never selected.
        """
        node.only(cls.KNOWN)
        integer = node.child("integer")
        return cls(
            provider=node.text("provider"),
            instruction_sets=tuple(item.typed(str) for item in node.required("instruction_sets").items()),
            memory_bytes=node.integer("memory_bytes"),
            integer=None if integer is None or integer.value is None else IntegerRange.from_dict(integer),
            unknown=tuple(sorted(name for name, _ in node.members() if name not in cls.KNOWN)),
        )

    def to_dict(self) -> dict[str, object]:
        """The `requirements` object."""
        known: dict[str, object] = {
            "provider": self.provider,
            "instruction_sets": list(self.instruction_sets),
            "memory_bytes": self.memory_bytes,
        }
        return known if self.integer is None else {**known, "integer": self.integer.to_dict()}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One build of a component for one kind of device.

    Attributes:
        name: Name inside the component (`cpu-fp32`); also the folder that holds its graph.
        device: `cpu`, `gpu` or `npu`.
        model_file: The graph, relative to the variant's folder.
        tensors: Asset reference of the folder with the graph's external tensors, or None if all are inline.
        precision: `fp32`, `int8`, `fp16`, ...
        requirements: What the device must have.
        golden: What the replay of the golden set must reach.
        recipe: How the variant was made, for people and for the evidence.
    """

    name: str
    device: str
    model_file: str
    tensors: str | None
    precision: str
    requirements: Requirements
    golden: tuple[Threshold, ...]
    recipe: dict[str, object] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, name: str, node: Node) -> Variant:
        """Read one member of `variants`."""
        node.only(("variant_directory", "ep", "device", "executor_info", "additional_metadata"))
        directory = node.text("variant_directory")
        check_relative_path(directory, where=node.required("variant_directory").where)
        if directory != name:
            node.required("variant_directory").fail("must be the variant's name", expected=repr(name))
        info = node.required("executor_info")
        info.only(("ort", "edgeonnx"))
        ort, ours = info.required("ort"), info.required("edgeonnx")
        ours.only(("precision", "requirements", "golden", "recipe"))
        check_relative_path(ort.text("model_file"), where=ort.required("model_file").where)
        requirements = Requirements.from_dict(ours.required("requirements"))
        if node.text("ep") != requirements.provider:
            node.required("ep").fail("differs from requirements.provider", expected=repr(requirements.provider))
        return cls(
            name=name,
            device=node.text("device"),
            model_file=ort.text("model_file"),
            tensors=_tensor_folder(ort),
            precision=ours.text("precision"),
            requirements=requirements,
            golden=_golden_thresholds(ours.required("golden")),
            recipe=ours.required("recipe").typed(dict),
        )

    def to_dict(self) -> dict[str, object]:
        """One member of `variants`."""
        ort: dict[str, object] = {"model_file": self.model_file}
        if self.tensors is not None:
            ort["session_options"] = {EXTERNAL_FOLDER_OPTION: self.tensors}
        return {
            "variant_directory": self.name,
            "ep": self.requirements.provider,
            "device": self.device,
            "executor_info": {
                "ort": ort,
                "edgeonnx": {
                    "precision": self.precision,
                    "requirements": self.requirements.to_dict(),
                    "golden": [threshold.to_dict() for threshold in self.golden],
                    "recipe": self.recipe,
                },
            },
        }


def _golden_thresholds(node: Node) -> tuple[Threshold, ...]:
    """What the replay must reach. None at all is refused: a replay that nothing judges proves nothing."""
    thresholds = tuple(Threshold.from_dict(item) for item in node.items())
    if not thresholds:
        node.fail("has no threshold", expected="at least one, or the golden set would prove nothing")
    return thresholds


def _tensor_folder(ort: Node) -> str | None:
    """The asset with the external tensors. Other session options are refused: they could change what is computed."""
    ort.only(("model_file", "session_options"))
    options = ort.child("session_options")
    if options is None:
        return None
    options.only((EXTERNAL_FOLDER_OPTION,), always=True)
    folder = options.required(EXTERNAL_FOLDER_OPTION)
    split_asset_reference(folder.typed(str), where=folder.where)
    return folder.typed(str)


@dataclass(frozen=True, kw_only=True)
class Component:
    """One graph with one job: its signature, which all variants share, and the variants in order of preference."""

    name: str
    signature: ModelSignature
    variants: tuple[Variant, ...]

    @classmethod
    def from_dict(cls, name: str, node: Node) -> Component:
        """Read a `component.json`."""
        node.only(("component_name", "variants", "additional_metadata"))
        if node.text("component_name") != name:
            node.required("component_name").fail("is not the component's name in manifest.json", expected=repr(name))
        ours = node.required("additional_metadata").required("edgeonnx")
        ours.only(("signature", "preference"))
        variants = {key: Variant.from_dict(key, member) for key, member in node.required("variants").members()}
        if not variants:
            node.required("variants").fail("has no variant", expected="at least one")
        preference = [item.typed(str) for item in ours.required("preference").items()]
        if sorted(preference) != sorted(variants):
            ours.required("preference").fail("must name each variant once", expected=", ".join(sorted(variants)))
        return cls(
            name=name,
            signature=ModelSignature.from_dict(ours.required("signature")),
            variants=tuple(variants[key] for key in preference),
        )

    def to_dict(self) -> dict[str, object]:
        """The content of `component.json`. The order of variants is stated apart: members of an object have none."""
        return {
            "component_name": self.name,
            "variants": {variant.name: variant.to_dict() for variant in self.variants},
            "additional_metadata": {
                "edgeonnx": {
                    "signature": self.signature.to_dict(),
                    "preference": [variant.name for variant in self.variants],
                }
            },
        }


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A bundle's `manifest.json` together with its components.

    Attributes:
        name: Name of the bundle.
        version: Version of the bundle.
        task: What it computes.
        components: Its graphs by name.
        entry: The component that serves requests.
        processing: How text becomes the entry component's inputs.
        golden: Asset reference of the golden set.
        labels: Names of the classes, by index; empty where the task has none.
        properties: Further facts that clients ask for (the embedding's `dimension`).
        generation: How text is generated; for text generation, and for no other task.
    """

    name: str
    version: str
    task: Task
    components: dict[str, Component]
    entry: str
    processing: TextProcessing
    golden: str
    labels: tuple[str, ...] = ()
    properties: dict[str, object] = field(default_factory=dict)
    generation: Generation | None = None

    @property
    def entry_component(self) -> Component:
        """The component that serves requests."""
        return self.components[self.entry]

    @staticmethod
    def component_files(node: Node) -> dict[str, str]:
        """Name -> path of the `component.json` for each entry of `components` in a parsed `manifest.json`."""
        node.version("schema_version", known=PACKAGE_SCHEMA)
        files = {}
        for name, member in node.required("components").members():
            check_relative_path(member.typed(str), where=member.where)
            if member.value != name:
                member.fail("must be the component's name", expected=repr(name))
            files[name] = f"{name}/component.json"
        if not files:
            node.required("components").fail("has no component", expected="at least one")
        return files

    @staticmethod
    def identity(node: Node) -> tuple[str, str]:
        """Name and version in a parsed `manifest.json`."""
        node.version("schema_version", known=PACKAGE_SCHEMA)
        name = _checked(node.required("package_name"), check_bundle_name)
        return name, _checked(node.required("package_version"), check_bundle_version)

    @classmethod
    def from_dict(cls, node: Node, components: dict[str, Node]) -> Manifest:
        """Read a parsed `manifest.json` and its parsed `component.json` files."""
        node = node.version("schema_version", known=PACKAGE_SCHEMA)
        node.only(
            ("schema_version", "package_name", "package_version", "description", "components", "additional_metadata")
        )
        ours = node.required("additional_metadata").required("edgeonnx")
        ours = ours.version("schema_version", known=EDGEONNX_SCHEMA)
        ours.only(("schema_version", "task", "entry", "processing", "golden", "labels", "properties", "generation"))
        if ours.text("entry") not in components:
            ours.required("entry").fail("names no component", expected=f"one of {', '.join(sorted(components))}")
        golden = ours.required("golden")
        split_asset_reference(golden.typed(str), where=golden.where)
        task = _task(ours.required("task"))
        return cls(
            name=_checked(node.required("package_name"), check_bundle_name),
            version=_checked(node.required("package_version"), check_bundle_version),
            task=task,
            components={
                name: Component.from_dict(name, member.relaxed(newer=ours.newer)) for name, member in components.items()
            },
            entry=ours.text("entry"),
            processing=TextProcessing.from_dict(ours.required("processing")),
            golden=golden.typed(str),
            labels=tuple(item.typed(str) for item in ours.required("labels").items()),
            properties=ours.required("properties").typed(dict),
            generation=_generation(ours, task),
        )

    def to_dict(self) -> dict[str, object]:
        """The content of `manifest.json`; each component goes to `<name>/component.json`."""
        return {
            "schema_version": PACKAGE_SCHEMA,
            "package_name": self.name,
            "package_version": self.version,
            "components": {name: name for name in self.components},
            "additional_metadata": {
                "edgeonnx": {
                    "schema_version": EDGEONNX_SCHEMA,
                    "task": self.task.value,
                    "entry": self.entry,
                    "processing": self.processing.to_dict(),
                    "golden": self.golden,
                    "labels": list(self.labels),
                    "properties": self.properties,
                    **({} if self.generation is None else {"generation": self.generation.to_dict()}),
                }
            },
        }


def _checked(node: Node, check: Callable[[str], str]) -> str:
    """A name or version by the rule that the packager keeps: both become folders, URL segments and metric labels."""
    try:
        return check(node.typed(str))
    except UsageError as error:
        node.fail(error.message, expected=error.expected)


def _task(node: Node) -> Task:
    try:
        return Task(node.typed(str))
    except ValueError:
        node.fail("is not a task that this release knows", expected=", ".join(task.value for task in Task))


def _generation(node: Node, task: Task) -> Generation | None:
    """The member `generation`, which models that generate text need and others have not."""
    if task is Task.TEXT_GENERATION:
        return Generation.from_dict(node.required("generation"))
    found = node.child("generation")
    if found is not None:
        found.fail(f"belongs to the task {Task.TEXT_GENERATION.value} alone")
    return None
