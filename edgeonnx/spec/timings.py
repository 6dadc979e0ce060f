"""`timings.json`: how fast the variants ran on the build host.

No two builds measure the same speed, so this file is not part of what the bundle's digest covers; a device never
reads it, and an update does not carry it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeonnx.spec.parse import Node

TIMINGS_FILE = "timings.json"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The speed of one graph on one machine.

    Attributes:
        threads: Threads of one run.
        texts: Number of texts that were run.
        tokens: Number of tokens in them, padding not counted.
        texts_per_second: Throughput over all texts, sorted by length, in batches bounded by tokens.
        tokens_per_second: The same in tokens.
        latency_ms: Median time of one text alone, in milliseconds.
        latency_p95_ms: 95th percentile of the same.
    """

    threads: int
    texts: int
    tokens: int
    texts_per_second: float
    tokens_per_second: float
    latency_ms: float
    latency_p95_ms: float

    FLOATS = ("texts_per_second", "tokens_per_second", "latency_ms", "latency_p95_ms")

    @property
    def rate(self) -> float:
        """What graphs are compared by: texts per second."""
        return self.texts_per_second

    @classmethod
    def from_dict(cls, node: Node) -> Timing:
        """Read one member of `graphs`."""
        node.only(("threads", "texts", "tokens", *cls.FLOATS))
        return cls(
            threads=node.integer("threads", minimum=1),
            texts=node.integer("texts"),
            tokens=node.integer("tokens"),
            **{name: node.required(name).typed(float) for name in cls.FLOATS},
        )

    def to_dict(self) -> dict[str, object]:
        """One member of `graphs`."""
        figures = {name: round(float(getattr(self, name)), 3) for name in self.FLOATS}
        return {"threads": self.threads, "texts": self.texts, "tokens": self.tokens, **figures}


@dataclass(frozen=True, kw_only=True)
class DecodingTiming:
    """The speed of one decoder on one machine, one sequence at a time.

    Attributes:
        threads: Threads of one run.
        prompt_tokens: Tokens of the prompt.
        new_tokens: Tokens that were generated after it.
        prompt_ms: Time of the prompt, in milliseconds.
        tokens_per_second: Generated tokens per second, without the prompt.
    """

    threads: int
    prompt_tokens: int
    new_tokens: int
    prompt_ms: float
    tokens_per_second: float

    FLOATS = ("prompt_ms", "tokens_per_second")

    @property
    def rate(self) -> float:
        """What graphs are compared by: tokens per second."""
        return self.tokens_per_second

    @classmethod
    def from_dict(cls, node: Node) -> DecodingTiming:
        """Read one member of `graphs`."""
        node.only(("threads", "prompt_tokens", "new_tokens", *cls.FLOATS))
        return cls(
            threads=node.integer("threads", minimum=1),
            prompt_tokens=node.integer("prompt_tokens"),
            new_tokens=node.integer("new_tokens"),
            **{name: node.required(name).typed(float) for name in cls.FLOATS},
        )

    def to_dict(self) -> dict[str, object]:
        """One member of `graphs`."""
        figures = {name: round(float(getattr(self, name)), 3) for name in self.FLOATS}
        counts = {"prompt_tokens": self.prompt_tokens, "new_tokens": self.new_tokens}
        return {"threads": self.threads, **counts, **figures}


AnyTiming = Timing | DecodingTiming


def _timing(node: Node) -> AnyTiming:
    return Timing.from_dict(node) if node.child("prompt_ms") is None else DecodingTiming.from_dict(node)


@dataclass(frozen=True, kw_only=True)
class Timings:
    """The content of `timings.json`.

    Attributes:
        machine: What was measured on: `processor`, `architecture`, `cores`, `onnxruntime`.
        graphs: Speed by name: of variants, and of candidates of the search (`SearchPoint.name`).
        stages: Seconds that each stage of the build took.
    """

    machine: dict[str, str]
    graphs: dict[str, AnyTiming] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)

    SCHEMA = "1.1"

    @classmethod
    def from_dict(cls, node: Node) -> Timings:
        """Read a `timings.json`."""
        node = node.version("schema_version", known=cls.SCHEMA)
        node.only(("schema_version", "machine", "graphs", "stages"))
        return cls(
            machine={name: child.typed(str) for name, child in node.required("machine").members()},
            graphs={name: _timing(child) for name, child in node.required("graphs").members()},
            stages={name: child.typed(float) for name, child in node.required("stages").members()},
        )

    def to_dict(self) -> dict[str, object]:
        """The content of `timings.json`."""
        return {
            "schema_version": self.SCHEMA,
            "machine": dict(self.machine),
            "graphs": {name: timing.to_dict() for name, timing in self.graphs.items()},
            "stages": {name: round(seconds, 3) for name, seconds in self.stages.items()},
        }
