"""Several models in a real agent: loaded and unloaded by name, refused for good reasons, removed while they serve."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from edgeonnx.spec.manifest import Task
from tests.support import bundles
from tests.support.agent import Agent, run_to_end
from tests.support.tamper import edit_json, relist

BUDGET = 1 << 30
"""What the module's agent may use for all models."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles `tiny`, `other` and `huge`, which says that it needs more than the budget, a wrong one, and a folder."""
    folder = tmp_path_factory.mktemp("models")
    bundles.make_bundle(folder)
    bundles.make_bundle(folder, Task.TEXT_CLASSIFICATION, name="other")
    bundles.make_bundle(folder, name="wrong", bias=0.1)
    huge = bundles.make_bundle(folder, name="huge")
    edit_json(
        huge,
        "encoder/component.json",
        lambda c: c["variants"]["cpu-fp32"]["executor_info"]["edgeonnx"]["requirements"].update(
            memory_bytes=2 * BUDGET
        ),
    )
    relist(huge)
    (folder / "junk").mkdir()
    return folder


@pytest.fixture(scope="module")
def agent(repository: Path) -> Iterator[Agent]:
    arguments = ("--repository", str(repository), "--memory", str(BUDGET))
    with Agent(bundle=repository / "tiny-1.0.0", arguments=arguments) as running:
        yield running


@pytest.fixture
def client(agent: Agent) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=agent.url, timeout=20) as found:
        yield found


def index(client: httpx.Client) -> dict[str, tuple[str, str]]:
    """State and reason of each model."""
    return {
        entry["name"]: (entry["state"], entry["reason"])
        for entry in client.post("/v2/repository/index", json={}).json()
    }


def ask(client: httpx.Client, action: str, model: str, **parameters: str) -> httpx.Response:
    return client.post(f"/v2/repository/models/{model}/{action}", json={"parameters": parameters})


def test_a_model_is_loaded_and_unloaded_by_its_name(agent: Agent, client: httpx.Client) -> None:
    assert index(client)["other"] == ("UNAVAILABLE", "")
    assert client.get("/v2/models/other/ready").status_code == 404
    assert ask(client, "load", "other").status_code == 200
    assert client.get("/v2/models/other/ready").status_code == 200
    assert index(client)["other"][0] == index(client)["tiny"][0] == "READY"
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny", "other"]
    assert client.post("/v1/embeddings", json={"model": "tiny", "input": "the cat"}).status_code == 200
    assert ask(client, "unload", "other").status_code == 200
    assert client.get("/v2/models/other/ready").status_code == 404
    assert index(client)["other"] == ("UNAVAILABLE", "")
    assert "other 1.0.0: variant cpu-fp32 (fp32) serves on CPUExecutionProvider" in agent.log
    assert "other 1.0.0 is unloaded" in agent.log


@pytest.mark.parametrize(
    ("model", "parameters", "status", "message"),
    [
        ("nothing", {}, 404, "no such model in the repository"),
        ("tiny", {"version": "7"}, 404, "no such version of the model in the repository"),
        ("..%2F..%2Fetc", {}, 404, "no such"),
        ("wrong", {}, 422, "the golden set is not reproduced"),
        ("huge", {}, 507, "the model does not fit into the memory"),
        ("junk", {}, 422, "is not a bundle"),
    ],
)
def test_what_cannot_be_loaded_is_refused_and_the_rest_serves(
    client: httpx.Client, model: str, parameters: dict[str, str], status: int, message: str
) -> None:
    response = ask(client, "load", model, **parameters)
    assert (response.status_code, message in response.json()["error"]) == (status, True), response.text
    assert client.get("/v2/health/ready").status_code == 200
    assert client.post("/v1/embeddings", json={"model": "tiny", "input": "the cat"}).status_code == 200
    if status in (422, 507):
        assert message in index(client)[model][1]


def test_the_refusal_for_memory_says_what_is_needed_and_what_there_is(client: httpx.Client) -> None:
    message = ask(client, "load", "huge").json()["error"]
    assert f"{2 * BUDGET:,} bytes" in message
    assert f"runtime.memory_bytes is {BUDGET:,}" in message
    assert "unload another model" in message


def test_a_bundle_that_is_removed_or_written_to_while_it_serves(
    client: httpx.Client, repository: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(repository / "other-1.0.0", tmp_path / "kept"))
    assert ask(client, "load", "other").status_code == 200
    inputs = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["good film"]}]}
    answer = client.post("/v2/models/other/infer", json=inputs)
    assert answer.status_code == 200, answer.text
    evidence = repository / "other-1.0.0/evidence.json"
    evidence.write_bytes(evidence.read_bytes())
    state, reason = index(client)["other"]
    assert state == "READY"
    assert "changed on disk since they were verified (evidence.json): load it again" in reason
    shutil.rmtree(repository / "other-1.0.0")
    again = client.post("/v2/models/other/infer", json=inputs)
    assert (again.status_code, again.json().get("outputs")) == (answer.status_code, answer.json().get("outputs"))
    assert ask(client, "load", "other").status_code == 404
    shutil.copytree(copy, repository / "other-1.0.0")
    assert ask(client, "load", "other").status_code == 200
    assert index(client)["other"] == ("READY", "")
    assert ask(client, "unload", "other").status_code == 200


def test_loads_and_unloads_at_once_end_in_order(client: httpx.Client) -> None:
    statuses: list[int] = []
    lock = threading.Lock()

    def work(action: str) -> None:
        response = httpx.post(f"{client.base_url}/v2/repository/models/other/{action}", timeout=20)
        with lock:
            statuses.append(response.status_code)

    threads = [threading.Thread(target=work, args=(action,)) for action in ("load", "unload") * 6]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 12
    assert ask(client, "unload", "other").status_code == 200
    assert client.get("/v2/models/tiny/ready").status_code == 200


def test_one_of_several_bundles_fails_and_the_others_serve(repository: Path) -> None:
    arguments = ("--bundle", str(repository / "tiny-1.0.0"))
    with Agent(bundle=repository / "wrong-1.0.0", arguments=arguments) as agent:
        assert " serves tiny 1.0.0, " in agent.ready_line
        with httpx.Client(base_url=agent.url) as client:
            assert client.get("/v2/models/tiny/ready").status_code == 200
            response = client.get("/v2/models/wrong/ready")
            assert response.status_code == 503
            assert "failed" in response.json()["error"]
    assert re.search(r"ERROR edgeonnx\.agent: wrong 1\.0\.0 is not loaded: .*golden set", agent.log)


def test_no_bundle_of_several_can_be_loaded(repository: Path) -> None:
    done = run_to_end(repository / "wrong-1.0.0", "--bundle", str(repository / "junk"))
    assert done.returncode == 6
    assert "the golden set is not reproduced" in done.stderr
    assert "Traceback" not in done.stderr
