"""Providers that fail in mid-flight, in every way, against fake sessions."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from device_agent.inference import engine as engine_module
from device_agent.inference.devices.assignment import Assignment
from device_agent.inference.devices.opening import Opened
from device_agent.inference.engine import Engine
from device_agent.inference.session import DeviceMemoryError
from edgeonnx.errors import InferenceError, InvalidRequestError, ProviderLostError, SelectionError

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
INPUTS = {"x": np.arange(3)}


def lost(provider: str, kind: type[ProviderLostError] = ProviderLostError) -> ProviderLostError:
    return kind("the execution provider failed", where=provider, found="CUDA failure 700: an illegal memory access")


class FakeSession:
    """A session that answers with its name, or fails with `failure`."""

    def __init__(self, provider: str, failure: Exception | None = None) -> None:
        self.providers = tuple(dict.fromkeys((provider, CPU)))
        self.inputs, self.outputs = ("x",), ("y",)
        self.assignment = Assignment.count([(provider, "Relu")])
        self.bound = provider != CPU
        self.failure = failure
        self.runs = 0
        self.gate: Callable[[], None] = lambda: None

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        self.runs += 1
        self.gate()
        if self.failure is not None:
            raise self.failure
        return {"y": inputs["x"] * 2, "by": np.array(self.providers[0])}


def opened(session: FakeSession) -> Opened:
    label = session.providers[0].removesuffix("ExecutionProvider").lower()
    variant = SimpleNamespace(name=f"{label}-fp32")
    return Opened(variant=variant, session=session, not_used={"other": "reason"})  # type: ignore[arg-type]


class Opener:
    """Opens the given sessions one after the other; each call's lost providers are kept."""

    def __init__(self, *sessions: FakeSession | Exception) -> None:
        self.sessions = list(sessions)
        self.calls: list[dict[str, str]] = []
        self.seconds = 0.0

    def __call__(self, lost_providers: Mapping[str, str]) -> Opened:
        self.calls.append(dict(lost_providers))
        time.sleep(self.seconds)
        if not self.sessions:
            raise SelectionError("no variant of the bundle fits this device")
        item = self.sessions.pop(0)
        if isinstance(item, Exception):
            raise item
        return opened(item)


def make(first: FakeSession, reopen: Opener | None) -> Engine:
    start = opened(first)
    return Engine(start.variant, start.session, start.not_used, reopen=reopen)


@pytest.fixture(autouse=True)
def _no_abandoned_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_ABANDONED", [])


def by(answer: Mapping[str, np.ndarray]) -> str:
    return str(answer["by"])


def test_it_runs_on_the_first_session_and_tells_what_it_is() -> None:
    engine = make(FakeSession(CUDA), Opener())
    assert by(engine.run(INPUTS)) == CUDA
    assert (engine.provider, engine.providers) == (CUDA, (CUDA, CPU))
    assert (engine.inputs, engine.outputs) == (("x",), ("y",))
    assert engine.as_dict() == {
        "variant": "cuda-fp32",
        "provider": CUDA,
        "providers": [CUDA, CPU],
        "assignment": {CUDA: {"nodes": 1, "share": 1.0, "operators": {"Relu": 1}}},
        "optimization": "all",
        "io_binding": True,
        "not_used": {"other": "reason"},
        "replacements": [],
    }


def test_a_lost_provider_is_replaced_and_the_batch_answered(caplog: pytest.LogCaptureFixture) -> None:
    reopen = Opener(FakeSession(CPU))
    broken = FakeSession(CUDA, lost(CUDA))
    engine = make(broken, reopen)
    with caplog.at_level(logging.WARNING):
        answer = engine.run(INPUTS)
    np.testing.assert_array_equal(answer["y"], [0, 2, 4])
    assert by(answer) == CPU
    assert by(engine.run(INPUTS)) == CPU
    assert broken.runs == 1
    assert reopen.calls == [{CUDA: "lost while it served: CUDA failure 700: an illegal memory access"}]
    assert engine.fallbacks == 1
    (replacement,) = engine.replacements
    assert (replacement.lost, replacement.provider) == (CUDA, CPU)
    assert (replacement.lost_variant, replacement.variant) == ("cuda-fp32", "cpu-fp32")
    assert replacement.cause == "CUDA failure 700: an illegal memory access"
    assert abs(replacement.at - time.time()) < 60
    assert replacement.seconds >= 0
    assert len(caplog.records) == 1
    assert "CUDA was lost while serving variant cuda-fp32, CPU serves variant cpu-fp32" in caplog.text
    assert engine.as_dict()["replacements"] == [replacement.as_dict()]


def test_a_chain_of_losses_goes_down_to_the_cpu() -> None:
    reopen = Opener(FakeSession(CUDA, lost(CUDA)), FakeSession(CPU))
    engine = make(FakeSession(TENSORRT, lost(TENSORRT)), reopen)
    # A batch is tried twice, never a third time: this one meets both failures.
    with pytest.raises(ProviderLostError) as caught:
        engine.run(INPUTS)
    assert caught.value.where == CUDA
    assert by(engine.run(INPUTS)) == CPU
    assert [each.lost for each in engine.replacements] == [TENSORRT, CUDA]
    assert set(reopen.calls[1]) == {TENSORRT, CUDA}


