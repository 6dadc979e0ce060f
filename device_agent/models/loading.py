"""From a bundle's folder to a model that may serve.

Nothing serves that did not pass every step of `load_model`, in this order: the bundle's structure, the bytes of every
file that is used, room in the memory, a variant that fits this device, a session on it, the golden texts through the
device's own tokenizer, and the golden inputs through the session, in batches as requests take.

A file is hashed before it is opened, and only if it is opened: the graphs and tensors of other variants are left
alone. If a provider is lost while it serves, the variant that takes its place is hashed then.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from device_agent.models import memory
from device_agent.models.engines import label, likely_variant, open_engine
from device_agent.models.priority import lowered
from edgeonnx.bundle import Verifier, open_bundle
from edgeonnx.errors import (
    EdgeOnnxError,
    GoldenSetError,
    IntegrityError,
    ServingError,
    ValidationError,
    printable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from device_agent.config import AgentConfig
    from device_agent.inference.devices.providers import ProviderStatus
    from device_agent.inference.engine import Engine
    from device_agent.inference.queue.batcher import Batcher
    from device_agent.inference.queue.plan import RunPlan
    from device_agent.inference.rows import Array, Ids
    from device_agent.inference.text import TextPath
    from device_agent.models.memory import Room, Usage
    from device_agent.models.priority import Usual
    from edgeonnx.bundle import Bundle
    from edgeonnx.spec.manifest import Manifest, Variant
    from edgeonnx.spec.selection import DeviceProfile

logger = logging.getLogger("edgeonnx.agent")

SWITCH_SECONDS = 0.0005
"""How long a thread waits for the interpreter lock while a model loads.

Hashing gives the lock up at every system call, and would get it back only after 5 ms each time while another thread
imports or serves.
"""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that passed every check.

    Attributes:
        bundle: The opened and verified bundle.
        engine: The graph.
        text: The text path.
        batcher: The queue in front of the graph, with its runner threads.
        verifier: Knows which of the bundle's files were hashed.
        plan: How many runners and threads serve it, and why.
        loaded_at: When it was loaded, in seconds since 1970 by this machine's clock.
        memory: Memory that loading it took, measured. For a model that loads while the agent starts it is an upper
            bound, because other parts of the agent are imported meanwhile.
        seconds: How long each step of loading took.
        on_close: Called when no thread uses the session any more.
    """

    bundle: Bundle
    engine: Engine
    text: TextPath
    batcher: Batcher
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
    def memory_bytes(self) -> int:
        """Memory that it takes: what was measured, or what its manifest says where that is more."""
        return max(self.memory.total, memory.needed_bytes(self.bundle, self.engine.variant))

    def variants(self) -> tuple[tuple[str, str, str | None], ...]:
        """Each variant's name and precision with the reason why it is not used (None: it serves), in bundle order."""
        not_used = self.engine.not_used
        return tuple(
            (variant.name, variant.precision, not_used.get(variant.name))
            for variant in self.manifest.entry_component.variants
        )

    def changed_files(self) -> tuple[str, ...]:
        """Files that were written, replaced or removed since they were hashed.

        What is removed or replaced still serves: the mapped files live until the model is unloaded. What was written
        in place is another matter: ONNX Runtime reads tensors through a mapping, so the answers may have changed, and
        a file that became shorter ends the process at the next read. Bundles are immutable; a new one gets a new
        folder.
        """
        return self.verifier.changed()

    def close(self, timeout: float | None = None) -> bool:
        """End the runner threads; False if one still runs after `timeout` seconds."""
        ended = self.batcher.close(timeout)
        if ended and self.on_close is not None:
            self.on_close()
        return ended


