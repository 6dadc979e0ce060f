"""Changes of a channel's policy: a channel in, a channel out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeonnx.errors import UsageError
from edgeonnx.repository.offers import OfferChange, changed, needed_by_devices, without_release
from edgeonnx.spec.rollout import WHOLE, Channel, OfferState

EMPTY = Channel(name="stable", models={})
OLD, NEW, OTHER = "a" * 64, "b" * 64, "c" * 64


def change(version: str, contents: str, share: int | None = None, **further: object) -> OfferChange:
    return OfferChange(
        channel="stable",
        model="m",
        version=version,
        contents=contents,
        share=share,
        **further,  # type: ignore[arg-type]
    )


@pytest.fixture
def channel() -> Channel:
    return changed(changed(EMPTY, change("1.0.0", OLD, WHOLE)), change("1.10.0", NEW, 100_000))


def versions(channel: Channel) -> list[str]:
    return [offer.version for offer in channel.models["m"].offers]


def test_the_newest_version_comes_first_whenever_it_was_published(channel: Channel) -> None:
    assert versions(channel) == ["1.10.0", "1.0.0"]
    assert versions(changed(channel, change("1.9.1", OTHER, WHOLE))) == ["1.10.0", "1.9.1", "1.0.0"]


def test_what_is_not_named_stays(channel: Channel) -> None:
    after = changed(channel, change("1.10.0", NEW, state=OfferState.HALTED))
    offer = after.models["m"].find(NEW)
    assert offer is not None
    assert (offer.share, offer.state) == (100_000, OfferState.HALTED)
    assert changed(after, change("1.10.0", NEW)) == after


def test_a_share_does_not_shrink_unless_it_is_forced(channel: Channel) -> None:
    with pytest.raises(UsageError, match="would shrink") as caught:
        changed(channel, change("1.10.0", NEW, 99_999))
    assert caught.value.expected == "at least 10%"
    offer = changed(channel, change("1.10.0", NEW, 99_999, force=True)).models["m"].find(NEW)
    assert offer is not None
    assert offer.share == 99_999


def test_one_version_is_one_release(channel: Channel) -> None:
    with pytest.raises(UsageError, match="another release of this version"):
        changed(channel, change("1.10.0", OTHER, WHOLE))


def test_the_minimum_version_only_rises(channel: Channel) -> None:
    after = changed(channel, change("1.10.0", NEW, minimum_version="1.2.0"))
    assert after.models["m"].minimum_version == "1.2.0"
    with pytest.raises(UsageError, match="would go back"):
        changed(after, change("1.10.0", NEW, minimum_version="1.1.0"))
    forced = changed(after, change("1.10.0", NEW, minimum_version="1.1.0", force=True))
    assert forced.models["m"].minimum_version == "1.1.0"
    assert changed(after, change("1.10.0", NEW)).models["m"].minimum_version == "1.2.0"


def test_a_minimum_version_that_no_release_reaches_is_refused(channel: Channel) -> None:
    with pytest.raises(UsageError, match="no release of the channel reaches"):
        changed(channel, change("1.10.0", NEW, minimum_version="1.11.0"))


def test_a_release_is_needed_until_a_newer_one_is_open_to_all_or_it_is_withdrawn(channel: Channel) -> None:
    assert needed_by_devices(channel, "m", OLD)
    whole = changed(channel, change("1.10.0", NEW, WHOLE))
    assert not needed_by_devices(whole, "m", OLD)
    assert needed_by_devices(whole, "m", NEW)
    halted = changed(whole, change("1.10.0", NEW, state=OfferState.HALTED))
    assert needed_by_devices(halted, "m", OLD)
    withdrawn = changed(channel, change("1.0.0", OLD, state=OfferState.WITHDRAWN))
    assert not needed_by_devices(withdrawn, "m", OLD)
    assert not needed_by_devices(channel, "m", OTHER)


def test_a_release_is_taken_out_of_a_channel(channel: Channel) -> None:
    after = without_release(channel, "m", OLD)
    assert versions(after) == ["1.10.0"]
    assert without_release(after, "m", NEW) == replace(channel, models={})
    assert without_release(channel, "m", OTHER) is channel
