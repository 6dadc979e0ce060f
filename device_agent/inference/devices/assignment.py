"""Which nodes of a loaded graph run on which execution provider: measured, not hoped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from device_agent.inference.devices.providers import label_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Where the nodes of a loaded graph run, by ONNX Runtime's own record.

    Attributes:
        operators: For each provider, the operator types that it runs, each with its number of nodes.
    """

    operators: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def count(cls, nodes: Iterable[tuple[str, str]]) -> Assignment:
        """Count nodes, given as pairs of provider and operator type."""
        found: dict[str, Counter[str]] = {}
        for provider, operator in nodes:
            found.setdefault(provider, Counter())[operator] += 1
        return cls(operators={provider: dict(count.most_common()) for provider, count in found.items()})

    @property
    def nodes(self) -> dict[str, int]:
        """Number of nodes for each provider."""
        return {provider: sum(count.values()) for provider, count in self.operators.items()}

    @property
    def total(self) -> int:
        """Number of nodes of the graph as it runs, after fusion."""
        return sum(self.nodes.values())

    def share(self, provider: str) -> float:
        """The part of the nodes that a provider runs, 0.0 to 1.0."""
        return self.nodes.get(provider, 0) / self.total if self.total else 0.0

    def as_dict(self) -> dict[str, object]:
        """The assignment as plain data."""
        return {
            provider: {
                "nodes": count,
                "share": round(self.share(provider), 4),
                "operators": dict(self.operators[provider]),
            }
            for provider, count in self.nodes.items()
        }

    def __str__(self) -> str:
        """For the log: `118 of 138 nodes on CUDA (85.5 %), 20 on CPU (14.5 %)`."""
        parts = [
            f"{count} on {label_of(provider)} ({100 * self.share(provider):.1f} %)"
            for provider, count in sorted(self.nodes.items(), key=lambda item: -item[1])
        ]
        return f"{self.total} nodes: {', '.join(parts)}" if parts else "not recorded"