class _Steps:
    """Measures the steps of loading one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def done(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = round(now - self._last, 4)
        self._last = now


def load_model(
    path: Path,
    config: AgentConfig,
    *,
    profile: DeviceProfile | None = None,
    taken_bytes: int = 0,
    beside: str | None = None,
    gently: bool = False,
) -> LoadedModel:
    """Load a bundle and prove it on this machine. Blocking: call it in a thread of its own, one at a time.

    Args:
        path: The bundle's folder.
        config: The agent's settings.
        profile: What this machine has; None looks.
        taken_bytes: Memory that the models take that are loaded already.
        beside: The version that serves now and that this one replaces, for messages.
        gently: Models serve meanwhile: do it at a low priority. The calling thread keeps that priority.

    Raises:
        BundleError: The folder is no bundle, or it is damaged.
        SelectionError: No variant fits this device.
        MemoryBudgetError: It does not fit into the memory.
        RuntimeUnavailableError: ONNX Runtime does not load the variant.
        GoldenSetError: The model does not reproduce its golden set here.
    """
    with _short_switches(), lowered(wanted=gently) as usual:
        steps = _Steps()
        room = memory.room_of(config.runtime.memory_bytes, taken_bytes, memory.available())
        bundle = open_bundle(path)
        verifier = Verifier(bundle)
        steps.done("open")
        with _hashed_meanwhile(verifier, config):
            # What these import is not counted as the model's memory.
            from device_agent.inference import engine, text  # noqa: F401
            from device_agent.inference.devices.opening import usable_here
            from device_agent.inference.queue import batcher  # noqa: F401
            from device_agent.models import tuning  # noqa: F401

            needed = [variant.requirements.provider for variant in bundle.manifest.entry_component.variants]
            statuses = usable_here(config, needed)
        verifier.verify_common()
        before = memory.usage()
        steps.done("verify")
        return _load(bundle, verifier, config, _Around(steps, before, room, beside, usual), statuses, profile)


@dataclass(frozen=True)
class _Around:
    """What a load stands in: the clock, the memory before, the room, what it will replace, the usual priority."""

    steps: _Steps
    before: Usage | None
    room: Room
    beside: str | None
    usual: Usual


def _load(
    bundle: Bundle,
    verifier: Verifier,
    config: AgentConfig,
    around: _Around,
    statuses: Sequence[ProviderStatus],
    profile: DeviceProfile | None,
) -> LoadedModel:
    """The second half of `load_model`."""
    from device_agent.inference.devices.cache import Cache
    from device_agent.inference.devices.compiled import Compiled
    from device_agent.inference.devices.providers import CPU_PROVIDER
    from device_agent.inference.queue.batcher import Batcher
    from device_agent.inference.rows import per_token_outputs
    from device_agent.inference.session import runtime_build
    from device_agent.inference.text import open_text_path
    from device_agent.models.tuning import tuned

    steps = around.steps
    cache = Cache(config.runtime.cache_dir)
    compiled = Compiled(cache, bundle.digest, runtime_build()["version"], gpu=config.runtime.gpu)

    def open_with(threads: int) -> Engine:
        open_it = partial(
            open_engine,
            bundle,
            replace(config, runtime=replace(config.runtime, threads=threads)),
            statuses,
            profile=profile,
            verifier=verifier,
            room=around.room,
            beside=around.beside,
            compiled=compiled,
        )
        # Threads that the runtime starts will serve.
        alone = threads == 1 and not any(status.usable and status.name != CPU_PROVIDER for status in statuses)
        return open_it() if alone else around.usual.run(open_it)

    batcher: Batcher | None = None
    try:
        engine, plan = tuned(bundle, config, cache, open_with)
        steps.done("session")
        text = open_text_path(bundle.tokenizer_json(), bundle.manifest.processing, engine.inputs)
        make_batcher = partial(
            Batcher,
            engine,
            config.queue,
            runners=plan.runners,
            name=bundle.manifest.name,
            per_token=per_token_outputs(bundle.manifest.entry_component.signature),
        )
        batcher = around.usual.run(make_batcher)
        steps.done("tokenizer")
        prove(bundle, engine.variant, text, batcher)
        steps.done("golden")
        _check_unchanged(verifier)
        loaded = LoadedModel(
            bundle=bundle,
            engine=engine,
            text=text,
            batcher=batcher,
            verifier=verifier,
            plan=plan,
            loaded_at=time.time(),
            memory=_growth(around.before),
            seconds=steps.seconds,
            on_close=compiled.close,
        )
        if config.runtime.memory_bytes is not None:
            memory.check_fits(label(bundle, engine.variant), loaded.memory.total, around.room, measured=True)
    except BaseException:
        if batcher is not None:
            batcher.close(timeout=5.0)
        compiled.close()
        raise
    compiled.keep()
    _log_choice(loaded)
    return loaded


@contextlib.contextmanager
def _short_switches() -> Iterator[None]:
    """Hand the interpreter lock over sooner while a model loads; see `SWITCH_SECONDS`."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(usual, SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


