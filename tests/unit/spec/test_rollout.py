from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from edgeonnx.errors import ManifestError, SchemaVersionError, UsageError
from edgeonnx.spec.rollout import WHOLE, Channel, Offer, OfferState, position

CONTENTS = "a" * 64
DOCUMENT: dict[str, Any] = {
    "schema_version": "1.0",
    "channel": "stable",
    "models": {
        "minilm": {
            "minimum_version": None,
            "offers": [{"version": "1.1.0", "contents": CONTENTS, "share": 1000, "state": "open"}],
        }
    },
}


def read(change: Callable[[dict[str, Any]], object]) -> Channel:
    """Read the document with a change in it."""
    document = json.loads(json.dumps(DOCUMENT))
    change(document)
    return Channel.from_bytes(json.dumps(document).encode())


def first(document: dict[str, Any]) -> dict[str, Any]:
    """The first offer."""
    offer: dict[str, Any] = document["models"]["minilm"]["offers"][0]
    return offer


def test_a_channel_is_read() -> None:
    channel = read(lambda _: None)
    offer = channel.models["minilm"].find(CONTENTS)
    assert offer == Offer(version="1.1.0", contents=CONTENTS, share=1000, state=OfferState.OPEN)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda d: first(d).update(share=WHOLE + 1), "offers[0].share"),
        (lambda d: first(d).update(share=-1), "offers[0].share"),
        (lambda d: first(d).update(share=0.5), "offers[0].share"),
        (lambda d: first(d).update(state="paused"), "offers[0].state"),
        (lambda d: first(d).update(contents="A" * 64), "offers[0].contents"),
        (lambda d: first(d).update(extra=1), "offers[0].extra"),
        (lambda d: d["models"]["minilm"]["offers"].append(first(d)), "models.minilm.offers"),
        (lambda d: d["models"].update(x={"offers": {}, "minimum_version": None}), "models.x.offers"),
        (lambda d: d.pop("models"), "channel"),
    ],
)
def test_what_breaks_the_schema_is_refused_by_name(change: Callable[[dict[str, Any]], object], where: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read(change)
    assert where in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: first(d).update(version="../1"),
        lambda d: d.update(channel="../stable"),
        lambda d: d["models"].update({"../x": {"offers": [], "minimum_version": None}}),
    ],
)
def test_names_that_would_become_paths_are_refused(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(UsageError):
        read(change)


def test_another_version_of_the_format_is_refused() -> None:
    with pytest.raises(SchemaVersionError):
        read(lambda d: d.update(schema_version="2.0"))


def test_a_new_offer_goes_in_front_and_a_changed_one_stays_in_its_place() -> None:
    channel = read(lambda _: None)
    newer = Offer(version="1.2.0", contents="b" * 64, share=0)
    both = channel.with_offer("minilm", newer)
    assert [offer.version for offer in both.models["minilm"].offers] == ["1.2.0", "1.1.0"]
    wider = Offer(version="1.1.0", contents=CONTENTS, share=WHOLE)
    changed = both.with_offer("minilm", wider)
    assert changed.models["minilm"].offers == (newer, wider)


def test_a_position_is_the_same_on_every_machine() -> None:
    assert position("device-1", CONTENTS) == 699_714
    assert position("device-2", CONTENTS) == 438_345
