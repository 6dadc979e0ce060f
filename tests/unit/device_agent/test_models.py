from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from device_agent.config import AgentConfig
from device_agent.inference.session import CPU_PROVIDER
from device_agent.models import TRANSITIONS, LiveModel, LoadedModel, ModelState, load_model, open_variant
from edgeonnx.bundle import open_bundle
from edgeonnx.errors import (
    GoldenSetError,
    IntegrityError,
    ManifestError,
    ModelNotFoundError,
    NotABundleError,
    NotReadyError,
    RuntimeUnavailableError,
    SelectionError,
)
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.selection import DeviceProfile
from tests.support import bundles
from tests.support.cpus import profile_of
from tests.support.tamper import edit_json, relist, replace_asset

CUDA = "CUDAExecutionProvider"
CONFIG = AgentConfig(threads=1)


def profile(*providers: str) -> DeviceProfile:
    return DeviceProfile(providers=providers)


class FakeSession:
    """A session whose provider loads or not, as the test says."""

    working: tuple[str, ...] = (CPU_PROVIDER,)
    failing: tuple[str, ...] = ()

    def __init__(self, model: Path, tensors: Path | None, *, provider: str, threads: int) -> None:
        if provider in self.failing:
            raise RuntimeUnavailableError("does not load", found="libcublasLt.so.13")
        self.inputs = bundles.INPUTS
        self.outputs = ("sentence_embedding",)
        self.providers = (provider, CPU_PROVIDER) if provider in self.working else (CPU_PROVIDER,)


@pytest.mark.parametrize("task", list(Task))
def test_a_good_bundle_of_every_task_loads(tmp_path: Path, task: Task) -> None:
    loaded = load_model(bundles.make_bundle(tmp_path, task), CONFIG)
    assert loaded.manifest.task is task
    assert loaded.providers == (CPU_PROVIDER,)
    assert list(loaded.seconds) == ["open", "verify", "session", "tokenizer", "golden"]


def test_a_default_prompt_is_part_of_the_golden_texts(tmp_path: Path) -> None:
    load_model(bundles.make_bundle(tmp_path, prefix="the "), CONFIG)


def test_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(NotABundleError):
        load_model(tmp_path / "nothing", CONFIG)


def test_a_flipped_byte_is_found_before_the_model_is_loaded(tmp_path: Path) -> None:
    bundle = bundles.make_bundle(tmp_path)
    graph = bundle / "encoder/cpu-fp32/model.onnx"
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    graph.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"encoder/cpu-fp32/model\.onnx"):
        load_model(bundle, CONFIG)


def test_a_model_that_does_not_give_the_golden_answers_never_serves(tmp_path: Path) -> None:
    with pytest.raises(GoldenSetError, match="scaled_diff"):
        load_model(bundles.make_bundle(tmp_path, bias=0.01), CONFIG)


def test_an_output_that_the_golden_set_leaves_unproven_never_serves(tmp_path: Path) -> None:
    bundle = bundles.make_bundle(tmp_path, Task.TEXT_CLASSIFICATION)
    load_model(bundle, CONFIG)

    def forget_scores(folder: Path) -> None:
        (folder / "outputs.scores.npy").unlink()
        edit_json(folder, "golden.json", lambda document: document.update(outputs=["logits"]))

    replace_asset(bundle, "golden.json", forget_scores)
    with pytest.raises(ManifestError, match="other outputs than the component's signature"):
        load_model(bundle, CONFIG)


def test_a_tokenizer_that_gives_other_ids_never_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = bundles.tokenizer_json().replace(b'"cat": 6, "dog": 7', b'"cat": 7, "dog": 6')
    assert other != bundles.tokenizer_json()
    golden = bundles.golden_set(Task.EMBEDDING)
    monkeypatch.setattr(bundles, "golden_set", lambda task, prefix: golden)
    monkeypatch.setattr(bundles, "tokenizer_json", lambda: other)
    with pytest.raises(GoldenSetError, match="other input_ids"):
        load_model(bundles.make_bundle(tmp_path), CONFIG)


def test_a_variant_that_nothing_here_can_run(tmp_path: Path) -> None:
    bundle = open_bundle(bundles.make_bundle(tmp_path, providers=(CUDA,)))
    with pytest.raises(SelectionError, match=f"needs {CUDA}"):
        open_variant(bundle, profile(CPU_PROVIDER), CONFIG)


def test_the_operators_choice(tmp_path: Path) -> None:
    bundle = open_bundle(bundles.make_bundle(tmp_path))
    with pytest.raises(SelectionError, match="cpu-int8"):
        open_variant(bundle, profile(CPU_PROVIDER), AgentConfig(variant="cpu-int8"))


