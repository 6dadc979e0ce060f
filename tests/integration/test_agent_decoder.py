"""A real agent that serves a tiny decoder: answers, metrics, swaps and stops under streams, and releases of it."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from device_agent.slots.states import AttemptState
from device_agent.update.install import trial
from tests.support import decoders
from tests.support.agent import Agent
from tests.support.decoders import TinyDecoder, make_decoder_bundle
from tests.support.device import QuickFiles, TestDevice
from tests.support.repository import TestRepository

CONTEXT = 3072
LONG = CONTEXT - 100
"""Tokens of an answer that takes seconds."""
BANNED = {str(token): -100 for token in (*decoders.STOP_IDS, decoders.POISON_ID)}
"""So that an answer goes on, and every token of it is text."""
PROMPT = "the cat"
SHORT = 24


def body(count: int, *, stream: bool = False) -> dict[str, Any]:
    return {
        "model": "tiny-lm",
        "prompt": PROMPT,
        "max_tokens": count,
        "logit_bias": BANNED,
        "stream": stream,
    }


def complete(url: str, count: int = SHORT) -> dict[str, Any]:
    response = httpx.post(f"{url}/v1/completions", json=body(count), timeout=20)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


class Stream:
    """A streamed answer, read in a thread of its own from its first piece on."""

    def __init__(self, url: str, count: int) -> None:
        self.text = ""
        self.reason: str | None = None
        self.done = False
        self.failure = ""
        self.begun = threading.Event()
        self._url, self._count = url, count
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert self.begun.wait(10), self.failure

    def _read(self) -> None:
        with (
            httpx.Client(timeout=20) as client,
            client.stream("POST", f"{self._url}/v1/completions", json=body(self._count, stream=True)) as response,
        ):
            for line in response.iter_lines():
                if self._leave.is_set():
                    return
                if not line:
                    continue
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    self.done = True
                    break
                chunk = json.loads(data)
                if "error" in chunk:
                    self.failure = chunk["error"]["message"]
                    break
                self.text += chunk["choices"][0]["text"]
                self.reason = chunk["choices"][0]["finish_reason"] or self.reason
                self.begun.set()

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(10)

    def end(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def generation(url: str) -> dict[str, Any]:
    (model,) = httpx.get(f"{url}/status.json", timeout=10).json()["models"]
    found: dict[str, Any] = model["generation"]
    return found


def mapped_versions(agent: Agent) -> set[str]:
    return set(re.findall(r"/tiny-lm-(\d)/shared_assets/", Path(f"/proc/{agent.process.pid}/maps").read_text()))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoders")
    for version in ("1", "2"):
        make_decoder_bundle(folder, version=version, seed=int(version), context=CONTEXT)
    return folder


@pytest.fixture(scope="module")
def agent(repository: Path) -> Iterator[Agent]:
    arguments = ("--repository", str(repository), "--threads", "1")
    with Agent(bundle=repository / "tiny-lm-1", arguments=arguments) as running:
        yield running


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The greedy answer of 24 tokens of each version, by its graph without any cache."""
    texts = {}
    for version in ("1", "2"):
        tiny = TinyDecoder(seed=int(version), context=CONTEXT)
        session = decoders.open_graph(decoders.write_graph(tmp_path_factory.mktemp("graph"), tiny))
        ids = decoders.encode(PROMPT)
        begin = len(ids)
        for _ in range(SHORT):
            logits = decoders.uncached_logits(session, tiny, ids)
            logits[[int(token) for token in BANNED]] -= 100
            ids.append(int(logits.argmax()))
        texts[version] = Tokenizer.from_str(decoders.tokenizer_json().decode()).decode(ids[begin:])
    return texts


def test_the_answer_is_the_models(agent: Agent, expected: dict[str, str]) -> None:
    assert "tiny-lm 1, variant cpu-fp32 (fp32) on CPU" in agent.ready_line
    answer = complete(agent.url)
    assert answer["choices"][0]["text"] == expected["1"]
    assert answer["usage"]["completion_tokens"] == SHORT


def test_what_a_client_leaves_is_free_at_once(agent: Agent) -> None:
    stream = Stream(agent.url, LONG)
    assert generation(agent.url)["active"] == 1
    stream.leave()
    wait_until(lambda: generation(agent.url)["active"] == 0, 5.0)
    assert not stream.done
    metrics = httpx.get(f"{agent.url}/metrics").text
    assert 'edgeonnx_generation_finished_total{finished_reason="cancelled",model="tiny-lm",version="1"} 1.0' in metrics
    assert 'nv_inference_request_failure{model="tiny-lm",version="1",reason="CANCELED"} 1' in metrics


