"""`python -m device_agent.update.install.candidate`: what must not happen in the process that updates or serves.

    prove FOLDER [SETTINGS]       load a bundle and replay its golden set
    variants FOLDER [SETTINGS]    which of its variants this machine would run; the metadata files are enough

Whatever a release does (crash, hang, take all memory), it does here. The outcome is one JSON line on stdout; the parent
reads it, and takes anything else for a failure (`device_agent.update.install.trial`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeonnx.errors import EdgeOnnxError, MemoryBudgetError, RuntimeUnavailableError, SelectionError, UsageError
from edgeonnx.spec.selection import select_variant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from device_agent.config import AgentConfig
    from edgeonnx.spec.manifest import Variant

NICENESS = 10
"""Requests are answered beside it, so it takes what is left of the cores."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SIGKILL = 9


def main(arguments: Sequence[str]) -> int:
    """Carry out one of the two commands.

    Args:
        arguments: The command, the bundle's folder, and the agent's settings file or nothing.

    Returns:
        0 if it gave an answer that is not an error, else 1.
    """
    from device_agent.settings import read_settings

    command, folder, *settings = arguments
    work: dict[str, Callable[[Path, AgentConfig], dict[str, object]]] = {"prove": _prove, "variants": _variants}
    try:
        answer = work[command](Path(folder), read_settings(Path(settings[0]) if settings else None))
    except ImportError as error:
        missing = RuntimeUnavailableError("a library of the agent cannot be imported", found=str(error))
        answer = {"ok": False, "device": True, "error": missing.to_dict()}
    except EdgeOnnxError as error:
        # Settings, memory and drivers may be in order tomorrow; what a release is does not change.
        device = isinstance(error, UsageError | MemoryBudgetError | SelectionError)
        answer = {"ok": False, "device": device, "error": error.to_dict()}
    print(json.dumps(answer), flush=True)  # noqa: T201 - the parent reads it
    return 0 if answer["ok"] else 1


def _prove(folder: Path, config: AgentConfig) -> dict[str, object]:
    from device_agent.models.loading import load_model

    loaded = load_model(folder, config)
    return {
        "ok": True,
        "variant": loaded.engine.variant.name,
        "provider": loaded.engine.provider,
        "memory_bytes": loaded.memory_bytes,
        "seconds": loaded.seconds,
    }


def _variants(folder: Path, config: AgentConfig) -> dict[str, object]:
    from device_agent.inference.devices.opening import usable_here
    from edgeonnx.bundle.needs import read_manifest

    component = read_manifest(lambda path: (folder / path).read_bytes()).entry_component
    statuses = usable_here(config, [variant.requirements.provider for variant in component.variants])
    names = usable_variants(component.variants, [each.name for each in statuses if each.usable], config)
    return {"ok": True, "variants": [f"{component.name}/{name}" for name in names]}


def usable_variants(variants: Sequence[Variant], providers: Sequence[str], config: AgentConfig) -> list[str]:
    """The variant that would serve on this machine, and after it those that would take its place.

    A provider may be lost while it serves; then the selection is made again without it (`inference.devices.opening`).
    So the order is: the best variant, then the best one without its provider, and so on.

    Args:
        variants: Those of the component that serves.
        providers: Providers that can be used here, in the operator's order.
        config: The agent's settings.

    Raises:
        SelectionError: None fits.
    """
    from device_agent.inference.devices.providers import device_profile, without

    # How much memory is free now says nothing of the day on which the variant is loaded.
    profile = replace(device_profile(tuple(providers)), memory_bytes=None)
    chosen = [select_variant(variants, profile, wanted=config.runtime.variant).chosen]
    while config.runtime.policy == "fallback":
        profile = without(profile, chosen[-1].requirements.provider)
        try:
            chosen.append(select_variant(variants, profile, wanted=config.runtime.variant).chosen)
        except SelectionError:
            break
    return [variant.name for variant in chosen]


def step_back() -> None:
    """Give way to whatever else this machine does, and end with the parent: no work is left behind by a killed one."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    # If memory runs out, it is the candidate that the kernel ends, not what serves.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    import ctypes

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        parent = os.getppid()
        prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    step_back()
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
