"""Models swapped in a real agent under traffic: no request fails, each answer is its version's, nothing leaks."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest

from edgeonnx.spec.manifest import Task
from tests.support import bundles
from tests.support.agent import Agent

INPUTS = bundles.tokens_of(("the cat sat on the mat.", "hello"), None)
VERSIONS = {
    version: bundles.reference(Task.EMBEDDING, INPUTS, int(version))["sentence_embedding"] for version in ("1", "2")
}
REQUEST = {
    "inputs": [
        {"name": name, "shape": list(value.shape), "datatype": "INT64", "data": value.ravel().tolist()}
        for name, value in INPUTS.items()
    ]
}
MIB = 1 << 20


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    repository = tmp_path_factory.mktemp("swap")
    first, _ = [bundles.make_bundle(repository, version=version, seed=int(version)) for version in VERSIONS]
    with Agent(bundle=first, arguments=("--repository", str(repository), "--log-level", "warning")) as running:
        yield running


@dataclass
class Traffic:
    """A client in a thread that asks one request after the other."""

    url: str
    stop: threading.Event = field(default_factory=threading.Event)
    answers: list[tuple[float, str]] = field(default_factory=list)
    """When each request began, and the version that answered."""
    failures: list[str] = field(default_factory=list)

    def __call__(self) -> None:
        with httpx.Client(base_url=self.url, timeout=10) as client:
            while not self.stop.is_set():
                begun = time.monotonic()
                try:
                    response = client.post("/v2/models/tiny/infer", json=REQUEST)
                    response.raise_for_status()
                except httpx.HTTPError as error:
                    self.failures.append(str(error))
                    continue
                document = response.json()
                version = document["model_version"]
                found = np.array(document["outputs"][0]["data"]).reshape(len(VERSIONS[version]), -1)
                if not np.allclose(found, VERSIONS[version], atol=1e-5):
                    self.failures.append(f"an answer of version {version} is not that version's")
                self.answers.append((begun, version))


def load(client: httpx.Client, version: str) -> None:
    response = client.post("/v2/repository/models/tiny/load", json={"parameters": {"version": version}})
    assert response.status_code == 200, response.text


def mapped_versions(agent: Agent) -> set[str]:
    """The versions whose files the process has mapped."""
    return set(re.findall(r"/tiny-(\d)/shared_assets/", Path(f"/proc/{agent.process.pid}/maps").read_text()))


def test_nothing_of_the_model_of_the_start_stays(agent: Agent) -> None:
    """Whatever held it while the agent started: an answer of the loader, a frame, a callback."""
    assert mapped_versions(agent) == {"1"}
    with httpx.Client(base_url=agent.url, timeout=20) as client:
        load(client, "2")
        deadline = time.monotonic() + 5
        while mapped_versions(agent) != {"2"}:
            assert time.monotonic() < deadline, "the tensors of version 1 are still mapped"
            time.sleep(0.01)
        load(client, "1")


def test_swaps_under_traffic(agent: Agent) -> None:
    traffic = [Traffic(agent.url) for _ in range(2)]
    threads = [threading.Thread(target=each) for each in traffic]
    for thread in threads:
        thread.start()
    switched = []
    try:
        with httpx.Client(base_url=agent.url, timeout=20) as client:
            for number in range(12):
                version = "2" if number % 2 == 0 else "1"
                load(client, version)
                switched.append((time.monotonic(), version))
                time.sleep(0.03)
    finally:
        for each in traffic:
            each.stop.set()
        for thread in threads:
            thread.join()
    answers = [answer for each in traffic for answer in each.answers]
    assert not [failure for each in traffic for failure in each.failures]
    # A request that began after a load was answered gets the new version, until the next load is asked for.
    for at, version in switched:
        seen = {found for begun, found in answers if at < begun < at + 0.02}
        assert seen <= {version}
    assert {found for _, found in answers} == set(VERSIONS)
    assert len(answers) > len(switched)


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    anonymous: int
    threads: int
    descriptors: int
    mappings: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        return cls(
            anonymous=int(status["RssAnon"].split()[0]) * 1024,
            threads=int(status["Threads"]),
            descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
            mappings=len(Path(f"/proc/{pid}/maps").read_text().splitlines()),
        )


@pytest.mark.slow
def test_fifty_swaps_leave_nothing_behind(agent: Agent) -> None:
    pid = agent.process.pid
    with httpx.Client(base_url=agent.url, timeout=20) as client:

        def swap(times: int) -> Footprint:
            for _ in range(times // 2):
                load(client, "1")
                load(client, "2")
            deadline = time.monotonic() + 5
            while True:
                found = client.post("/v2/repository/index", json={}).json()
                if not [entry for entry in found if entry["state"] == "UNLOADING"] or time.monotonic() > deadline:
                    return Footprint.of(pid)

        before = swap(10)
        after = swap(50)
    assert after.threads <= before.threads + 2  # one that just ends
    assert after.descriptors <= before.descriptors + 1
    assert after.mappings <= before.mappings + 10
    # A tiny model takes about half a MiB: all fifty would be 28, and five are too many.
    assert after.anonymous - before.anonymous < 2 * MIB, (before, after)
