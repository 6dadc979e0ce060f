from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from device_agent.models.caches import CacheBudget
from device_agent.models.loaded import LoadedDecoder, LoadedEncoder, decoder_of, encoder_of
from device_agent.models.memory import Usage
from device_agent.systemd import Work
from edgeonnx.errors import InvalidRequestError
from edgeonnx.spec.manifest import Task

COMMON: dict[str, Any] = {
    "engine": SimpleNamespace(variant=SimpleNamespace(name="v", requirements=SimpleNamespace(memory_bytes=1000))),
    "verifier": None,
    "plan": None,
    "loaded_at": 0.0,
    "memory": Usage(anonymous=300, mapped=200),
    "seconds": {},
    "text": SimpleNamespace(backend="bpe-native"),
}


def bundle_of(task: Task) -> Any:
    manifest = SimpleNamespace(name="m", version="1", task=task, entry="decoder")
    return SimpleNamespace(manifest=manifest, contents=SimpleNamespace(files=()))


def encoder(rows: int = 0, running: int = 0, runs: int = 0, failed: int = 0) -> LoadedEncoder:
    counts = SimpleNamespace(runs=runs, failed=failed)
    state = SimpleNamespace(rows=rows, running_tokens=running, requests=rows, counts=counts)
    batcher: Any = SimpleNamespace(state=lambda: state)
    return LoadedEncoder(bundle=bundle_of(Task.EMBEDDING), batcher=batcher, **COMMON)


def decoder(*, closes: bool = True, **state: Any) -> LoadedDecoder:
    found = {"active": 0, "waiting": 0, "steps": 0, "prompts": 0, "finished": {}, "cache_bytes": 0, **state}
    generator: Any = SimpleNamespace(state=lambda: SimpleNamespace(**found), close=lambda timeout: closes)
    return LoadedDecoder(
        bundle=bundle_of(Task.TEXT_GENERATION),
        generator=generator,
        caches=CacheBudget(limit=64_000, context_length=128),
        **COMMON,
    )


def test_the_watchdog_sees_work_and_progress_of_an_encoder() -> None:
    assert encoder(0, 0, 7).work() == Work(busy=False, finished=7)
    assert encoder(1, 0, 7).work() == Work(busy=True, finished=7)
    assert encoder(0, 16, 8).work() == Work(busy=True, finished=8)
    assert encoder(1, 16, 8, failed=3).work() == Work(busy=True, finished=11)


def test_the_watchdog_sees_work_and_progress_of_a_decoder() -> None:
    assert decoder(steps=7, prompts=2).work() == Work(busy=False, finished=9)
    assert decoder(active=1, steps=7, prompts=2).work() == Work(busy=True, finished=9)
    assert decoder(waiting=1).work() == Work(busy=True, finished=0)
    assert decoder(waiting=1, finished={"error": 3, "stop": 1}).work() == Work(busy=True, finished=4)


def test_the_caches_of_a_decoder_count_as_they_are_and_are_reserved_as_they_may_become() -> None:
    model = decoder(cache_bytes=5000)
    assert (model.memory_bytes, model.reserved_bytes) == (6000, 65_000)
    assert (encoder().memory_bytes, encoder().reserved_bytes) == (1000, 1000)


def test_a_session_is_let_go_when_no_thread_uses_it_any_more() -> None:
    let_go: list[str] = []
    for closes in (False, True):
        model = decoder(closes=closes)
        object.__setattr__(model, "on_close", lambda: let_go.append("gone"))
        assert model.close(0.1) is closes
    assert let_go == ["gone"]


def test_a_route_for_one_kind_refuses_the_other_in_words() -> None:
    assert isinstance(encoder_of(encoder()), LoadedEncoder)
    assert isinstance(decoder_of(decoder()), LoadedDecoder)
    with pytest.raises(InvalidRequestError, match="generates text") as caught:
        encoder_of(decoder())
    assert "/v1/chat/completions" in (caught.value.hint or "")
    with pytest.raises(InvalidRequestError, match="does not generate text") as caught:
        decoder_of(encoder())
    assert "/v2/models/m/infer" in (caught.value.hint or "")
