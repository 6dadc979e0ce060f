from __future__ import annotations

import pytest

from device_agent.api.open_inference.repository import STATES
from device_agent.models.registry import ModelEntry, ModelState

ENTRIES = [
    ModelEntry(name="tiny", version="1.0.0", state=ModelState.READY),
    ModelEntry(name="next", version="2", state=ModelState.LOADING),
    ModelEntry(name="broken", version="", state=ModelState.FAILED, reason="contents.json: is missing"),
]


class Calls:
    """Takes the place of the agent's models: remembers what was asked."""

    def __init__(self) -> None:
        self.made: list[tuple[object, ...]] = []

    async def load(self, *arguments: object, **named: object) -> None:
        self.made.append(("load", *arguments, *named.values()))

    async def unload(self, *arguments: object) -> None:
        self.made.append(("unload", *arguments))


@pytest.fixture
def calls(connect, monkeypatch: pytest.MonkeyPatch):
    client = connect()
    client.base_url = "http://127.0.0.1"  # what may load models without a token asks a loopback address
    models, calls = client.app.state.models, Calls()
    monkeypatch.setattr(models, "load", calls.load)
    monkeypatch.setattr(models, "unload", calls.unload)
    monkeypatch.setattr(models, "index", lambda: ENTRIES)
    return client, calls


def test_every_state_has_a_word_of_triton() -> None:
    assert set(STATES) == set(ModelState)


def test_the_index(calls) -> None:
    client, _ = calls
    found = client.post("/v2/repository/index").json()
    assert [entry["state"] for entry in found] == ["READY", "LOADING", "UNAVAILABLE"]
    assert found[2] == {
        "name": "broken",
        "version": "",
        "state": "UNAVAILABLE",
        "reason": "contents.json: is missing",
    }
    assert client.post("/v2/repository/index", json={}).json() == found
    assert client.post("/v2/repository/index", json={"ready": False}).json() == found
    assert client.post("/v2/repository/index", json={"ready": True}).json() == found[:1]


def test_load_and_unload(calls) -> None:
    client, made = calls
    assert client.post("/v2/repository/models/next/load").json() == {}
    assert client.post("/v2/repository/models/next/load", json={"parameters": {"version": "2"}}).json() == {}
    assert client.post("/v2/repository/models/next/unload", json={"parameters": {"unload_dependents": True}}).is_success
    assert made.made == [("load", "next", None), ("load", "next", "2"), ("unload", "next")]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("index", {"ready": 1}, "ready: is of the wrong type; expected true or false"),
        ("index", [], "body: is of the wrong type; expected an object"),
        ("models/next/load", {"parameters": {"config": "{}"}}, "come from the agent's repository only"),
        ("models/next/load", {"parameters": {"file:1/model.onnx": "AA=="}}, "come from the agent's repository only"),
        ("models/next/load", {"parameters": {"version": 2}}, "parameters.version: is of the wrong type"),
        ("models/next/load", {"parameters": []}, "parameters: is of the wrong type"),
        ("models/next/unload", {"parameters": {"unload_dependents": "no"}}, "parameters.unload_dependents"),
    ],
)
def test_what_is_refused(calls, path: str, body: object, message: str) -> None:
    client, made = calls
    response = client.post(f"/v2/repository/{path}", json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]
    assert made.made == []
