"""`evidence.json`: what was measured when a bundle was built. It holds nothing that another build would not repeat.

Speed is not repeatable, so it stands elsewhere (`edgeonnx.spec.timings`), outside what the bundle's digest covers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgeonnx.spec.report import Threshold, Verdict

if TYPE_CHECKING:
    from edgeonnx.spec.parse import Node


@dataclass(frozen=True, kw_only=True)
class WorstText:
    """A text on which a variant is furthest from the source.

    Attributes:
        text: The text (its beginning, if it is long).
        tokens: Its length in tokens.
        score: Its figure; smaller is worse (a cosine, 1 minus a difference of scores, or exp(-divergence)).
        expected: What the source says follows, for a model that generates text; otherwise None.
        found: What the variant says follows; otherwise None.
    """

    text: str
    tokens: int
    score: float
    expected: str | None = None
    found: str | None = None

    @classmethod
    def from_dict(cls, node: Node) -> WorstText:
        """Read one element of `worst`."""
        node.only(("text", "tokens", "score", "expected", "found"))
        return cls(
            text=node.text("text"),
            tokens=node.integer("tokens"),
            score=node.required("score").typed(float),
            expected=node.optional_text("expected"),
            found=node.optional_text("found"),
        )

    def to_dict(self) -> dict[str, object]:
        """One element of `worst`."""
        answers = {"expected": self.expected, "found": self.found}
        stated = {name: value for name, value in answers.items() if value is not None}
        return {"text": self.text, "tokens": self.tokens, "score": self.score, **stated}


@dataclass(frozen=True, kw_only=True)
class NodeCost:
    """What quantizing one group of nodes alone costs in fidelity.

    Attributes:
        node: The group's name (`encoder.layer.0.output.dense`).
        cost: Loss of fidelity with only this group quantized; 0 is none.
    """

    node: str
    cost: float

    @classmethod
    def from_dict(cls, node: Node) -> NodeCost:
        """Read one element of `sensitivity`."""
        node.only(("node", "cost"))
        return cls(node=node.text("node"), cost=node.required("cost").typed(float))

    def to_dict(self) -> dict[str, object]:
        """One element of `sensitivity`."""
        return {"node": self.node, "cost": self.cost}


@dataclass(frozen=True, kw_only=True)
class SearchPoint:
    """One candidate of the search: how many groups stayed in higher precision, and how it did.

    Attributes:
        name: Name of the candidate; `timings.json` uses the same one for its speed.
        kept: Number of groups left in higher precision.
        metrics: Its figures.
        passed: Whether the gate let it through.
        chosen: Whether it became the variant.
    """

    name: str
    kept: int
    metrics: dict[str, float]
    passed: bool
    chosen: bool = False

    @classmethod
    def from_dict(cls, node: Node) -> SearchPoint:
        """Read one element of `search`."""
        node.only(("name", "kept", "metrics", "passed", "chosen"))
        return cls(
            name=node.text("name"),
            kept=node.integer("kept"),
            metrics=_figures(node.required("metrics")),
            passed=node.required("passed").typed(bool),
            chosen=node.required("chosen").typed(bool),
        )

    def to_dict(self) -> dict[str, object]:
        """One element of `search`."""
        return {
            "name": self.name,
            "kept": self.kept,
            "metrics": self.metrics,
            "passed": self.passed,
            "chosen": self.chosen,
        }


@dataclass(frozen=True, kw_only=True)
class VariantEvidence:
    """What was measured of one variant.

    Attributes:
        precision: `fp32`, `int8`, ...
        measured_on: Execution provider that computed the figures (a GPU variant may be measured on the CPU).
        texts: Number of texts that were compared with the source.
        fidelity: Agreement with the source by metric; see `edgeonnx.evaluate.fidelity` for the names.
        invariance: Agreement of a text's answer alone with its answer in batches, by metric.
        gate: Each threshold with the measured value.
        tensor_bytes: Bytes of the variant's own external tensors, shared ones included.
        operators: Operators of the graph as it was written: name (with its domain, if not the standard one) to count.
        loaded: The same after ONNX Runtime's own optimizations for the CPU.
        quantized: Number of groups of nodes in low precision.
        kept: Names of the groups that were left in higher precision.
        worst: The texts with the lowest scores, the worst first.
        sensitivity: What each group costs alone, the costliest first.
        search: The candidates that were tried.
    """

    precision: str
    measured_on: str
    texts: int
    fidelity: dict[str, float]
    invariance: dict[str, float]
    gate: Verdict
    tensor_bytes: int
    operators: dict[str, int] = field(default_factory=dict)
    loaded: dict[str, int] = field(default_factory=dict)
    quantized: int = 0
    kept: tuple[str, ...] = ()
    worst: tuple[WorstText, ...] = ()
    sensitivity: tuple[NodeCost, ...] = ()
    search: tuple[SearchPoint, ...] = ()

    @classmethod
    def from_dict(cls, node: Node) -> VariantEvidence:
        """Read one member of `variants`."""
        node.only(
            (
                "precision",
                "measured_on",
                "texts",
                "fidelity",
                "invariance",
                "gate",
                "tensor_bytes",
                "operators",
                "loaded",
                "quantized",
                "kept",
                "worst",
                "sensitivity",
                "search",
            )
        )
        return cls(
            precision=node.text("precision"),
            measured_on=node.text("measured_on"),
            texts=node.integer("texts"),
            fidelity=_figures(node.required("fidelity")),
            invariance=_figures(node.required("invariance")),
            gate=Verdict(judged=tuple(_judged(item) for item in node.required("gate").items())),
            tensor_bytes=node.integer("tensor_bytes"),
            operators=_counts(node.required("operators")),
            loaded=_counts(node.required("loaded")),
            quantized=node.integer("quantized"),
            kept=tuple(item.typed(str) for item in node.required("kept").items()),
            worst=tuple(WorstText.from_dict(item) for item in node.required("worst").items()),
            sensitivity=tuple(NodeCost.from_dict(item) for item in node.required("sensitivity").items()),
            search=tuple(SearchPoint.from_dict(item) for item in node.required("search").items()),
        )

    def to_dict(self) -> dict[str, object]:
        """One member of `variants`."""
        return {
            "precision": self.precision,
            "measured_on": self.measured_on,
            "texts": self.texts,
            "fidelity": self.fidelity,
            "invariance": self.invariance,
            "gate": [{"threshold": bound.to_dict(), "measured": value} for bound, value in self.gate.judged],
            "tensor_bytes": self.tensor_bytes,
            "operators": self.operators,
            "loaded": self.loaded,
            "quantized": self.quantized,
            "kept": list(self.kept),
            "worst": [item.to_dict() for item in self.worst],
            "sensitivity": [item.to_dict() for item in self.sensitivity],
            "search": [item.to_dict() for item in self.search],
        }


def _judged(node: Node) -> tuple[Threshold, float]:
    node.only(("threshold", "measured"))
    return Threshold.from_dict(node.required("threshold")), node.required("measured").typed(float)


def _figures(node: Node) -> dict[str, float]:
    return {name: child.typed(float) for name, child in node.members()}


def _counts(node: Node) -> dict[str, int]:
    return {name: node.integer(name) for name, _ in node.members()}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was measured when the bundle was built, and under what conditions. No clock times: builds must repeat.

    Attributes:
        source: What the bundle was made from: identity, architecture, digest of each file that was read.
        tools: Versions of the libraries that did the work.
        tokenizer: How the device's text path compares with the source's tokenizer.
        parity: The comparison of the exported graph with the source model.
        graph: Facts about the exported graph.
        texts: Which texts the figures of the variants are about: `origin`, `evaluated`, `calibrated`, `labelled`.
        variants: What was measured of each variant, by its name.
    """

    source: dict[str, object]
    tools: dict[str, str]
    tokenizer: dict[str, object] = field(default_factory=dict)
    parity: dict[str, object] = field(default_factory=dict)
    graph: dict[str, object] = field(default_factory=dict)
    texts: dict[str, object] = field(default_factory=dict)
    variants: dict[str, VariantEvidence] = field(default_factory=dict)

    SCHEMA = "1.2"

    @classmethod
    def from_dict(cls, node: Node) -> Evidence:
        """Read an `evidence.json`. Documents of version 1.0 know nothing of variants."""
        node = node.version("schema_version", known=cls.SCHEMA)
        tools = {name: child.typed(str) for name, child in node.required("tools").members()}
        parts = {key: node.required(key).typed(dict) for key in ("source", "tokenizer", "parity", "graph")}
        texts, variants = node.child("texts"), node.child("variants")
        return cls(
            tools=tools,
            texts={} if texts is None else texts.typed(dict),
            variants={} if variants is None else {k: VariantEvidence.from_dict(v) for k, v in variants.members()},
            **parts,
        )

    def to_dict(self) -> dict[str, object]:
        """The content of `evidence.json`."""
        return {
            "schema_version": self.SCHEMA,
            "source": self.source,
            "tools": dict(self.tools),
            "tokenizer": self.tokenizer,
            "parity": self.parity,
            "graph": self.graph,
            "texts": self.texts,
            "variants": {name: variant.to_dict() for name, variant in self.variants.items()},
        }
