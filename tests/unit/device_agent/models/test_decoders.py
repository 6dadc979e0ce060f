"""A decoder's bundle becomes a model that may serve, or is refused with the reason."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_agent.config import AgentConfig, GenerationConfig, RuntimeConfig
from device_agent.inference import session as session_module
from device_agent.inference.devices import opening as devices_opening
from device_agent.inference.devices.providers import CPU_PROVIDER, ProviderStatus
from device_agent.inference.engine import DecoderEngine
from device_agent.inference.generation.generator import Generator
from device_agent.inference.generation.request import Finished, GenerationRequest
from device_agent.inference.session import Session
from device_agent.models import decoders as opening
from device_agent.models.decoders import answers_of, generation_of, padded
from device_agent.models.engines import open_best
from device_agent.models.loaded import LoadedDecoder
from device_agent.models.loading import load_model
from edgeonnx.bundle import open_bundle
from edgeonnx.errors import (
    GoldenSetError,
    IntegrityError,
    ManifestError,
    MemoryBudgetError,
    ProviderLostError,
    SelectionError,
)
from edgeonnx.spec.selection import DeviceProfile
from tests.support import decoders
from tests.support.decoders import make_decoder_bundle
from tests.support.tamper import edit_json, relist

CUDA = "CUDAExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
WITH_CUDA = (ProviderStatus(name=CUDA, usable=True), ProviderStatus(name=CPU_PROVIDER, usable=True))
GPU_PROFILE = DeviceProfile(providers=(CUDA, CPU_PROVIDER))
EACH = decoders.TinyDecoder().cache.bytes_per_token(4)
"""Bytes of one token in the caches."""


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=5)
        assert not thread.is_alive(), thread.name


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder_bundle(tmp_path_factory.mktemp("decoder"))


def config(memory_bytes: int | None = None, **generation: Any) -> AgentConfig:
    runtime = RuntimeConfig(threads=1, memory_bytes=memory_bytes)
    return AgentConfig(runtime=runtime, generation=GenerationConfig(**generation))


def load(path: Path, settings: AgentConfig | None = None) -> LoadedDecoder:
    loaded = load_model(path, settings or config())
    assert loaded.close(timeout=5)
    assert isinstance(loaded, LoadedDecoder)
    return loaded


def generated(generator: Generator, prompt: str, count: int) -> tuple[str, Finished]:
    """A greedy answer of so many tokens, stop tokens ignored, and its end."""
    done = threading.Event()
    events: list[Any] = []

    def sink(found: Any) -> None:
        events.extend(found)
        if not hasattr(found[-1], "text"):
            done.set()

    request = GenerationRequest(prompt=tuple(decoders.encode(prompt)), max_tokens=count, ignore_stop_ids=True)
    generator.submit(request, sink)
    assert done.wait(10)
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events[:-1]), events[-1]


def test_a_decoder_loads_proves_itself_and_generates(path: Path) -> None:
    loaded = load_model(path, config())
    assert isinstance(loaded, LoadedDecoder)
    try:
        assert (loaded.engine.variant.name, loaded.engine.provider) == ("cpu-fp32", CPU_PROVIDER)
        assert loaded.plan.runners == 1
        assert loaded.plan.threads == 1
        assert loaded.caches.context_length == 256
        assert loaded.text.chat is not None
        assert set(loaded.seconds) == {"open", "verify", "session", "tokenizer", "golden"}
        assert not loaded.work().busy
        text, end = generated(loaded.generator, "the cat", 8)
        assert (end.reason, end.completion_tokens) == ("length", 8)
        assert text
        assert loaded.runs >= 8
        assert loaded.reserved_bytes > loaded.memory_bytes
    finally:
        assert loaded.close(timeout=5)


def test_a_model_that_is_unloaded_leaves_nothing_to_the_garbage_collector(path: Path) -> None:
    """Models that were loaded at the start are frozen: a cycle would keep their memory for good."""
    loaded = load_model(path, config())
    assert isinstance(loaded, LoadedDecoder)
    generated(loaded.generator, "the cat", 4)
    gc.collect()
    gc.disable()
    try:
        seen = [weakref.ref(each) for each in (loaded, loaded.generator, loaded.engine, loaded.engine.session)]
        assert loaded.close(timeout=5)
        del loaded
        assert [each() for each in seen] == [None] * 4
    finally:
        gc.enable()


def test_two_versions_share_a_tokenizer_that_is_the_same(path: Path, tmp_path: Path) -> None:
    others = make_decoder_bundle(tmp_path, version="2", seed=2), make_decoder_bundle(tmp_path, chat_template="{{ 1 }}")
    first, same, other = load(path), *(load(each) for each in others)
    assert first.text is same.text
    assert first.text is not other.text


def test_a_model_without_a_chat_template(tmp_path: Path) -> None:
    assert load(make_decoder_bundle(tmp_path, chat_template=None)).text.chat is None


@pytest.mark.parametrize(("half", "itemsize"), [(False, 4), (True, 2)])
def test_the_caches_get_what_the_settings_and_the_graph_say(tmp_path: Path, half: bool, itemsize: int) -> None:
    caches = load(make_decoder_bundle(tmp_path, half=half), config(max_sequences=3, max_context=100)).caches
    assert caches.context_length == 100
    assert caches.limit == 3 * 256 * decoders.TinyDecoder().cache.bytes_per_token(itemsize)


def test_a_model_that_the_budget_has_no_room_for_is_refused_before_it_is_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "__init__", lambda *args, **how: pytest.fail("it was opened"))
    weights = load_room(path)
    with pytest.raises(MemoryBudgetError, match=r"tiny-lm 1\.0\.0, variant cpu-fp32"):
        load_model(path, config(memory_bytes=weights - 1))
    # The weights fit, and not one sequence beside them.
    with pytest.raises(MemoryBudgetError, match="at least"):
        load_model(path, config(memory_bytes=weights + 256 * EACH - 1))


def load_room(path: Path) -> int:
    """Bytes that the weights of a bundle's only variant take."""
    from device_agent.models.memory import needed_bytes

    bundle = open_bundle(path)
    return needed_bytes(bundle, bundle.manifest.entry_component.variants[0])


