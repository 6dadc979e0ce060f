from __future__ import annotations

from pathlib import Path

from device_agent.models.index import index_of
from device_agent.models.repository import Found
from device_agent.models.states import ModelState, Record
from edgeonnx.errors import NotABundleError


def test_what_was_tried_comes_first_and_nothing_comes_twice() -> None:
    tried = Record("tiny", "2")
    tried.go(ModelState.FAILED, "no room")
    found = [
        Found(path=Path("/a"), name="tiny", version="2"),
        Found(path=Path("/b"), name="tiny", version="1"),
        Found(path=Path("/c"), name="tiny", version="1"),
        Found(path=Path("/d"), name="torn", error=NotABundleError("is not a bundle")),
    ]
    entries = [(each.name, each.version, each.state.value, each.reason) for each in index_of([tried], found)]
    assert entries == [
        ("tiny", "2", "failed", "no room"),
        ("tiny", "1", "unloaded", ""),
        ("torn", "", "failed", "is not a bundle"),
    ]