def test_a_stream_ends_on_the_version_that_it_began_on(agent: Agent, expected: dict[str, str]) -> None:
    stream = Stream(agent.url, LONG)
    response = httpx.post(
        f"{agent.url}/v2/repository/models/tiny-lm/load", json={"parameters": {"version": "2"}}, timeout=20
    )
    assert response.status_code == 200, response.text
    assert not stream.done, "the stream was to go on during the swap"
    assert complete(agent.url)["choices"][0]["text"] == expected["2"]
    index = httpx.post(f"{agent.url}/v2/repository/index").json()
    states = {(entry["version"], entry["state"]) for entry in index}
    assert ("2", "READY") in states
    if not stream.done:
        assert mapped_versions(agent) == {"1", "2"}
    stream.end()
    assert (stream.failure, stream.reason, stream.done) == ("", "length", True)
    assert stream.text.startswith(expected["1"].rstrip("\N{REPLACEMENT CHARACTER}"))
    wait_until(lambda: mapped_versions(agent) == {"2"})


def test_an_unload_waits_for_streams_and_gives_the_memory_back(agent: Agent) -> None:
    stream = Stream(agent.url, 800)
    url = f"{agent.url}/v2/repository/models/tiny-lm"
    unloaded = threading.Thread(target=lambda: httpx.post(f"{url}/unload", json={}, timeout=30))
    unloaded.start()
    wait_until(lambda: httpx.get(f"{agent.url}/v2/models/tiny-lm/ready").status_code != 200)
    assert httpx.post(f"{agent.url}/v1/completions", json=body(4)).status_code == 404
    stream.end()
    assert (stream.failure, stream.reason) == ("", "length")
    unloaded.join(10)
    assert mapped_versions(agent) == set()
    assert httpx.post(f"{url}/load", json={}, timeout=20).status_code == 200


def test_a_stop_lets_streams_end(agent: Agent) -> None:
    """The last test of this agent."""
    stream = Stream(agent.url, 800)
    agent.terminate()
    stream.end()
    assert (stream.failure, stream.reason, stream.done) == ("", "length", True)
    assert agent.wait() == 0


def test_a_stop_that_cannot_wait_tells_the_clients_of_streams(repository: Path) -> None:
    settings = repository / "agent.toml"
    settings.write_text("[server]\ndrain_seconds = 0.2\n")
    arguments = ("--config", str(settings), "--threads", "1")
    with Agent(bundle=repository / "tiny-lm-1", arguments=arguments) as agent:
        stream = Stream(agent.url, LONG)
        began = time.monotonic()
        agent.terminate()
        stream.end()
        assert (stream.done, stream.reason) == (False, None)
        assert "unloaded before the answer was ready" in stream.failure
        assert agent.wait() == 0
        assert time.monotonic() - began < 5
    assert "Traceback" not in agent.log


def committed(device: TestDevice) -> str | None:
    """The version that was committed last, once no attempt is under way."""
    attempt = device.state("tiny-lm").attempt
    return attempt.release.version if attempt is not None and attempt.state is AttemptState.COMMITTED else None


def test_releases_of_a_decoder_are_proven_installed_and_served(tmp_path: Path) -> None:
    made = [make_decoder_bundle(tmp_path / "made", version=each, seed=int(each), context=512) for each in ("1", "2")]
    bad = make_decoder_bundle(tmp_path / "made", version="3", seed=3, golden_error=1.0)
    repository = TestRepository.create(tmp_path / "repository", files=QuickFiles(tmp_path / "repository"))
    repository.publish(made[0])
    device = TestDevice(tmp_path / "state", repository)
    assert device.update().error is None
    settings = tmp_path / "agent.toml"
    settings.write_text("[update]\ninterval_seconds = 0\nprobation_seconds = 0.5\n")
    with Agent(arguments=("--config", str(settings), "--state-dir", str(tmp_path / "state"))) as agent:
        wait_until(lambda: committed(device) == "1")
        device.prove = trial.prove  # in a process of its own, as on any device
        repository.publish(made[1])
        assert device.update().error is None
        wait_until(lambda: committed(device) == "2")
        assert httpx.get(f"{agent.url}/v2/models/tiny-lm").json()["versions"] == ["2"]
        assert complete(agent.url, 4)["usage"]["completion_tokens"] == 4
        repository.publish(bad)
        device.update()
        attempt = device.state("tiny-lm").attempt
        assert attempt is not None
        assert attempt.state is AttemptState.REJECTED
        assert "golden" in attempt.reason