def test_the_caches_get_half_of_what_the_weights_leave(path: Path) -> None:
    room = 16 << 20
    half = (room - load_room(path)) // 2
    assert load(path, config(memory_bytes=room, max_sequences=60)).caches.limit == 60 * 256 * EACH < half
    assert load(path, config(memory_bytes=room, max_sequences=256)).caches.limit == half
    assert load(path, config(memory_bytes=room, max_sequences=256, cache_bytes=half + 5)).caches.limit == half + 5
    with pytest.raises(MemoryBudgetError, match="beside the weights"):
        load_model(path, config(memory_bytes=room, max_sequences=256, cache_bytes=room))


def test_a_shorter_context_is_told_in_the_log(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="edgeonnx.agent"):
        assert load(path, config(cache_bytes=300 * EACH)).caches.context_length == 256
        assert not [record for record in caplog.records if record.levelname == "WARNING"]
    with pytest.raises(MemoryBudgetError, match=r"generation\.cache_bytes"):
        load(path, config(cache_bytes=200 * EACH))


def test_golden_answers_that_are_not_reproduced_never_serve(tmp_path: Path) -> None:
    with pytest.raises(GoldenSetError, match="not reproduced"):
        load_model(make_decoder_bundle(tmp_path, golden_error=0.5), config())


def test_a_tokenizer_that_gives_other_ids_never_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = decoders.tokenizer_json().replace(b'"add_prefix_space": false', b'"add_prefix_space": true')
    monkeypatch.setattr(decoders, "tokenizer_json", lambda: other)
    golden = decoders.golden_set()
    monkeypatch.setattr(decoders, "golden_set", lambda *args, **how: golden)
    bundle = make_decoder_bundle(tmp_path)
    with pytest.raises(GoldenSetError, match="text path gives"):
        load_model(bundle, config())


def test_a_chat_template_that_is_broken_never_serves(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="template is broken"):
        load_model(make_decoder_bundle(tmp_path, chat_template="{% for %}"), config())


def test_a_stop_token_that_the_graph_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="found 9999"):
        load_model(make_decoder_bundle(tmp_path, stop_ids=(9999,)), config())


def test_a_graph_that_has_other_caches_than_the_manifest_says(tmp_path: Path) -> None:
    path = make_decoder_bundle(tmp_path)

    def spoil(manifest: Any) -> None:
        manifest["additional_metadata"]["edgeonnx"]["generation"]["cache"]["heads"] = 3

    edit_json(path, "manifest.json", spoil)
    relist(path)
    with pytest.raises(ManifestError, match=r"decoder/cpu-fp32, past_key_values\.0\.key"):
        load_model(path, config())


def test_a_bundle_that_changes_while_it_loads_never_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_decoder_bundle(tmp_path)
    prove = opening.prove

    def write_meanwhile(*args: Any) -> None:
        prove(*args)
        file = path / "decoder/cpu-fp32/model.onnx"
        file.write_bytes(file.read_bytes())

    monkeypatch.setattr(opening, "prove", write_meanwhile)
    with pytest.raises(IntegrityError, match="changed while it was loaded"):
        load_model(path, config())


