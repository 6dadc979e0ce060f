from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.inference.devices.providers import CPU_PROVIDER, ProviderStatus
from device_agent.inference.session import Session
from device_agent.models import encoders, memory
from device_agent.models.engines import likely_variant, open_best
from device_agent.models.loaded import LoadedModel
from device_agent.models.loading import load_model, log_kernels
from edgeonnx.bundle import Verifier, open_bundle
from edgeonnx.errors import (
    GoldenSetError,
    IntegrityError,
    ManifestError,
    MemoryBudgetError,
    NotABundleError,
    SelectionError,
)
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.selection import DeviceProfile
from tests.support import bundles
from tests.support.agent import ROOT, environment
from tests.support.cpus import profile_of
from tests.support.tamper import edit_json, relist, replace_asset

CUDA = "CUDAExecutionProvider"
CONFIG = AgentConfig(runtime=RuntimeConfig(threads=1, runners=1))
CPU_ONLY = (ProviderStatus(name=CPU_PROVIDER, usable=True),)
WITH_CUDA = (ProviderStatus(name=CUDA, usable=True), *CPU_ONLY)
GPU_PROFILE = DeviceProfile(providers=(CUDA, CPU_PROVIDER))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=5)
        assert not thread.is_alive(), thread.name


def load(path: Path, config: AgentConfig = CONFIG, **how: object) -> LoadedModel:
    """Load a model whose threads end at once."""
    loaded = load_model(path, config, **how)  # type: ignore[arg-type]
    assert loaded.close(timeout=5)
    return loaded


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("task", list(bundles.OUTPUTS))
def test_a_good_bundle_of_every_task_loads(tmp_path: Path, task: Task) -> None:
    loaded = load(bundles.make_bundle(tmp_path, task))
    assert (loaded.name, loaded.version, loaded.manifest.task) == ("tiny", "1.0.0", task)
    assert loaded.engine.provider == CPU_PROVIDER
    assert list(loaded.seconds) == ["open", "verify", "session", "tokenizer", "golden"]
    assert loaded.memory_bytes >= memory.needed_bytes(loaded.bundle, loaded.engine.variant)


def test_a_default_prompt_is_part_of_the_golden_texts(tmp_path: Path) -> None:
    load(bundles.make_bundle(tmp_path, prefix="the "))


def test_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(NotABundleError):
        load(tmp_path / "nothing")


def test_a_flipped_byte_is_found_before_the_model_is_loaded(tmp_path: Path) -> None:
    bundle = bundles.make_bundle(tmp_path)
    flip(bundle / "encoder/cpu-fp32/model.onnx")
    with pytest.raises(IntegrityError, match=r"encoder/cpu-fp32/model\.onnx"):
        load(bundle)


def test_what_another_variant_needs_is_not_hashed(tmp_path: Path) -> None:
    bundle = bundles.make_bundle(tmp_path, variants=bundles.CPU_VARIANTS)
    flip(bundle / "encoder/cpu-fp32/model.onnx")
    loaded = load(bundle, profile=profile_of("Ice Lake"))
    assert loaded.engine.variant.name == "cpu-int8"
    used = {name for name in loaded.verifier.verified if name.startswith("encoder/cpu")}
    assert used == {"encoder/cpu-int8/model.onnx"}


def test_a_model_that_does_not_give_the_golden_answers_never_serves(tmp_path: Path) -> None:
    with pytest.raises(GoldenSetError, match="scaled_diff"):
        load(bundles.make_bundle(tmp_path, bias=0.01))


def test_an_output_that_the_golden_set_leaves_unproven_never_serves(tmp_path: Path) -> None:
    bundle = bundles.make_bundle(tmp_path, Task.TEXT_CLASSIFICATION)

    def forget_scores(folder: Path) -> None:
        (folder / "outputs.scores.npy").unlink()
        edit_json(folder, "golden.json", lambda document: document.update(outputs=["logits"]))

    replace_asset(bundle, "golden.json", forget_scores)
    with pytest.raises(ManifestError, match="other outputs than the component's signature"):
        load(bundle)


def test_a_tokenizer_that_gives_other_ids_never_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = bundles.tokenizer_json().replace(b'"cat": 6, "dog": 7', b'"cat": 7, "dog": 6')
    assert other != bundles.tokenizer_json()
    golden = bundles.golden_set(Task.EMBEDDING)
    monkeypatch.setattr(bundles, "golden_set", lambda *args: golden)
    monkeypatch.setattr(bundles, "tokenizer_json", lambda: other)
    with pytest.raises(GoldenSetError, match="other input_ids"):
        load(bundles.make_bundle(tmp_path))


