"""How much memory the caches of a decoder may take, and so how many tokens of how many sequences. Pure.

It is decided before the graph is opened, so that a model for which there is no room is not loaded, and the caches grow
later only within it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.errors import MemoryBudgetError

if TYPE_CHECKING:
    from device_agent.config import GenerationConfig
    from device_agent.models.memory import Room
    from edgeonnx.spec.generation import Generation

LEAST_CONTEXT = 256
"""Tokens of one sequence below which a model that could read more is of no use."""
SHARE = 2
"""Without `generation.cache_bytes`, the caches may take one of so many parts of the memory that is left: activations,
other models and the system need some too."""


@dataclass(frozen=True, kw_only=True)
class CacheBudget:
    """What the caches may become.

    Attributes:
        limit: Bytes.
        context_length: Most tokens of one sequence.
        reason: Why it is fewer than was asked for; empty if it is not.
    """

    limit: int
    context_length: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class CacheNeeds:
    """What a decoder's caches take.

    Args:
        generation: The caches' shape, and the context that the model was made for.
        itemsize: Bytes of an element.
        step: Tokens in multiples of which a sequence is given places.
        config: `[generation]`.
    """

    generation: Generation
    itemsize: int
    step: int
    config: GenerationConfig

    @property
    def each(self) -> int:
        """Bytes of one token of one sequence."""
        return self.generation.cache.bytes_per_token(self.itemsize)

    @property
    def context(self) -> int:
        """The longest sequence that is asked for."""
        made_for = self.generation.context_length
        return min(made_for, self.config.max_context or made_for)

    @property
    def most(self) -> int:
        """Bytes of all sequences at their longest."""
        return self.config.max_sequences * self._bytes(self.context)

    @property
    def least_context(self) -> int:
        """The context without which the model does not serve: the operator's, or a short one."""
        return self.context if self.config.max_context is not None else min(self.context, LEAST_CONTEXT)

    @property
    def least(self) -> int:
        """Bytes of one sequence of that length: what a variant needs beside its weights."""
        return self._bytes(self.least_context)

    def _bytes(self, tokens: int) -> int:
        return -(-tokens // self.step) * self.step * self.each

    def budget(self, left: Room, model: str) -> CacheBudget:
        """Share the memory that the weights leave.

        Args:
            left: Memory that is left beside them.
            model: The model, for messages.

        Raises:
            MemoryBudgetError: What the operator asks for does not fit, or not even one short sequence does.
        """
        limit = self._limit(left, model)
        if limit < self.least:
            raise MemoryBudgetError(
                "the caches of one sequence do not fit into the memory",
                where=model,
                expected=f"at most {limit:,} bytes, because {self._why(left)}",
                found=f"{self.least:,} bytes for {self.least_context:,} tokens of {self.each:,} bytes each",
                hint="set a smaller generation.max_context, raise generation.cache_bytes, or unload another model",
            )
        if limit >= self._bytes(self.context):
            return CacheBudget(limit=limit, context_length=self.context)
        places = limit // (self.each * self.step) * self.step
        return CacheBudget(limit=limit, context_length=min(self.context, places), reason=self._why(left))

    def _limit(self, left: Room, model: str) -> int:
        """Bytes of all caches, by the operator or by what is left; never more than all sequences can fill."""
        asked = self.config.cache_bytes
        if asked is None:
            return self.most if left.free is None else min(self.most, left.free, max(left.free // SHARE, self.least))
        if left.free is not None and min(asked, self.most) > left.free:
            raise MemoryBudgetError(
                "the caches do not fit into the memory beside the weights",
                where=model,
                expected=f"at most {left.free:,} bytes, because {left.reason}",
                found=f"{asked:,} bytes (generation.cache_bytes)",
                hint="set a smaller generation.cache_bytes, or unload another model",
            )
        return min(asked, self.most)

    def _why(self, left: Room) -> str:
        if self.config.cache_bytes is not None:
            return f"generation.cache_bytes is {self.config.cache_bytes:,}"
        return f"the weights leave {left.free or 0:,} bytes: {left.reason}"