@pytest.mark.parametrize("failing", [(), (CUDA,)])
def test_a_provider_that_does_not_load_is_named_and_the_cpu_variant_serves(
    tmp_path: Path, failing: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Either the session silently lacks the provider, or opening it raises."""
    bundle = open_bundle(bundles.make_bundle(tmp_path, providers=(CUDA, CPU_PROVIDER)))
    opener = type("Opener", (FakeSession,), {"failing": failing})
    with caplog.at_level(logging.WARNING, logger="edgeonnx.agent"):
        opened = open_variant(bundle, profile(CUDA, CPU_PROVIDER), CONFIG, open_session=opener)
    assert opened.variant.name == "cpu-fp32"
    assert "does not load" in dict(opened.not_used)["cuda-fp32"]
    assert [record.message.split(",")[0] for record in caplog.records] == [f"{CUDA} does not load"]


def test_a_provider_that_loads_is_used(tmp_path: Path) -> None:
    bundle = open_bundle(bundles.make_bundle(tmp_path, providers=(CPU_PROVIDER, CUDA)))
    opener = type("Opener", (FakeSession,), {"working": (CUDA,)})
    opened = open_variant(bundle, profile(CUDA, CPU_PROVIDER), CONFIG, open_session=opener)
    assert opened.variant.name == "cuda-fp32"
    assert dict(opened.not_used) == {"cpu-fp32": "cuda-fp32 is preferred"}


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
        loaded = load_model(bundle, CONFIG, profile=profile_of(cpu))
    assert loaded.variant.name == serves
    assert dict(loaded.not_used) == not_used
    precision = serves.removeprefix("cpu-")
    assert {record.message for record in caplog.records} == {
        f"variant {serves} ({precision}) serves on CPUExecutionProvider",
        *(f"variant {name} is not used: {reason}" for name, reason in not_used.items()),
    }
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
        load_model(bundle, CONFIG)
    assert "(\\x1b[2J\\nfp32)" in caplog.records[0].message


def test_no_provider_is_left(tmp_path: Path) -> None:
    bundle = open_bundle(bundles.make_bundle(tmp_path, providers=(CUDA,)))
    with pytest.raises(SelectionError):
        open_variant(bundle, profile(CUDA, CPU_PROVIDER), CONFIG, open_session=FakeSession)


def test_a_graph_that_is_not_what_the_manifest_says(tmp_path: Path) -> None:
    bundle = open_bundle(bundles.make_bundle(tmp_path))

    class Other(FakeSession):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            self.outputs = ("logits",)

    with pytest.raises(ManifestError, match="other outputs"):
        open_variant(bundle, profile(CPU_PROVIDER), CONFIG, open_session=Other)


def fake_loaded() -> LoadedModel:
    return SimpleNamespace(manifest=SimpleNamespace(name="tiny", version="1.0.0"))  # type: ignore[return-value]


def ready() -> LiveModel:
    live = LiveModel()
    live.serve(fake_loaded())
    return live


def test_every_state_has_its_row_in_the_table() -> None:
    assert set(TRANSITIONS) == set(ModelState)


@pytest.mark.parametrize("state", list(ModelState))
@pytest.mark.parametrize("following", list(ModelState))
def test_transitions_are_those_of_the_table(state: ModelState, following: ModelState) -> None:
    live = LiveModel()
    live.state = state
    if following in TRANSITIONS[state]:
        live._go(following)
        assert live.state is following
    else:
        with pytest.raises(RuntimeError, match=f"from {state.value} to {following.value}"):
            live._go(following)


def test_only_a_ready_model_is_given_out() -> None:
    live = LiveModel()
    with pytest.raises(NotReadyError, match="loading"):
        live.current()
    live.serve(fake_loaded())
    assert live.current().manifest.name == "tiny"
    live.drain()
    with pytest.raises(NotReadyError, match="draining"):
        live.current()


def test_another_name_or_version_is_not_found() -> None:
    live = ready()
    assert live.current("tiny", "1.0.0") is live.loaded
    with pytest.raises(ModelNotFoundError, match="'other'"):
        live.current("other")
    with pytest.raises(ModelNotFoundError, match=r"'2\.0\.0'"):
        live.current("tiny", "2.0.0")


def test_draining_waits_for_requests_in_flight() -> None:
    async def scenario() -> None:
        live = ready()
        with live.use():
            live.drain()
            assert live.in_flight == 1
            assert not await live.drained(0.01)
        assert live.in_flight == 0
        assert await live.drained(0.01)

    asyncio.run(scenario())


def test_a_request_that_fails_is_no_longer_in_flight() -> None:
    live = ready()
    with pytest.raises(LookupError), live.use():
        raise LookupError
    assert live.in_flight == 0


def test_an_agent_without_compiled_kernels_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundles.make_bundle(tmp_path)
    with caplog.at_level(logging.WARNING, logger="edgeonnx.agent"):
        load_model(bundle, CONFIG)
    assert not caplog.records
    monkeypatch.setattr("device_agent.models.NATIVE_PROBLEM", "edgeonnx_ext._bpe does not load: no such file")
    with caplog.at_level(logging.WARNING, logger="edgeonnx.agent"):
        load_model(bundle, CONFIG)
    assert [record.message for record in caplog.records] == [
        (
            "compiled kernels are missing, plain Python tokenizes, many times slower: "
            "edgeonnx_ext._bpe does not load: no such file"
        )
    ]