def test_a_bundle_that_changes_while_it_loads_never_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundles.make_bundle(tmp_path)
    prove = encoders.prove

    def write_meanwhile(*args: object) -> None:
        prove(*args)  # type: ignore[arg-type]
        graph = bundle / "encoder/cpu-fp32/model.onnx"
        graph.write_bytes(graph.read_bytes())

    monkeypatch.setattr(encoders, "prove", write_meanwhile)
    with pytest.raises(IntegrityError, match="changed while it was loaded; encoder/cpu-fp32/model"):
        load(bundle)


def test_files_that_change_afterwards_are_named(tmp_path: Path) -> None:
    loaded = load(bundles.make_bundle(tmp_path))
    assert loaded.changed_files() == ()
    (loaded.bundle.root / "evidence.json").unlink()
    assert loaded.changed_files() == ("evidence.json",)


def test_the_operators_choice(tmp_path: Path) -> None:
    with pytest.raises(SelectionError, match="no variant cpu-int8"):
        load(bundles.make_bundle(tmp_path), AgentConfig(runtime=RuntimeConfig(variant="cpu-int8")))


@pytest.mark.parametrize(
    ("cpu", "serves", "not_used"),
    [
        ("Ice Lake", "cpu-int8", {"cpu-int8-7bit": "cpu-int8 is preferred", "cpu-fp32": "cpu-int8 is preferred"}),
        ("Jetson Orin", "cpu-int8", {"cpu-int8-7bit": "cpu-int8 is preferred", "cpu-fp32": "cpu-int8 is preferred"}),
        (
            "Core i5-4300U",
            "cpu-int8-7bit",
            {
                "cpu-int8": "int8 weights up to 127 would saturate on this CPU: x86-64 without VNNI adds pairs of "
                "products in 16 bits",
                "cpu-fp32": "cpu-int8-7bit is preferred",
            },
        ),
    ],
)
def test_each_cpu_gets_the_variant_that_is_right_on_it_and_is_told_why(
    tmp_path: Path, cpu: str, serves: str, not_used: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    bundle = bundles.make_bundle(tmp_path, variants=bundles.CPU_VARIANTS)
    with caplog.at_level(logging.INFO, logger="edgeonnx.agent"):
        loaded = load(bundle, profile=profile_of(cpu))
    assert loaded.engine.variant.name == serves
    assert loaded.engine.not_used == not_used
    lines = [record.message for record in caplog.records]
    precision = serves.removeprefix("cpu-")
    assert lines[0] == (
        f"tiny 1.0.0: variant {serves} ({precision}) serves on CPUExecutionProvider; {loaded.engine.assignment}"
    )
    assert "on CPU (100.0 %)" in lines[0]
    assert lines[1].startswith("tiny 1.0.0: runners 1, threads of each 1 (")
    assert lines[2:] == [f"tiny 1.0.0: variant {name} is not used: {reason}" for name, reason in not_used.items()]
    assert loaded.variants() == tuple(
        (f"cpu-{name}", name, not_used.get(f"cpu-{name}")) for name in ("int8", "int8-7bit", "fp32")
    )


def test_a_log_line_about_a_variant_holds_no_escape_sequence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bundle = bundles.make_bundle(tmp_path)
    edit_json(
        bundle,
        "encoder/component.json",
        lambda c: c["variants"]["cpu-fp32"]["executor_info"]["edgeonnx"].update(precision="\x1b[2J\nfp32"),
    )
    relist(bundle)
    with caplog.at_level(logging.INFO, logger="edgeonnx.agent"):
        load(bundle)
    assert "(\\x1b[2J\\nfp32)" in caplog.records[0].message


class FakeSession:
    """A session on any provider, which does not run."""

    inputs = bundles.INPUTS
    outputs = ("sentence_embedding",)

    def __init__(self, model: Path, tensors: Path | None, *, provider: str, **how: object) -> None:
        self.providers = (provider, CPU_PROVIDER)


def test_the_variant_that_takes_a_lost_providers_place_is_hashed_before_it_is_opened(tmp_path: Path) -> None:
    path = bundles.make_bundle(tmp_path, providers=(CUDA, CPU_PROVIDER))
    flip(path / "encoder/cpu-fp32/model.onnx")
    bundle = open_bundle(path)
    verifier = Verifier(bundle)
    best = open_best(
        bundle,
        CONFIG,
        WITH_CUDA,
        profile=GPU_PROFILE,
        verifier=verifier,
        open_session=FakeSession,  # type: ignore[arg-type]
    )
    assert best.opened.variant.name == "cuda-fp32"
    assert "encoder/cpu-fp32/model.onnx" not in verifier.verified
    assert best.reopen is not None
    with pytest.raises(IntegrityError, match="cpu-fp32"):
        best.reopen({CUDA: "lost"})


class AnsweringSession(FakeSession):
    """A session that computes the tiny model, but on the CPU with this much added to every answer."""

    cpu_error = 0.0

    def run(self, inputs: dict, outputs: object = None) -> dict:
        error = self.cpu_error if self.providers[0] == CPU_PROVIDER else 0.0
        return {name: value + error for name, value in bundles.reference(Task.EMBEDDING, inputs).items()}


@pytest.mark.parametrize(("error", "serves"), [(0.0, True), (0.5, False)])
def test_what_takes_a_lost_providers_place_is_proven_too(tmp_path: Path, error: float, serves: bool) -> None:
    bundle = open_bundle(bundles.make_bundle(tmp_path, providers=(CUDA, CPU_PROVIDER)))
    kind = type("Session", (AnsweringSession,), {"cpu_error": error})
    best = open_best(bundle, CONFIG, WITH_CUDA, profile=GPU_PROFILE, open_session=kind)  # type: ignore[arg-type]
    assert best.reopen is not None
    if serves:
        assert best.reopen({CUDA: "lost"}).variant.name == "cpu-fp32"
        return
    with pytest.raises(SelectionError) as caught:
        best.reopen({CUDA: "lost"})
    assert "golden set" in str(caught.value)


def test_onnx_runtime_is_imported_after_numpy_as_a_whole(tmp_path: Path) -> None:
    """Two threads of an agent that starts import both. ONNX Runtime's library fails on a NumPy that is half there."""
    program = """
import sys
from pathlib import Path
class Watch:
    def find_spec(self, name, *_):
        if name == "onnxruntime":
            print("numpy" in sys.modules and not getattr(sys.modules["numpy"].__spec__, "_initializing", False))
from device_agent.config import AgentConfig
from device_agent.models.loading import load_model
assert "numpy" not in sys.modules
sys.meta_path.insert(0, Watch())
load_model(Path(sys.argv[1]), AgentConfig()).close(5)
"""
    bundle = bundles.make_bundle(tmp_path)
    found = subprocess.run(
        [sys.executable, "-c", program, str(bundle)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["True"]


def test_likely_variant(tmp_path: Path) -> None:
    manifest = open_bundle(bundles.make_bundle(tmp_path)).manifest
    assert likely_variant(manifest, None) is manifest.entry_component.variants[0]
    assert likely_variant(manifest, "cpu-int8") is None
    gpu = open_bundle(bundles.make_bundle(tmp_path, name="gpu", providers=(CUDA, CPU_PROVIDER))).manifest
    assert likely_variant(gpu, None) is None


@pytest.mark.parametrize("beside", [None, "tiny 0.9.0"])
def test_a_model_that_the_budget_has_no_room_for_is_refused_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: str | None
) -> None:
    monkeypatch.setattr(Session, "__init__", lambda *args, **how: pytest.fail("it was opened"))
    config = AgentConfig(runtime=RuntimeConfig(memory_bytes=10_000))
    with pytest.raises(MemoryBudgetError, match=r"tiny 1\.0\.0, variant cpu-fp32: .* at least") as caught:
        load(bundles.make_bundle(tmp_path), config, taken=memory.Taken(now=9_900), beside=beside)
    assert ("a swap needs both versions at once" in str(caught.value)) == (beside is not None)


def test_a_smaller_variant_serves_where_the_preferred_one_does_not_fit(tmp_path: Path) -> None:
    bundle = bundles.make_bundle(tmp_path, variants=bundles.CPU_VARIANTS)
    edit_json(
        bundle,
        "encoder/component.json",
        lambda c: c["variants"]["cpu-int8"]["executor_info"]["edgeonnx"]["requirements"].update(memory_bytes=1 << 50),
    )
    relist(bundle)
    loaded = load(bundle, profile=profile_of("Ice Lake"))
    assert loaded.engine.variant.name == "cpu-int8-7bit"
    assert "bytes of memory" in loaded.engine.not_used["cpu-int8"]


def test_a_model_that_takes_more_than_it_says_is_refused_when_that_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usages = iter([memory.NOTHING, replace(memory.NOTHING, anonymous=60_000)])
    monkeypatch.setattr(memory, "usage", lambda: next(usages))
    config = AgentConfig(runtime=RuntimeConfig(memory_bytes=50_000, threads=1, runners=1))
    with pytest.raises(MemoryBudgetError, match="found 60,000 bytes measured"):
        load(bundles.make_bundle(tmp_path), config)


def test_an_agent_without_compiled_kernels_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="edgeonnx.agent"):
        log_kernels(None)
        assert not caplog.records
        log_kernels("edgeonnx_ext._bpe does not load: no such file")
    assert [record.message for record in caplog.records] == [
        (
            "compiled kernels are missing, plain Python tokenizes, many times slower: "
            "edgeonnx_ext._bpe does not load: no such file"
        )
    ]