def test_wrong_inputs_do_not_cost_a_provider_that_crashes_on_them() -> None:
    bad, good = InvalidRequestError("the model does not take these inputs"), FakeSession(CPU)
    first = FakeSession(CUDA, lost(CUDA))
    good.failure = bad
    reopen = Opener(good)
    engine = make(first, reopen)
    for _ in range(2):
        with pytest.raises(InvalidRequestError):
            engine.run(INPUTS)
    assert (engine.provider, engine.fallbacks) == (CUDA, 0)
    assert len(reopen.calls) == 1, "the session that was opened once is kept"
    first.failure = None
    assert by(engine.run(INPUTS)) == CUDA
    # A batch that is right, and fails there again, does cost it.
    first.failure, good.failure = lost(CUDA), None
    assert by(engine.run(INPUTS)) == CPU
    assert len(reopen.calls) == 1


def test_inputs_that_are_wrong_are_never_tried_elsewhere() -> None:
    reopen = Opener(FakeSession(CPU))
    engine = make(FakeSession(CUDA, InvalidRequestError("wrong")), reopen)
    with pytest.raises(InvalidRequestError):
        engine.run(INPUTS)
    assert reopen.calls == []


def test_a_run_that_failed_is_not_a_provider_that_failed() -> None:
    reopen = Opener(FakeSession(CPU))
    engine = make(FakeSession(CUDA, InferenceError("no kernel")), reopen)
    with pytest.raises(InferenceError):
        engine.run(INPUTS)
    assert (reopen.calls, engine.fallbacks) == ([], 0)


def test_a_second_failure_is_raised_and_the_new_provider_stays() -> None:
    second = FakeSession(CPU, InferenceError("the CPU has no memory either"))
    engine = make(FakeSession(CUDA, lost(CUDA)), Opener(second))
    with pytest.raises(InferenceError, match="no memory either"):
        engine.run(INPUTS)
    assert (engine.provider, engine.fallbacks) == (CPU, 1)
    second.failure = None
    assert by(engine.run(INPUTS)) == CPU


def test_where_nothing_is_left_every_batch_says_so_and_nothing_is_opened_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reopen = Opener()
    first = FakeSession(CUDA, lost(CUDA))
    engine = make(first, reopen)
    for _ in range(3):
        with pytest.raises(ProviderLostError, match="nothing takes its place: no variant") as caught:
            engine.run(INPUTS)
        assert caught.value.where == CUDA
    assert len(reopen.calls) == 1
    assert len(caplog.records) == 1
    # A device that recovers (memory was freed) serves again.
    first.failure = None
    assert by(engine.run(INPUTS)) == CUDA


def test_with_the_policy_to_refuse_nothing_is_replaced() -> None:
    engine = make(FakeSession(CUDA, lost(CUDA)), None)
    with pytest.raises(ProviderLostError):
        engine.run(INPUTS)
    assert (engine.provider, engine.fallbacks) == (CUDA, 0)


def test_a_session_on_a_device_that_does_not_answer_is_never_closed() -> None:
    dead, full = FakeSession(CUDA, lost(CUDA)), FakeSession(CUDA, lost(CUDA, DeviceMemoryError))
    for session in (dead, full):
        make(session, Opener(FakeSession(CPU))).run(INPUTS)
    assert [dead] == engine_module._ABANDONED


def test_threads_that_fail_together_replace_the_provider_once() -> None:
    count = 8
    barrier = threading.Barrier(count)
    first, second = FakeSession(CUDA, lost(CUDA)), FakeSession(CPU)
    # All are in their run before the first one fails.
    first.gate = lambda: barrier.wait(10) and None
    reopen = Opener(second)
    reopen.seconds = 0.05
    engine = make(first, reopen)
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(by(engine.run(INPUTS)))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert answers == [CPU] * count
    assert (len(reopen.calls), engine.fallbacks) == (1, 1)
    assert (first.runs, second.runs) == (count, count)


def test_threads_that_still_run_on_the_old_session_when_it_is_replaced_are_not_disturbed() -> None:
    release = threading.Event()
    started = threading.Event()
    first = FakeSession(CUDA)

    def wait() -> None:
        started.set()
        assert release.wait(10)

    first.gate = wait
    engine = make(first, Opener(FakeSession(CPU)))
    answers: list[str] = []
    slow = threading.Thread(target=lambda: answers.append(by(engine.run(INPUTS))))
    slow.start()
    assert started.wait(10)
    first.gate, first.failure = (lambda: None), lost(CUDA)
    assert by(engine.run(INPUTS)) == CPU
    first.failure = None
    release.set()
    slow.join(10)
    assert answers == [CUDA]


def test_bad_inputs_of_one_client_beside_good_ones_of_others() -> None:
    """Each thread sends its own batch; the session dies on negative numbers, as a GPU may on ids out of range."""
    first, second = FakeSession(CUDA), FakeSession(CPU)

    def dies(inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        if inputs["x"].min() < 0:
            raise lost(CUDA)
        return {"y": inputs["x"] * 2, "by": np.array(CUDA)}

    def checks(inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        if inputs["x"].min() < 0:
            raise InvalidRequestError("negative")
        return {"y": inputs["x"] * 2, "by": np.array(CPU)}

    first.run, second.run = dies, checks  # type: ignore[method-assign]
    engine = make(first, Opener(second))
    outcomes: list[str] = []

    def client(value: int) -> None:
        for _ in range(50):
            try:
                outcomes.append(by(engine.run({"x": np.array([value])})))
            except InvalidRequestError:
                outcomes.append("refused")

    threads = [threading.Thread(target=client, args=(value,)) for value in (-1, 1, -2, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(outcomes) == sorted([CUDA] * 100 + ["refused"] * 100)
    assert engine.fallbacks == 0
