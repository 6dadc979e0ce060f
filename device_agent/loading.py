"""From a bundle's folder to a model that may serve.

Nothing serves that did not pass every step of `load_model`, in this order: the bundle's structure, every byte of its
files, a variant that fits this device, a session on it, the golden texts through the device's own tokenizer, and the
golden inputs through the session, in batches as requests take.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from edgeonnx_ext import NATIVE_PROBLEM

from device_agent.config import usable_cpus
from device_agent.inference.batcher import Batcher
from device_agent.inference.engine import Engine
from device_agent.inference.providers import device_profile, without
from device_agent.inference.rows import TensorRows
from device_agent.inference.session import CPU_PROVIDER, Session
from device_agent.inference.text import TextPath
from edgeonnx.bundle import open_bundle, verify_files
from edgeonnx.errors import (
    GoldenSetError,
    ManifestError,
    RuntimeUnavailableError,
    ServingError,
    ValidationError,
    printable,
)
from edgeonnx.spec.selection import select_variant

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_agent.config import AgentConfig
    from device_agent.inference.rows import Array, Ids
    from edgeonnx.bundle import Bundle
    from edgeonnx.spec.manifest import Manifest, Variant
    from edgeonnx.spec.selection import DeviceProfile

    OpenSession = Callable[..., Session]

logger = logging.getLogger("edgeonnx.agent")


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that passed every check.

    Attributes:
        bundle: The opened and verified bundle.
        engine: The graph.
        text: The text path.
        batcher: The queue in front of the graph, with its runner threads.
        loaded_at: When it was loaded, in seconds since 1970 by this machine's clock.
        memory_bytes: Memory that loading it took, measured.
        seconds: How long each step of loading took.
    """

    bundle: Bundle
    engine: Engine
    text: TextPath
    batcher: Batcher
    loaded_at: float
    memory_bytes: int
    seconds: dict[str, float]

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

    def variants(self) -> tuple[tuple[str, str, str | None], ...]:
        """Each variant's name and precision with the reason why it is not used (None: it serves), in bundle order."""
        return tuple(
            (variant.name, variant.precision, self.engine.not_used.get(variant.name))
            for variant in self.manifest.entry_component.variants
        )

    def close(self, timeout: float | None = None) -> bool:
        """End the runner threads; False if one still runs after `timeout` seconds."""
        return self.batcher.close(timeout)


