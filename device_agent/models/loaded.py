"""What a model is once it passed every check: the part that all models share, encoders, and decoders.

An encoder answers a request with one run, behind a queue that batches. A decoder answers it with many runs, one for
each token, and keeps caches between them. Routes, counters and views that serve one kind narrow by `isinstance`; what
all of them want of any model is in `LoadedModel`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from device_agent.models import memory
from device_agent.systemd import Work
from edgeonnx.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_agent.inference.engine import DecoderEngine, Engine, ServingGraph
    from device_agent.inference.generation.generator import Generator
    from device_agent.inference.generation.text import GenerationText
    from device_agent.inference.queue.batcher import Batcher
    from device_agent.inference.queue.plan import RunPlan
    from device_agent.inference.text import TextPath
    from device_agent.models.caches import CacheBudget
    from device_agent.models.memory import Usage
    from edgeonnx.bundle import Bundle, Verifier
    from edgeonnx.spec.generation import Generation
    from edgeonnx.spec.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class LoadedModel(ABC):
    """A model that passed every check.

    Attributes:
        bundle: The opened and verified bundle.
        engine: What serves it: the variant, its provider, and why not another one.
        verifier: Knows which of the bundle's files were hashed.
        plan: How many runners and threads serve it, and why.
        loaded_at: When it was loaded, in seconds since 1970 by this machine's clock.
        memory: Memory that loading it took, measured. For a model that loads while the agent starts it is an upper
            bound, because other parts of the agent are imported meanwhile.
        seconds: How long each step of loading took.
        on_close: Called when no thread uses the session any more.
    """

    bundle: Bundle
    engine: ServingGraph
    verifier: Verifier
    plan: RunPlan
    loaded_at: float
    memory: Usage
    seconds: dict[str, float]
    on_close: Callable[[], None] | None = None

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        return self.bundle.manifest

    @property
    def name(self) -> str:
        """The model's name, which requests use."""
        return self.bundle.manifest.name

    @property
    def version(self) -> str:
        """The bundle's version."""
        return self.bundle.manifest.version

    @property
    @abstractmethod
    def tokenizer(self) -> str:
        """What tokenizes, such as `wordpiece-native`."""

    @property
    @abstractmethod
    def runs(self) -> int:
        """Runs of the graph so far that gave a result."""

    @property
    @abstractmethod
    def pending(self) -> int:
        """Requests that wait for it."""

    @property
    def memory_bytes(self) -> int:
        """Memory that it takes: what was measured, or what its manifest says where that is more."""
        return max(self.memory.total, memory.needed_bytes(self.bundle, self.engine.variant))

    @property
    def reserved_bytes(self) -> int:
        """Memory that it may take, and that no other model can have."""
        return self.memory_bytes

    @abstractmethod
    def work(self) -> Work:
        """What it has to do now, and how much it has done."""

    def variants(self) -> tuple[tuple[str, str, str | None], ...]:
        """Each variant's name and precision with the reason why it is not used (None: it serves), in bundle order."""
        not_used = self.engine.not_used
        return tuple(
            (variant.name, variant.precision, not_used.get(variant.name))
            for variant in self.manifest.entry_component.variants
        )

    def details(self) -> dict[str, object]:
        """What an operator wants to know of this kind of model, as plain data."""
        return {}

    def remark(self) -> str:
        """The same for people, in a line; empty: nothing."""
        return ""

    def changed_files(self) -> tuple[str, ...]:
        """Files that were written, replaced or removed since they were hashed.

        What is removed or replaced still serves: the mapped files live until the model is unloaded. What was written
        in place is another matter: ONNX Runtime reads tensors through a mapping, so the answers may have changed, and
        a file that became shorter ends the process at the next read. Bundles are immutable; a new one gets a new
        folder.
        """
        return self.verifier.changed()

    def interrupt(self) -> None:  # noqa: B027 - what is answered with one run is waited for
        """End answers that take long with an error, as no time is left for them. Blocking, for at most a second."""

    def close(self, timeout: float | None = None) -> bool:
        """End the threads that run it; False if one still runs after `timeout` seconds."""
        ended = self._end(timeout)
        if ended and self.on_close is not None:
            self.on_close()
        return ended

    @abstractmethod
    def _end(self, timeout: float | None) -> bool:
        """End the threads; False if one still runs after `timeout` seconds."""


