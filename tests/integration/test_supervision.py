"""Updates of a real agent process, as far as the serving process is concerned: each state is put into its directory.

The models are tiny, but their graphs are real: one fails for requests that are longer than its golden texts, one does a
great deal more work than it has to.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from device_agent.slots.state import Installed, SlotState, begin, revert, step
from device_agent.slots.states import AttemptState
from device_agent.slots.store import Store
from edgeonnx.bundle import identify
from tests.support import bundles
from tests.support.agent import ROOT, Agent, environment, run_to_end
from tests.support.repository import TestRepository
from tests.support.tamper import relist

PROBATION_SECONDS = 3.5
LONG = "a good film and the cat sat on the mat and the dog sat on the world"
SHORT = "the cat sat"
SETTINGS = f"""
[update]
probation_seconds = {PROBATION_SECONDS}
probation_requests = 8
interval_seconds = 0
tries = 3
"""


def change_graph(bundle: Path, change: Callable[[onnx.GraphProto], None]) -> Path:
    """Let another graph stand in a bundle, and list it anew. The node that gives `hidden` is left out."""
    path = bundle / "encoder/cpu-fp32/model.onnx"
    model = onnx.load(str(path), load_external_data=False)
    (old,) = [node for node in model.graph.node if list(node.output) == ["hidden"]]
    model.graph.node.remove(old)
    change(model.graph)
    path.write_bytes(model.SerializeToString(deterministic=True))
    relist(bundle)
    return bundle


def _insert(graph: onnx.GraphProto, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray]) -> None:
    """Put nodes between `sum` and `hidden`."""
    place = next(number for number, node in enumerate(graph.node) if list(node.output) == ["sum"]) + 1
    for offset, node in enumerate(nodes):
        graph.node.insert(place + offset, node)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())


def fail_for_long_rows(graph: onnx.GraphProto) -> None:
    """Positions reach as far as the golden texts do (9 tokens), and not as far as the tokenizer lets texts be."""
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["width"], start=1),
        helper.make_node("Squeeze", ["width"], ["end"]),
        helper.make_node("Range", ["begin", "end", "stride"], ["places"]),
        helper.make_node("Gather", ["positions", "places"], ["position"]),
        helper.make_node("Add", ["sum", "position"], ["hidden"]),
    ]
    table = np.zeros((10, bundles.DIM), np.float32)
    _insert(graph, nodes, {"positions": table, "begin": np.int64(0), "stride": np.int64(1)})  # type: ignore[dict-item]


def work_too_much(graph: onnx.GraphProto) -> None:
    """The product of two large matrices, which depends on the input and adds nothing."""
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["numbers"], ["most"], keepdims=0),
        helper.make_node("Expand", ["most", "large"], ["matrix"]),
        helper.make_node("MatMul", ["matrix", "matrix"], ["product"]),
        helper.make_node("ReduceMax", ["product"], ["peak"], keepdims=0),
        helper.make_node("Mul", ["peak", "nothing"], ["zero"]),
        helper.make_node("Add", ["sum", "zero"], ["hidden"]),
    ]
    _insert(graph, nodes, {"large": np.array([1000, 1000]), "nothing": np.float32(0)})  # type: ignore[dict-item]


@dataclass
class Device:
    """A state directory, and the bundles that can be put into it as the update process does."""

    root: Path
    made: Path
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        self.store = Store(self.root)
        self.store.prepare()

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.arguments_with(SETTINGS)

    def arguments_with(self, text: str) -> tuple[str, ...]:
        settings = self.made / "agent.toml"
        settings.write_text(text)
        return ("--config", str(settings), "--state-dir", str(self.root), "--runners", "1")

    def install(self, bundle: Path) -> Installed:
        name, version, contents = identify(bundle)
        slot = self.store.slot(name, contents)
        if not slot.exists():
            shutil.copytree(bundle, slot)
        return Installed(version=version, contents=contents)

    def tiny(self, version: str, **how: float) -> Installed:
        bundle = self.made / f"tiny-{version}"
        if not bundle.exists():
            bundles.make_bundle(self.made, version=version, seed=int(version), **how)  # type: ignore[arg-type]
        return self.install(bundle)

    def special(self, version: str, change: Callable[[onnx.GraphProto], None]) -> Installed:
        return self.install(change_graph(bundles.make_bundle(self.made, version=version, seed=int(version)), change))

    @property
    def state(self) -> SlotState:
        return self.store.read_state("tiny")

    def prove(self, release: Installed, *, tries: int = 3) -> None:
        """Leave a release as the update process does."""
        state = self.state if "tiny" in self.store.models() else SlotState(model="tiny")
        state = begin(state, release, tries=tries, now=1.0)
        for to in (AttemptState.STAGED, AttemptState.CANDIDATE, AttemptState.PROVEN):
            state = step(state, to, now=1.0)
        self.store.write_state(state)

    def wait_for(self, wanted: AttemptState, seconds: float = 15.0) -> str:
        """Wait until the attempt is in a state; its reason."""
        deadline = time.monotonic() + seconds
        while (attempt := self.state.attempt) is None or attempt.state is not wanted:
            assert time.monotonic() < deadline, attempt
            time.sleep(0.02)
        return attempt.reason


@dataclass
class Traffic:
    """A client in a thread that asks one short request after the other."""

    url: str
    stop: threading.Event = field(default_factory=threading.Event)
    versions: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __call__(self) -> None:
        with httpx.Client(base_url=self.url, timeout=10) as client:
            while not self.stop.wait(0.01):
                response = client.post("/v2/models/tiny/infer", json=REQUEST)
                if response.status_code != 200:
                    self.failures.append(response.text)
                    continue
                document = response.json()
                version = document["model_version"]
                if not np.allclose(document["outputs"][0]["data"], expected(version), atol=1e-5):
                    self.failures.append(f"an answer of version {version} is not that version's")
                self.versions.append(version)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join()


INPUTS = bundles.tokens_of((SHORT,), None)
REQUEST = {
    "inputs": [
        {"name": name, "shape": list(value.shape), "datatype": "INT64", "data": value.ravel().tolist()}
        for name, value in INPUTS.items()
    ]
}


def expected(version: str) -> np.ndarray:
    return bundles.reference(bundles.Task.EMBEDDING, INPUTS, int(version))["sentence_embedding"].ravel()


def ask(url: str, text: str = SHORT) -> int:
    return httpx.post(f"{url}/v1/embeddings", json={"model": "tiny", "input": text}, timeout=10).status_code


def serving(url: str) -> str | None:
    response = httpx.get(f"{url}/v2/models/tiny", timeout=10)
    return response.json()["versions"][0] if response.status_code == 200 else None


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def status_of(url: str) -> dict:
    return httpx.get(f"{url}/status.json", timeout=10).json()["updates"]


def updates(url: str) -> dict:
    (model,) = status_of(url)["models"]
    return model


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return Device(tmp_path_factory.mktemp("device") / "state", tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def agent(device: Device) -> Iterator[Agent]:
    """An agent that began without any model. The tests below go through its life in their order."""
    with Agent(arguments=device.arguments) as running:
        yield running


def test_the_first_model_is_taken_while_the_agent_runs(device: Device, agent: Agent) -> None:
    assert "serves no model yet" in agent.ready_line
    assert httpx.get(f"{agent.url}/v2/health/ready").status_code == 200
    assert ask(agent.url) == 404
    device.prove(device.tiny("1"))
    wait_until(lambda: serving(agent.url) == "1")
    assert ask(agent.url) == 200
    assert device.state.attempt is not None
    assert device.state.attempt.state is AttemptState.PROBATION
    device.wait_for(AttemptState.COMMITTED, PROBATION_SECONDS + 5)


def test_a_second_agent_on_the_directory_is_refused(device: Device, agent: Agent) -> None:
    done = run_to_end(None, *device.arguments)
    assert done.returncode == 11
    assert "another serving agent uses this state directory already" in done.stderr
    assert "Traceback" not in done.stderr
    assert serving(agent.url) == "1"


def test_a_swap_and_an_operators_way_back_under_load(device: Device, agent: Agent) -> None:
    one, two = device.tiny("1"), device.tiny("2")
    with Traffic(agent.url) as first, Traffic(agent.url) as second:
        device.prove(two)
        wait_until(lambda: "2" in first.versions)
        assert (device.state.active, device.state.previous) == (two, one)
        device.store.write_state(revert(device.state, reason="an operator went back", now=1.0))
        wait_until(lambda: first.versions[-1] == "1")
    assert first.failures + second.failures == []
    assert set(first.versions + second.versions) == {"1", "2"}
    assert device.state.is_blocked(two.contents)


def test_a_release_that_does_not_load_is_refused_under_load(device: Device, agent: Agent) -> None:
    bad = device.tiny("3", bias=0.5)
    with Traffic(agent.url) as traffic:
        device.prove(bad)
        reason = device.wait_for(AttemptState.ROLLED_BACK)
        wait_until(lambda: updates(agent.url)["rollbacks"] == 2)
    assert "does not load" in reason
    assert traffic.failures == []
    assert set(traffic.versions) == {"1"}
    assert device.state.is_blocked(bad.contents)
    index = {each["version"]: each for each in httpx.post(f"{agent.url}/v2/repository/index", json={}).json()}
    assert (index["1"]["state"], index["3"]["state"]) == ("READY", "UNAVAILABLE")
    assert "golden" in index["3"]["reason"]


def test_a_version_whose_requests_fail_is_rolled_back_within_seconds(device: Device, agent: Agent) -> None:
    assert ask(agent.url, LONG) == 200
    poison = device.special("4", fail_for_long_rows)
    device.prove(poison)
    wait_until(lambda: serving(agent.url) == "4")
    began = time.monotonic()
    assert ask(agent.url) == 200
    # Half of `probation_requests` are enough where all of them fail.
    assert [ask(agent.url, LONG) for _ in range(4)] == [500] * 4
    wait_until(lambda: serving(agent.url) == "1")
    assert time.monotonic() - began < 5
    assert "of its" in device.wait_for(AttemptState.ROLLED_BACK)
    assert ask(agent.url, LONG) == 200
    metrics = httpx.get(f"{agent.url}/metrics").text
    assert 'edgeonnx_update_state{model="tiny",state="rolled back",version="4"} 1.0' in metrics
    assert 'edgeonnx_update_rollbacks_total{model="tiny"} 3.0' in metrics


def test_a_version_that_is_too_slow_is_rolled_back(device: Device, agent: Agent) -> None:
    with Traffic(agent.url) as traffic:
        wait_until(lambda: len(traffic.versions) > 30)
        device.prove(device.special("5", work_too_much))
        reason = device.wait_for(AttemptState.ROLLED_BACK)
        wait_until(lambda: traffic.versions[-1] == "1")
    assert "ms (median)" in reason
    assert traffic.failures == []
    assert "5" in traffic.versions


def test_requests_have_no_way_to_change_what_is_installed(agent: Agent) -> None:
    for verb in ("load", "unload"):
        response = httpx.post(f"{agent.url}/v2/repository/models/tiny/{verb}", json={})
        assert response.status_code == 403
    assert serving(agent.url) == "1"


def test_an_orderly_stop_on_probation_does_not_use_up_a_try(device: Device, agent: Agent) -> None:
    device.prove(device.tiny("6"))
    wait_until(lambda: serving(agent.url) == "6")
    wait_until(lambda: updates(agent.url)["attempt"]["probation_seconds_left"] is not None)
    agent.terminate()
    assert agent.wait() == 0
    assert "Traceback" not in agent.log
    attempt = device.state.attempt
    assert attempt is not None
    assert (attempt.state, attempt.tries_left) == (AttemptState.PROBATION, 3)


def test_a_release_that_takes_the_agent_down_is_given_up_after_its_tries(tmp_path: Path) -> None:
    device = Device(tmp_path / "state", tmp_path)
    old, new = device.tiny("1"), device.tiny("2")
    device.store.write_state(SlotState(model="tiny", active=old))
    device.prove(new)
    for left in (2, 1, 0):
        with Agent(arguments=device.arguments) as agent:
            assert "serves tiny 2" in agent.ready_line
            assert device.state.attempt is not None
            assert device.state.attempt.tries_left == left
            agent.process.send_signal(signal.SIGKILL)
            agent.wait()
    with Agent(arguments=device.arguments) as agent:
        assert "serves tiny 1" in agent.ready_line
        assert "never lasted" in device.wait_for(AttemptState.ROLLED_BACK)
        assert device.state.is_blocked(new.contents)


def test_a_damaged_slot_and_a_damaged_state_file(tmp_path: Path) -> None:
    device = Device(tmp_path / "state", tmp_path)
    old, new = device.tiny("1"), device.tiny("2")
    device.store.write_state(SlotState(model="tiny", active=new, previous=old))
    (device.store.model("tiny") / "state.json").write_bytes(b"")
    graph = device.store.slot("tiny", new.contents) / "encoder/cpu-fp32/model.onnx"
    data = bytearray(graph.read_bytes())
    data[100] ^= 1
    graph.chmod(0o600)
    graph.write_bytes(data)
    with Agent(arguments=device.arguments) as agent:
        assert "serves tiny 1" in agent.ready_line
        assert ask(agent.url) == 200
        assert "state.json is damaged" in updates(agent.url)["damage"]
        assert "sha256" in updates(agent.url)["damage"]
        assert 'edgeonnx_update_degraded{model="tiny"} 1.0' in httpx.get(f"{agent.url}/metrics").text
        assert updates(agent.url)["active"] == "1"
    assert "sha256" in agent.log
    assert "Traceback" not in agent.log
    # Nothing is wrong with the release: the next update may bring it again.
    assert device.state.active == old
    assert not device.state.is_blocked(new.contents)


def test_the_agent_updates_itself_from_a_repository(tmp_path: Path) -> None:
    """The real update process, begun by the agent at once, because nothing is installed."""
    device = Device(tmp_path / "state", tmp_path)
    repository = TestRepository.create(tmp_path / "repository")
    repository.publish(bundles.make_bundle(tmp_path / "built", version="1", seed=1))
    (tmp_path / "root.json").write_bytes(repository.root_bytes)
    command = ["enroll", "--repo", str(repository.path), "--root", str(tmp_path / "root.json")]
    done = run_verb(*command, "--state-dir", str(device.root))
    assert done.returncode == 0, done.stderr
    settings = SETTINGS.replace("interval_seconds = 0", "interval_seconds = 3600\ndisk_reserve_bytes = 0")
    with Agent(arguments=device.arguments_with(settings)) as agent:
        assert "serves no model yet" in agent.ready_line
        wait_until(lambda: serving(agent.url) == "1", 30)
        wait_until(lambda: status_of(agent.url)["counts"] == {"ok": 1}, 30)
        status = status_of(agent.url)
        assert (status["enrolled"], status["ok"], status["running"]) == (True, True, False)
        wait_until(lambda: status_of(agent.url)["received_bytes"] > 0)  # read twice a second
        assert 1800 - 60 < status["next_seconds"] < 5400
    # What the update process writes goes to the agent's log.
    assert "staged" in agent.log
    assert "Traceback" not in agent.log
    assert not device.store.is_locked("update.lock")


def run_verb(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "device_agent.cli.main", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=30)