class OnGpu(Session):
    """A session that says it runs on a GPU; the CPU does the work, `error` beside the truth where it is asked for."""

    error = 0.0

    def __init__(self, *args: Any, provider: str, plan: Any = None, **how: Any) -> None:
        super().__init__(*args, provider=CPU_PROVIDER, **how)
        self.providers = tuple(dict.fromkeys((provider, CPU_PROVIDER)))


def engine_of(path: Path, open_session: Callable[..., Session] = OnGpu) -> DecoderEngine:
    bundle = open_bundle(path)
    best = open_best(
        bundle,
        config(),
        WITH_CUDA,
        profile=GPU_PROFILE,
        open_session=open_session,
        answers=partial(answers_of, generation_of(bundle)),
    )
    return best.engine(DecoderEngine)


def test_the_session_that_takes_a_lost_providers_place_is_proven_too(tmp_path: Path) -> None:
    good = engine_of(make_decoder_bundle(tmp_path, providers=(CUDA, CPU_PROVIDER)))
    assert (good.variant.name, good.provider) == ("cuda-fp32", CUDA)
    session = good.replace(ProviderLostError("the device is gone", found="xid 79"))
    assert session is good.session
    assert (good.variant.name, good.provider, good.fallbacks) == ("cpu-fp32", CPU_PROVIDER, 1)
    assert good.replacements[0].cause == "xid 79"
    with pytest.raises(ProviderLostError) as lost:
        good.replace(ProviderLostError("this one too"))
    assert "nothing takes its place" in str(lost.value)
    wrong = make_decoder_bundle(tmp_path, name="wrong", providers=(CUDA, CPU_PROVIDER), golden_error=0.5)
    with pytest.raises(ProviderLostError, match="golden set"):
        engine_of(wrong).replace(ProviderLostError("gone"))


class Dying(OnGpu):
    """A session on a provider that stops to answer after some runs."""

    left = 40

    def run_bound(self, binding: Any) -> None:
        if self.providers[0] == OPENVINO:
            Dying.left -= 1
            if Dying.left < 0:
                raise ProviderLostError("the execution provider failed", where=OPENVINO, found="gone")
        super().run_bound(binding)


def test_an_answer_goes_on_where_its_provider_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_decoder_bundle(tmp_path, providers=(OPENVINO, CPU_PROVIDER))
    statuses = tuple(ProviderStatus(name=name, usable=True) for name in (OPENVINO, CPU_PROVIDER))
    monkeypatch.setattr(session_module, "Session", Dying)
    monkeypatch.setattr(devices_opening, "usable_here", lambda *args: statuses)
    loaded = load_model(path, config(), profile=DeviceProfile(providers=(OPENVINO, CPU_PROVIDER)))
    assert isinstance(loaded, LoadedDecoder)
    try:
        assert loaded.engine.provider == OPENVINO
        whole, _ = generated(loaded.generator, "the cat", 8)
        monkeypatch.setattr(Dying, "left", 4)
        again, end = generated(loaded.generator, "the cat", 8)
        assert (again, end.completion_tokens) == (whole, 8)
        assert (loaded.engine.provider, loaded.engine.fallbacks) == (CPU_PROVIDER, 1)
        assert loaded.generator.state().recovered == 1
        assert {name: reason for name, _, reason in loaded.variants()}["openvino-fp32"] is not None
    finally:
        assert loaded.close(timeout=5)


def test_a_lost_provider_is_not_replaced_where_the_operator_says_so(path: Path) -> None:
    bundle = open_bundle(path)
    settings = replace(config(), runtime=RuntimeConfig(threads=1, policy="refuse"))
    statuses = (ProviderStatus(name=CPU_PROVIDER, usable=True),)
    engine = open_best(bundle, settings, statuses, profile=DeviceProfile(providers=(CPU_PROVIDER,))).engine(
        DecoderEngine
    )
    error = ProviderLostError("gone")
    with pytest.raises(ProviderLostError) as caught:
        engine.replace(error)
    assert caught.value is error


def test_no_variant_for_this_machine(tmp_path: Path) -> None:
    with pytest.raises(SelectionError):
        load_model(make_decoder_bundle(tmp_path, providers=(CUDA,)), config())


def test_rows_as_a_golden_set_has_them() -> None:
    found = padded([[5], [1, 2, 3]], pad_id=9)
    assert np.array_equal(found["input_ids"], [[5, 9, 9], [1, 2, 3]])
    assert np.array_equal(found["attention_mask"], [[1, 0, 0], [1, 1, 1]])