@dataclass(frozen=True, kw_only=True)
class LoadedEncoder(LoadedModel):
    """A model that answers a text, or a row of tokens, with one run.

    Attributes:
        engine: The graph.
        text: The text path.
        batcher: The queue in front of the graph, with its runner threads.
    """

    engine: Engine
    text: TextPath
    batcher: Batcher

    @property
    def tokenizer(self) -> str:
        """What tokenizes."""
        return self.text.backend

    @property
    def runs(self) -> int:
        """Runs of the graph so far that gave a result."""
        return self.batcher.state().counts.runs

    @property
    def pending(self) -> int:
        """Requests that wait for a runner, wholly or in part."""
        return self.batcher.state().requests

    def work(self) -> Work:
        """What it has to do now, and how much it has done."""
        state = self.batcher.state()
        # A model whose runs all fail is not hung.
        return Work(busy=bool(state.rows or state.running_tokens), finished=state.counts.runs + state.counts.failed)

    def _end(self, timeout: float | None) -> bool:
        return self.batcher.close(timeout)


@dataclass(frozen=True, kw_only=True)
class LoadedDecoder(LoadedModel):
    """A model that generates text.

    Attributes:
        engine: The graph.
        text: From text to tokens and back.
        generator: The thread that runs the graph for all sequences at once, with their caches.
        caches: What its caches may become.
    """

    engine: DecoderEngine
    text: GenerationText
    generator: Generator
    caches: CacheBudget

    @property
    def generation(self) -> Generation:
        """How text is generated with it."""
        found = self.manifest.generation
        assert found is not None  # noqa: S101 - the manifest of such a task has it, or was refused
        return found

    @property
    def tokenizer(self) -> str:
        """What tokenizes."""
        return self.text.backend

    @property
    def runs(self) -> int:
        """Runs of the graph so far that gave a result."""
        state = self.generator.state()
        return state.steps + state.prompts

    @property
    def pending(self) -> int:
        """Sequences that wait for a place."""
        return self.generator.state().waiting

    @property
    def memory_bytes(self) -> int:
        """Memory that it takes, its caches as they are now."""
        return super().memory_bytes + self.generator.state().cache_bytes

    @property
    def reserved_bytes(self) -> int:
        """Memory that it may take: its caches as large as they may become."""
        return super().memory_bytes + self.caches.limit

    def details(self) -> dict[str, object]:
        """How much its caches may hold."""
        return {"caches": asdict(self.caches)}

    def remark(self) -> str:
        """How much its caches may hold."""
        most = memory.mebibytes(self.caches.limit)
        return f"caches of at most {most}, sequences of at most {self.caches.context_length} tokens"

    def work(self) -> Work:
        """What it has to do now, and how much it has done."""
        state = self.generator.state()
        return Work(busy=bool(state.active or state.waiting), finished=self.runs + sum(state.finished.values()))

    def interrupt(self) -> None:
        """End the answers that are being generated, and those that wait, with an error."""
        self.generator.close(0.0)

    def _end(self, timeout: float | None) -> bool:
        return self.generator.close(timeout)


def encoder_of(loaded: LoadedModel) -> LoadedEncoder:
    """A model as one that answers with one run.

    Raises:
        InvalidRequestError: It generates text.
    """
    if isinstance(loaded, LoadedEncoder):
        return loaded
    raise InvalidRequestError(
        "this model generates text",
        where="model",
        expected="a model that answers with one run",
        found=f"{loaded.name} ({loaded.manifest.task.value})",
        hint="use /v1/completions or /v1/chat/completions",
    )


def decoder_of(loaded: LoadedModel) -> LoadedDecoder:
    """A model as one that generates text.

    Raises:
        InvalidRequestError: It does not.
    """
    if isinstance(loaded, LoadedDecoder):
        return loaded
    raise InvalidRequestError(
        "this model does not generate text",
        where="model",
        expected="a model for the task text-generation",
        found=f"{loaded.name} ({loaded.manifest.task.value})",
        hint=f"use /v2/models/{loaded.name}/infer",
    )
