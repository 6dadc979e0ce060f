"""Finding out, by trying, which execution providers work here.

Only a provider that ONNX Runtime was built with, and that is not part of ONNX Runtime itself, needs a trial; so on a
machine with the plain CPU build nothing is started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from device_agent.inference.devices.machine import driver_version, is_jetson, nvidia_device_files, nvidia_hardware
from device_agent.inference.devices.providers import BY_NAME, OptionSettings, ProviderStatus, options_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_agent.inference.devices.diagnosis import Trial

TRIAL_SECONDS = 120.0
"""A GPU that has slept may take many seconds to answer, and CUDA may compile its kernels for it at the first use."""
MAX_LOG = 64 << 10

_FOUND: dict[tuple[str, OptionSettings], ProviderStatus] = {}
_FIRST = threading.Lock()

_ROOT = Path(__file__).resolve().parents[3]
_PROGRAM = (
    "import sys; sys.path.append({root!r}); from device_agent.inference.devices.trial import main; main({argument!r})"
)


def probe(names: Sequence[str], settings: OptionSettings) -> tuple[ProviderStatus, ...]:
    """Try providers, several at a time.

    Args:
        names: ONNX Runtime's names, in order of preference.
        settings: What options depend on.

    Returns:
        One status for each, in the same order, with the options that it will be given.
    """
    to_try = [name for name in names if BY_NAME[name].library is not None]
    found = {name: ProviderStatus(name=name, usable=True) for name in names}
    if to_try:
        from concurrent.futures import ThreadPoolExecutor

        from device_agent.inference.devices.diagnosis import diagnose

        with ThreadPoolExecutor(max_workers=len(to_try)) as pool:
            for trial in pool.map(lambda name: try_provider(name, settings), to_try):
                found[trial.name] = diagnose(trial)
    return tuple(replace(found[name], options=options_of(name, settings)) for name in names)


def probe_once(names: Sequence[str], settings: OptionSettings) -> tuple[ProviderStatus, ...]:
    """As `probe`, but each provider is tried once in the life of the process: several models ask the same."""
    with _FIRST:
        unknown = [name for name in names if (name, settings) not in _FOUND]
        _FOUND.update({(status.name, settings): status for status in probe(unknown, settings)})
        return tuple(_FOUND[name, settings] for name in names)


def try_provider(name: str, settings: OptionSettings) -> Trial:
    """Try one provider with a library of its own, in a process of its own."""
    import onnxruntime as ort

    from device_agent.inference.devices.diagnosis import Trial

    trial = Trial(
        name=name,
        built_in=name in ort.get_available_providers(),
        runtime=ort.__version__,
        package=str(getattr(ort, "package_name", "") or ""),
        cuda=str(getattr(ort, "cuda_version", "") or ""),
        driver=driver_version(),
        device_nodes=bool(nvidia_device_files()),
        hardware=nvidia_hardware(),
        jetson=is_jetson(),
    )
    library = BY_NAME[name].library
    if not trial.built_in or library is None:
        return trial
    path = Path(ort.__file__).parent / "capi" / library
    options = {option: value for option, value, _ in options_of(name, replace(settings, cache=None))}
    trial = _run_trial(trial, {**options, **dict(BY_NAME[name].trial)})
    if name in trial.loaded and not trial.error:
        return trial
    return replace(trial, library_present=path.exists(), missing=missing_libraries(path))


def _run_trial(trial: Trial, options: dict[str, str], *, timeout: float = TRIAL_SECONDS) -> Trial:
    """Run `trial.main` in a process of its own and read its outcome."""
    argument = json.dumps({"provider": trial.name, "options": options})
    # -P: the working directory must not lend modules to the process.
    command = [sys.executable, "-P", "-c", _PROGRAM.format(root=str(_ROOT), argument=argument)]
    begun = time.perf_counter()
    exit_code: int | None
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter with our own program
            command, capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False
        )
        exit_code, out, log = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        exit_code, out, log = None, b"", error.stderr or b""
    except OSError as error:
        return replace(trial, error=f"the trial could not be started: {error}")
    tried = replace(
        trial,
        exit_code=exit_code,
        log=log[-MAX_LOG:].decode("utf-8", errors="replace"),
        seconds=time.perf_counter() - begun,
    )
    return _with_outcome(tried, out)


def _with_outcome(trial: Trial, out: bytes) -> Trial:
    if trial.exit_code != 0:
        return replace(trial, error="" if (trial.exit_code or -1) < 0 else trial.log[-400:])
    try:
        outcome = json.loads(out)
        return replace(trial, loaded=tuple(map(str, outcome["loaded"])), error=str(outcome["error"]))
    except (ValueError, KeyError, TypeError):
        return replace(trial, error=f"the trial gave no outcome: {out[:200]!r}")


def missing_libraries(library: Path) -> tuple[str, ...]:
    """The shared libraries that the dynamic linker does not find for `library`, those that they need included.

    glibc's linker answers this itself: asked to trace, it lists what it would load, and runs nothing. Where that is
    not possible (another C library, a path that its list cannot hold) the answer is empty, and the first missing name
    is still in ONNX Runtime's message.
    """
    if sys.platform != "linux" or any(sign in str(library) for sign in " :;"):
        return ()
    folders = [*map(str, library_folders(library)), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {
        **os.environ,
        "LD_TRACE_LOADED_OBJECTS": "1",
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": ":".join(folder for folder in folders if folder),
    }
    try:
        traced = subprocess.run(
            [sys.executable], env=environment, capture_output=True, timeout=30, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_trace(traced.stdout.decode("utf-8", errors="replace"))


def library_folders(library: Path) -> tuple[Path, ...]:
    """Folders beside ONNX Runtime in which Python packages put the libraries of NVIDIA."""
    packages = library.parent.parent.parent
    return (library.parent, *sorted(packages.glob("nvidia/*/lib")), *sorted(packages.glob("tensorrt_libs")))


def parse_trace(text: str) -> tuple[str, ...]:
    """The names that the dynamic linker does not find, in its own order, from the list that it prints. Pure."""
    names = (line.split("=>")[0].strip() for line in text.splitlines() if line.rstrip().endswith("=> not found"))
    return tuple(dict.fromkeys(names))
