from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from device_agent.inference.devices import probing
from device_agent.inference.devices.diagnosis import Trial
from device_agent.inference.devices.probing import missing_libraries, parse_trace, probe, try_provider
from device_agent.inference.devices.providers import PREFERENCE, OptionSettings, ProviderStatus
from device_agent.inference.devices.trial import GRAPH, attempt, package_folders

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
TRACE = """\
\tlinux-vdso.so.1 (0x00007fedca2f1000)
\t/venv/libonnxruntime_providers_cuda.so (0x00007fedb5400000)
\tlibcublasLt.so.13 => not found
\tlibcudart.so.13 => /usr/local/cuda-13.0/lib/libcudart.so.13 (0x00007fedb4800000)
\tlibcuda.so.1 => not found
\tlibcublasLt.so.13 => not found
"""


def test_the_linkers_list_names_what_is_not_found_once() -> None:
    assert parse_trace(TRACE) == ("libcublasLt.so.13", "libcuda.so.1")
    assert parse_trace("") == ()


def test_the_graph_of_the_trial_is_a_valid_product() -> None:
    onnx.checker.check_model(onnx.load_model_from_string(GRAPH), full_check=True)


def test_a_trial_on_the_cpu_loads_and_computes() -> None:
    assert attempt(CPU, {}) == {"loaded": [CPU], "error": ""}


def test_a_trial_that_computes_nonsense_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    real = onnxruntime.InferenceSession

    class Wrong:
        def __init__(self, *arguments: object, **options: object) -> None:
            self.session = real(GRAPH, providers=[CPU])

        def get_providers(self) -> list[str]:
            return [CUDA]

        def run(self, *_: object) -> list[np.ndarray]:
            return [np.zeros((2, 2), dtype=np.float32)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Wrong)
    assert "wrong product" in str(attempt(CUDA, {})["error"])


def test_for_providers_that_are_not_built_in_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    statuses = probe(PREFERENCE, OptionSettings())
    assert [status.name for status in statuses] == list(PREFERENCE)
    assert [status.usable for status in statuses][-1]
    assert all(status.reason for status in statuses if not status.usable)


def test_the_cpu_alone_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "try_provider", lambda *_: pytest.fail("it was tried"))
    (status,) = probe((CPU,), OptionSettings())
    assert (status.name, status.usable, status.reason) == (CPU, True, "")


def test_options_are_reported_with_their_reasons() -> None:
    (status,) = probe((CUDA,), OptionSettings(gpu=3))
    assert ("device_id", "3", "the GPU that the operator chose") in status.options


def test_a_provider_is_tried_once_in_the_life_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fake(names: Sequence[str], settings: OptionSettings) -> tuple[ProviderStatus, ...]:
        tried.extend(names)
        return tuple(ProviderStatus(name=name, usable=True) for name in names)

    monkeypatch.setattr(probing, "_FOUND", {})
    monkeypatch.setattr(probing, "probe", fake)
    for names in ((CUDA, CPU), (CPU,), (CPU, CUDA, "OpenVINOExecutionProvider")):
        assert [status.name for status in probing.probe_once(names, OptionSettings())] == list(names)
    assert tried == [CUDA, CPU, "OpenVINOExecutionProvider"]
    probing.probe_once((CUDA,), OptionSettings(gpu=1))
    assert tried[3:] == [CUDA]


def run_program(monkeypatch: pytest.MonkeyPatch, program: str, timeout: float = 20.0) -> Trial:
    monkeypatch.setattr(probing, "_PROGRAM", program)
    return probing._run_trial(Trial(name=CUDA), {"device_id": "0"}, timeout=timeout)


def test_the_outcome_of_a_real_trial_comes_back() -> None:
    tried = probing._run_trial(Trial(name=CPU), {})
    assert (tried.loaded, tried.error, tried.exit_code) == ((CPU,), "", 0)
    assert tried.seconds > 0


@pytest.mark.parametrize(
    ("program", "exit_code", "error"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11, ""),
        ("print('no outcome')", 0, "the trial gave no outcome"),
        ("print('[1, 2]')", 0, "the trial gave no outcome"),
        ("raise SystemExit('broken')", 1, "broken"),
    ],
)
def test_a_trial_that_goes_wrong(monkeypatch: pytest.MonkeyPatch, program: str, exit_code: int, error: str) -> None:
    tried = run_program(monkeypatch, program)
    assert tried.exit_code == exit_code
    assert error in tried.error
    assert not tried.loaded


def test_a_trial_that_hangs_is_ended_and_what_it_said_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys, time; print('waiting for the GPU', file=sys.stderr, flush=True); time.sleep(60)"
    tried = run_program(monkeypatch, program, timeout=0.5)
    assert tried.exit_code is None
    assert "waiting for the GPU" in tried.log


def test_what_libraries_print_does_not_mix_with_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import sys; sys.path.append({root!r}); from device_agent.inference.devices import trial\n"
        "def said(*_):\n  print('EP Error'); import os; os.write(1, b'more'); return dict(loaded=['x'], error='')\n"
        "trial.attempt = said; trial.main({argument!r})"
    )
    tried = run_program(monkeypatch, program)
    assert tried.loaded == ("x",)
    assert "EP Error" not in tried.error


def test_an_interpreter_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "could not be started" in probing._run_trial(Trial(name=CUDA), {}).error


def test_a_built_in_provider_with_a_library_of_its_own_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []

    def fake(trial: Trial, options: dict[str, str], **_: object) -> Trial:
        asked.append(options)
        return replace(trial, error="it does not load")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(probing, "_run_trial", fake)
    tried = try_provider(CUDA, OptionSettings(gpu=1, cache=Path("/never/used")))
    assert asked[0]["device_id"] == "1"
    assert not tried.library_present
    assert tried.built_in


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs glibc's linker and a compiler")
def test_the_linker_names_every_missing_library_also_those_of_libraries(tmp_path: Path) -> None:
    source = tmp_path / "empty.c"
    source.write_text("int nothing;\n")

    def build(name: str, *needs: str) -> Path:
        target = tmp_path / name
        command = [
            "cc",
            "-shared",
            "-fPIC",
            str(source),
            "-o",
            str(target),
            f"-Wl,-soname,{name}",
            "-Wl,--no-as-needed",
        ]
        subprocess.run([*command, f"-L{tmp_path}", *(f"-l:{need}" for need in needs)], check=True)
        return target

    gone = [build("libedgefar.so.1"), build("libedgenear.so.2")]
    middle = build("libedgemiddle.so", "libedgefar.so.1")
    provider = build("libedgeprovider.so", "libedgenear.so.2", "libedgemiddle.so")
    assert missing_libraries(provider) == ()
    for file in gone:
        file.unlink()
    assert sorted(missing_libraries(provider)) == ["libedgefar.so.1", "libedgenear.so.2"]
    middle.unlink()
    assert sorted(missing_libraries(provider)) == ["libedgemiddle.so", "libedgenear.so.2"]


def test_a_path_that_the_linkers_list_cannot_hold_is_not_asked_for(tmp_path: Path) -> None:
    assert missing_libraries(tmp_path / "with space.so") == ()


def test_folders_of_packages_without_importing_them() -> None:
    assert [folder.name for folder in package_folders("device_agent")] == ["device_agent"]
    assert package_folders("edgeonnx_no_such_package") == ()
