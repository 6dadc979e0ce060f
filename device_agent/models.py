"""The model that the agent serves: how it is loaded, what must be true before it answers, and how it stops.

Nothing is served that did not pass every step of `load_model`, in this order: the bundle's structure, every byte of
its files, a variant that fits this device, a session on it, the golden texts through the device's own tokenizer, and
the golden inputs through the session. A model that fails one of them makes the agent stop with that error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from edgeonnx_ext import NATIVE_PROBLEM

from device_agent.inference.processing import ATTENTION_MASK, TextModel, TextPath
from device_agent.inference.providers import device_profile, without
from device_agent.inference.runner import Runner
from device_agent.inference.session import CPU_PROVIDER, Session
from edgeonnx.bundle import open_bundle, verify_files
from edgeonnx.errors import (
    EdgeOnnxError,
    GoldenSetError,
    ManifestError,
    ModelNotFoundError,
    NotReadyError,
    RuntimeUnavailableError,
    ServingError,
    ValidationError,
    printable,
)
from edgeonnx.spec.selection import select_variant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from device_agent.config import AgentConfig
    from device_agent.inference.processing import Array, Ids
    from edgeonnx.bundle import Bundle
    from edgeonnx.spec.manifest import Manifest, Variant
    from edgeonnx.spec.selection import DeviceProfile

    OpenSession = Callable[..., Session]

logger = logging.getLogger("edgeonnx.agent")


class ModelState(Enum):
    """Where the live model stands."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


TRANSITIONS: dict[ModelState, frozenset[ModelState]] = {
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.FAILED, ModelState.DRAINING}),
    ModelState.READY: frozenset({ModelState.DRAINING}),
    ModelState.DRAINING: frozenset(),
    ModelState.FAILED: frozenset(),
}
"""The states that may follow each state. A model that drains or failed never serves again in this process."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that passed every check.

    Attributes:
        bundle: The opened and verified bundle.
        variant: The variant that serves.
        providers: Execution providers that the session really has, the one asked for first.
        not_used: Each other variant, or provider that did not load, with the reason.
        model: The graph with its text path.
        runner: The thread that runs it.
        loaded_at: When it was loaded, in seconds since 1970 by this machine's clock.
        seconds: How long each step of loading took.
    """

    bundle: Bundle
    variant: Variant
    providers: tuple[str, ...]
    not_used: tuple[tuple[str, str], ...]
    model: TextModel
    runner: Runner
    loaded_at: float
    seconds: dict[str, float]

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        return self.bundle.manifest

    def variants(self) -> tuple[tuple[str, str, str | None], ...]:
        """Each variant's name and precision with the reason why it is not used (None: it serves), in bundle order."""
        reasons = dict(self.not_used)
        return tuple(
            (variant.name, variant.precision, reasons.get(variant.name))
            for variant in self.manifest.entry_component.variants
        )


@dataclass(frozen=True, kw_only=True)
class OpenedVariant:
    """A session on a variant, and why the others are not used."""

    variant: Variant
    session: Session
    not_used: tuple[tuple[str, str], ...]


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
    opened = open_variant(bundle, profile or device_profile(), config)
    steps.done("session")
    component = bundle.manifest.entry_component
    text = TextPath(bundle.tokenizer_json(), bundle.manifest.processing, opened.session.inputs)
    model = TextModel(run=opened.session.run, text=text, signature=component.signature, config=config)
    steps.done("tokenizer")
    prove(bundle, opened.variant, model)
    steps.done("golden")
    _log_choice(opened)
    _log_kernels(NATIVE_PROBLEM)
    return LoadedModel(
        bundle=bundle,
        variant=opened.variant,
        providers=opened.session.providers,
        not_used=opened.not_used,
        model=model,
        runner=Runner(),
        loaded_at=time.time(),
        seconds=steps.seconds,
    )