@contextlib.contextmanager
def _hashed_meanwhile(verifier: Verifier, config: AgentConfig) -> Iterator[None]:
    """Hash what will surely be used while ONNX Runtime is imported and providers are tried.

    A fault is not lost: a file that did not pass is hashed, and reported, again when it is needed.
    """

    def work() -> None:
        with contextlib.suppress(EdgeOnnxError):
            verifier.verify_common()
            bundle = verifier.bundle
            entry = bundle.manifest.entry
            variant = likely_variant(bundle.manifest, config.runtime.variant, absent=bundle.absent_variants(entry))
            if variant is not None:
                verifier.verify_variant(entry, variant)

    thread = threading.Thread(target=work, name="verify", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _growth(before: Usage | None) -> Usage:
    now = memory.usage()
    return memory.NOTHING if now is None or before is None else now.since(before)


def _check_unchanged(verifier: Verifier) -> None:
    """Refuse a bundle that somebody wrote to while it was loaded: what was hashed may not be what was opened."""
    changed = verifier.changed()
    if changed:
        raise IntegrityError(
            "the bundle changed while it was loaded",
            where=str(verifier.bundle.root),
            details=changed[:20],
            hint="copy a bundle beside, under a name that begins with a dot, and rename it when it is complete",
        )


def _log_choice(loaded: LoadedModel) -> None:
    """What serves and where its nodes run, what it takes, and why each other variant is not used."""
    engine = loaded.engine
    logger.info(
        "%s %s: variant %s (%s) serves on %s; %s",
        loaded.name,
        loaded.version,
        engine.variant.name,
        printable(engine.variant.precision),
        ", ".join(engine.providers),
        engine.assignment,
    )
    logger.info(
        "%s %s: runners %d, threads of each %d (%s); memory %s and %s mapped; loaded in %.2f s (%s)",
        loaded.name,
        loaded.version,
        loaded.plan.runners,
        loaded.plan.threads,
        loaded.plan.reason,
        memory.mebibytes(loaded.memory.anonymous),
        memory.mebibytes(loaded.memory.mapped),
        sum(loaded.seconds.values()),
        ", ".join(f"{name} {seconds:.2f}" for name, seconds in loaded.seconds.items()),
    )
    for name, reason in engine.not_used.items():
        logger.info("%s %s: variant %s is not used: %s", loaded.name, loaded.version, name, printable(reason))
    from edgeonnx_ext import NATIVE_PROBLEM

    log_kernels(NATIVE_PROBLEM)


def log_kernels(problem: str | None) -> None:
    """Say so where plain Python does the work of compiled kernels: answers are the same, but each costs much more."""
    if problem is not None:
        logger.warning(
            "compiled kernels are missing, plain Python tokenizes, many times slower: %s", printable(problem)
        )


def prove(bundle: Bundle, variant: Variant, text: TextPath, batcher: Batcher) -> None:
    """Replay the golden set: the texts through the device's text path, the inputs through the runtime.

    The inputs take the way that requests take, batching included, so that what is proven is what will serve: rows of
    similar length padded together, and then each row alone.

    Raises:
        GoldenSetError: The ids differ, a threshold of the variant is not kept, or the runtime fails.
    """
    where = label(bundle, variant)
    golden = bundle.golden()
    try:
        golden.check_tokens(text.batch(golden.texts, golden.pairs), where=where)
        golden.check_replay(golden.replay(partial(_run_as_served, text, batcher)), variant.golden, where=where)
    except (ServingError, ValidationError) as error:
        raise GoldenSetError("the golden set cannot be replayed here", where=where, found=str(error)) from None


def _run_as_served(text: TextPath, batcher: Batcher, inputs: dict[str, Ids]) -> dict[str, Array]:
    from device_agent.inference.rows import TensorRows

    return batcher.run_now(TensorRows(inputs, text.padding, cut=True)).outputs
