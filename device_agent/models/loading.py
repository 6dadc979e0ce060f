"""From a bundle's folder to a model that may serve.

Nothing serves that did not pass every step of `load_model`, in this order: the bundle's structure, the bytes of every
file that is used, room in the memory, a variant that fits this device, a session on it, the golden texts through the
device's own tokenizer, and the golden inputs through the session, in the way that requests take (`encoders`,
`decoders`).

A file is hashed before it is opened, and only if it is opened: the graphs and tensors of other variants are left
alone. If a provider is lost while it serves, the variant that takes its place is hashed then.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import TYPE_CHECKING

from device_agent.models import memory
from device_agent.models.encoders import open_encoder
from device_agent.models.engines import label, likely_variant
from device_agent.models.priority import lowered
from device_agent.models.steps import Load, Steps
from edgeonnx.bundle import Verifier, open_bundle
from edgeonnx.errors import EdgeOnnxError, IntegrityError, printable
from edgeonnx.spec.manifest import Task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from device_agent.config import AgentConfig
    from device_agent.models.loaded import LoadedModel
    from device_agent.models.memory import Taken
    from edgeonnx.spec.selection import DeviceProfile

logger = logging.getLogger("edgeonnx.agent")

SWITCH_SECONDS = 0.0005
"""How long a thread waits for the interpreter lock while a model loads.

Hashing gives the lock up at every system call, and would get it back only after 5 ms each time while another thread
imports or serves.
"""


def load_model(
    path: Path,
    config: AgentConfig,
    *,
    profile: DeviceProfile | None = None,
    taken: Taken = memory.NOTHING_TAKEN,
    beside: str | None = None,
    gently: bool = False,
) -> LoadedModel:
    """Load a bundle and prove it on this machine. Blocking: call it in a thread of its own, one at a time.

    Args:
        path: The bundle's folder.
        config: The agent's settings.
        profile: What this machine has; None looks.
        taken: Memory of the models that are loaded already.
        beside: The version that serves now and that this one replaces, for messages.
        gently: Models serve meanwhile: do it at a low priority. The calling thread keeps that priority.

    Raises:
        BundleError: The folder is no bundle, or it is damaged.
        SelectionError: No variant fits this device.
        MemoryBudgetError: It does not fit into the memory.
        RuntimeUnavailableError: ONNX Runtime does not load the variant.
        GoldenSetError: The model does not reproduce its golden set here.
    """
    # ONNX Runtime's library imports NumPy's library while Python's part of it may still be imported by the thread that
    # serves, which fails in both. So NumPy comes first, as a whole.
    import numpy  # noqa: F401

    with _short_switches(), lowered(wanted=gently) as usual:
        steps = Steps()
        room = memory.room_of(config.runtime.memory_bytes, taken, memory.available())
        bundle = open_bundle(path)
        verifier = Verifier(bundle)
        steps.done("open")
        with _hashed_meanwhile(verifier, config):
            # What these import is not counted as the model's memory.
            from device_agent.inference.devices.cache import Cache
            from device_agent.inference.devices.compiled import Compiled
            from device_agent.inference.devices.opening import usable_here
            from device_agent.inference.session import runtime_build

            _import_for(bundle.manifest.task)
            needed = [variant.requirements.provider for variant in bundle.manifest.entry_component.variants]
            statuses = usable_here(config, needed)
        verifier.verify_common()
        before = memory.usage()
        steps.done("verify")
        cache = Cache(config.runtime.cache_dir)
        compiled = Compiled(cache, bundle.digest, runtime_build()["version"], gpu=config.runtime.gpu)
        return _load(
            Load(
                bundle=bundle,
                verifier=verifier,
                config=config,
                statuses=statuses,
                profile=profile,
                cache=cache,
                compiled=compiled,
                room=room,
                before=before,
                beside=beside,
                usual=usual,
                steps=steps,
            )
        )


def _load(load: Load) -> LoadedModel:
    """The second half of `load_model`."""
    loaded: LoadedModel | None = None
    try:
        loaded = _open(load)
        _check_unchanged(load.verifier)
        if load.config.runtime.memory_bytes is not None:
            name = label(load.bundle, loaded.engine.variant)
            memory.check_fits(name, loaded.memory.total, load.room, measured=True)
    except BaseException:
        if loaded is not None:
            loaded.close(timeout=5.0)
        load.compiled.close()
        raise
    load.compiled.keep()
    _log_choice(loaded)
    return loaded


def _open(load: Load) -> LoadedModel:
    if load.bundle.manifest.task is Task.TEXT_GENERATION:
        from device_agent.models.decoders import open_decoder

        return open_decoder(load)
    return open_encoder(load)


def _import_for(task: Task) -> None:
    """Import what a model of this task needs."""
    if task is Task.TEXT_GENERATION:
        from device_agent.inference.generation import generator, text  # noqa: F401
    else:
        from device_agent.inference import engine  # noqa: F401
        from device_agent.inference.queue import batcher  # noqa: F401
        from device_agent.models import tuning  # noqa: F401


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
    if remark := loaded.remark():
        logger.info("%s %s: %s", loaded.name, loaded.version, remark)
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