def open_variant(
    bundle: Bundle, profile: DeviceProfile, config: AgentConfig, *, open_session: OpenSession = Session
) -> OpenedVariant:
    """Open a session on the best variant whose provider really loads.

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
        selection = select_variant(component.variants, profile, wanted=config.variant)
        chosen = selection.chosen
        provider = chosen.requirements.provider
        reason = "the session does not have it after loading; the library's own message is on stderr"
        try:
            session = open_session(
                bundle.model_path(component.name, chosen),
                bundle.tensors_path(chosen),
                provider=provider,
                threads=config.threads,
            )
        except RuntimeUnavailableError as error:
            if provider == CPU_PROVIDER:
                raise
            session, reason = None, str(error)
        if session is not None and provider in session.providers:
            _check_signature(bundle, chosen, session)
            rejected = {**dict(selection.rejected), **dict(failed)}
            return OpenedVariant(variant=chosen, session=session, not_used=tuple(rejected.items()))
        logger.warning("%s does not load, variant %s is not used: %s", provider, chosen.name, reason)
        failed.append((chosen.name, f"{provider} does not load: {reason}"))
        profile = without(profile, provider)


def _log_choice(opened: OpenedVariant) -> None:
    """Say which variant serves, and why each other one does not: what an operator looks for first."""
    chosen = opened.variant
    logger.info(
        "variant %s (%s) serves on %s", chosen.name, printable(chosen.precision), ", ".join(opened.session.providers)
    )
    for name, reason in opened.not_used:
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


def prove(bundle: Bundle, variant: Variant, model: TextModel) -> None:
    """Replay the golden set: the texts through the device's text path, the inputs through the runtime.

    The inputs take the way that requests take, batching included, so that what is proven is what will serve: rows of
    similar length padded together, and then each row alone.

    Raises:
        GoldenSetError: The ids differ, a threshold of the variant is not kept, or the runtime fails.
    """
    where = f"{bundle.manifest.name} {bundle.manifest.version}, variant {variant.name}"
    golden = bundle.golden()
    try:
        batch = model.text.encode(golden.texts, golden.pairs)
        golden.check_tokens(batch.tensors(), where=where)
        golden.check_replay(golden.replay(partial(_run_as_served, model)), variant.golden, where=where)
    except (ServingError, ValidationError) as error:
        raise GoldenSetError("the golden set cannot be replayed here", where=where, found=str(error)) from None


def _run_as_served(model: TextModel, inputs: dict[str, Ids]) -> dict[str, Array]:
    return model.answer_tensors(inputs, inputs[ATTENTION_MASK].sum(axis=1)).outputs


class LiveModel:
    """The state of the model that requests meet. It belongs to the event loop's thread; only `use` counts requests."""

    def __init__(self) -> None:
        self.state = ModelState.LOADING
        self.loaded: LoadedModel | None = None
        self.error: EdgeOnnxError | None = None
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def _go(self, state: ModelState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"the live model cannot go from {self.state.value} to {state.value}")
        self.state = state

    def serve(self, loaded: LoadedModel) -> None:
        """The model passed its checks: requests are answered from now on."""
        self._go(ModelState.READY)
        self.loaded = loaded

    def fail(self, error: EdgeOnnxError) -> None:
        """The model did not pass its checks."""
        self._go(ModelState.FAILED)
        self.error = error

    def drain(self) -> None:
        """Take no new request; those in flight are finished."""
        self._go(ModelState.DRAINING)

    def current(self, name: str | None = None, version: str | None = None) -> LoadedModel:
        """The model, if it serves and is the one asked for.

        Args:
            name: Name in the request; None takes whatever serves.
            version: Version in the request; None takes whatever serves.

        Raises:
            NotReadyError: It is loading, failed, or the agent is stopping.
            ModelNotFoundError: It is another one.
        """
        if self.state is not ModelState.READY or self.loaded is None:
            raise NotReadyError(
                "the model does not serve",
                found=self.state.value,
                hint="ask /v2/health/ready until it answers 200" if self.state is ModelState.LOADING else None,
            )
        manifest = self.loaded.manifest
        if name not in (None, manifest.name):
            raise ModelNotFoundError("no such model", where="model", expected=repr(manifest.name), found=repr(name))
        if version not in (None, manifest.version):
            raise ModelNotFoundError(
                "no such version of the model", where="version", expected=repr(manifest.version), found=repr(version)
            )
        return self.loaded

    @contextmanager
    def use(self, name: str | None = None, version: str | None = None) -> Iterator[LoadedModel]:
        """The model for the length of one request; `drained` waits for it. Raises as `current` does."""
        loaded = self.current(name, version)
        self.in_flight += 1
        self._idle.clear()
        try:
            yield loaded
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self._idle.set()

    async def drained(self, timeout: float) -> bool:
        """Wait until no request is in flight; False if some still are after `timeout` seconds."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        return True