class _Steps:
    """Measures the steps of loading one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def done(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = round(now - self._last, 4)
        self._last = now


def load_model(path: Path, config: AgentConfig, *, profile: DeviceProfile | None = None) -> LoadedModel:
    """Load a bundle and prove it on this machine. Blocking: call it in a thread of its own.

    Args:
        path: The bundle's folder.
        config: The agent's settings.
        profile: What this machine has; None looks.

    Raises:
        BundleError: The folder is no bundle, or it is damaged.
        SelectionError: No variant fits this device.
        RuntimeUnavailableError: ONNX Runtime does not load the variant.
        GoldenSetError: The model does not reproduce its golden set here.
    """
    steps = _Steps()
    bundle = open_bundle(path)
    steps.done("open")
    verify_files(bundle)
    steps.done("verify")
    engine = open_engine(bundle, profile or device_profile(), config)
    steps.done("session")
    text = TextPath(bundle.tokenizer_json(), bundle.manifest.processing, engine.inputs)
    batcher = Batcher(engine, config.queue, runners=config.runtime.runners or usable_cpus(), name=bundle.manifest.name)
    steps.done("tokenizer")
    prove(bundle, engine.variant, text, batcher)
    steps.done("golden")
    _log_choice(engine)
    _log_kernels(NATIVE_PROBLEM)
    return LoadedModel(
        bundle=bundle,
        engine=engine,
        text=text,
        batcher=batcher,
        loaded_at=time.time(),
        memory_bytes=0,
        seconds=steps.seconds,
    )


def open_engine(
    bundle: Bundle, profile: DeviceProfile, config: AgentConfig, *, open_session: OpenSession = Session
) -> Engine:
    """Open the best variant whose provider really loads.

    What a provider is worth shows only when a session is opened: one that was built in but does not load (a missing
    CUDA library) leaves the session on the CPU. Then the selection is made again without that provider, so that a
    variant made for the CPU runs there rather than one made for the GPU.

    Args:
        bundle: An opened bundle.
        profile: What this machine has.
        config: The agent's settings.
        open_session: Opens a session; tests put a fake here.

    Raises:
        SelectionError: No variant is left.
        RuntimeUnavailableError: ONNX Runtime does not load the variant on the CPU.
        ManifestError: The graph has other inputs or outputs than the manifest says.
    """
    component = bundle.manifest.entry_component
    failed: list[tuple[str, str]] = []
    while True:
        selection = select_variant(component.variants, profile, wanted=config.runtime.variant)
        chosen = selection.chosen
        provider = chosen.requirements.provider
        reason = "the session does not have it after loading; the library's own message is on stderr"
        try:
            session = open_session(
                bundle.model_path(component.name, chosen),
                bundle.tensors_path(chosen),
                provider=provider,
                threads=config.runtime.threads or 1,
            )
        except RuntimeUnavailableError as error:
            if provider == CPU_PROVIDER:
                raise
            session, reason = None, str(error)
        if session is not None and provider in session.providers:
            _check_signature(bundle, chosen, session)
            return Engine(chosen, session, {**dict(selection.rejected), **dict(failed)})
        logger.warning("%s does not load, variant %s is not used: %s", provider, chosen.name, reason)
        failed.append((chosen.name, f"{provider} does not load: {reason}"))
        profile = without(profile, provider)


def _log_choice(engine: Engine) -> None:
    """Say which variant serves, and why each other one does not: what an operator looks for first."""
    chosen = engine.variant
    logger.info("variant %s (%s) serves on %s", chosen.name, printable(chosen.precision), ", ".join(engine.providers))
    for name, reason in engine.not_used.items():
        logger.info("variant %s is not used: %s", name, printable(reason))


def _log_kernels(problem: str | None) -> None:
    """Say so where plain Python does the work of compiled kernels: answers are the same, but each costs much more."""
    if problem is not None:
        logger.warning(
            "compiled kernels are missing, plain Python tokenizes, many times slower: %s", printable(problem)
        )


def _check_signature(bundle: Bundle, variant: Variant, session: Session) -> None:
    signature = bundle.manifest.entry_component.signature
    for kind, specs, names in (
        ("inputs", signature.inputs, session.inputs),
        ("outputs", signature.outputs, session.outputs),
    ):
        listed = [spec.name for spec in specs]
        if sorted(listed) != sorted(names):
            raise ManifestError(
                f"the graph has other {kind} than its component.json says",
                where=f"{bundle.manifest.entry}/{variant.name}",
                expected=str(listed),
                found=str(list(names)),
            )


def prove(bundle: Bundle, variant: Variant, text: TextPath, batcher: Batcher) -> None:
    """Replay the golden set: the texts through the device's text path, the inputs through the runtime.

    The inputs take the way that requests take, batching included, so that what is proven is what will serve: rows of
    similar length padded together, and then each row alone.

    Raises:
        GoldenSetError: The ids differ, a threshold of the variant is not kept, or the runtime fails.
    """
    where = f"{bundle.manifest.name} {bundle.manifest.version}, variant {variant.name}"
    golden = bundle.golden()
    try:
        golden.check_tokens(text.batch(golden.texts, golden.pairs), where=where)
        golden.check_replay(golden.replay(partial(_run_as_served, text, batcher)), variant.golden, where=where)
    except (ServingError, ValidationError) as error:
        raise GoldenSetError("the golden set cannot be replayed here", where=where, found=str(error)) from None


def _run_as_served(text: TextPath, batcher: Batcher, inputs: dict[str, Ids]) -> dict[str, Array]:
    return batcher.run_now(TensorRows(inputs, text.padding, cut=True)).outputs
