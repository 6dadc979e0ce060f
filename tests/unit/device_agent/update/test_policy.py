from __future__ import annotations

from dataclasses import replace

import pytest

from device_agent.slots.state import Blocked, Installed, SlotState, begin, step
from device_agent.slots.states import AttemptState
from device_agent.update.policy import Action, Decision, Situation, Window, decide
from edgeonnx.errors import UsageError
from edgeonnx.spec.rollout import WHOLE, ModelOffers, Offer, OfferState, position

DEVICE = "device-1"


def digest(version: str) -> str:
    """A digest for a version."""
    return version.replace(".", "").ljust(64, "0")


def offer(version: str, share: int = WHOLE, state: OfferState = OfferState.OPEN) -> Offer:
    """An offer to everybody."""
    return Offer(version=version, contents=digest(version), share=share, state=state)


def installed(version: str) -> Installed:
    """A bundle in a slot."""
    return Installed(version=version, contents=digest(version))


def situation(*offers: Offer, active: str | None = None, minimum: str | None = None, **more: object) -> Situation:
    """A device with a version, and a channel."""
    state = SlotState(model="m", active=None if active is None else installed(active))
    return Situation(  # type: ignore[arg-type]
        **{
            "device": DEVICE,
            "state": state,
            "offers": ModelOffers(offers=offers, minimum_version=minimum),
            **more,
        }
    )


def blocked(where: Situation, *versions: str) -> Situation:
    """The same, where some versions failed before."""
    found = tuple(Blocked(contents=digest(each), version=each, reason="", at=0.0) for each in versions)
    return replace(where, state=replace(where.state, blocked=found))


def pin(where: Situation, version: str) -> Situation:
    """The same, pinned."""
    return replace(where, state=replace(where.state, pin=version))


WITHDRAWN, HALTED = OfferState.WITHDRAWN, OfferState.HALTED


@pytest.mark.parametrize(
    ("where", "action", "version", "reason"),
    [
        (situation(), Action.KEEP, None, "offers nothing"),
        (situation(offer("1.0")), Action.INSTALL, "1.0", "1.0 is offered"),
        (situation(offer("1.0"), active="1.0"), Action.KEEP, "1.0", "1.0 is installed"),
        (situation(offer("1.1"), offer("1.0"), active="1.0"), Action.INSTALL, "1.1", "1.1 is offered"),
        (situation(offer("1.1", share=0), offer("1.0"), active="1.0"), Action.KEEP, "1.0", "1.0 is installed"),
        (situation(offer("1.1", share=0)), Action.KEEP, None, "not in its share of 0 %"),
        (situation(offer("1.1", state=HALTED), offer("1.0"), active="1.0"), Action.KEEP, "1.0", "installed"),
        (situation(offer("1.1", state=HALTED), offer("1.0"), active="1.1"), Action.KEEP, "1.1", "installed"),
        (situation(offer("1.1", share=0), offer("1.0"), active="1.1"), Action.KEEP, "1.1", "installed"),
        (situation(offer("1.1", state=WITHDRAWN), offer("1.0"), active="1.1"), Action.INSTALL, "1.0", "because 1.1"),
        (situation(offer("1.1", state=WITHDRAWN), active="1.1"), Action.KEEP, None, "serves on (1.1: withdrawn)"),
        (blocked(situation(offer("1.1"), offer("1.0"), active="1.0"), "1.1"), Action.KEEP, "1.0", "installed"),
        (blocked(situation(offer("1.1")), "1.1"), Action.KEEP, None, "failed on this device"),
        (pin(situation(offer("1.1"), offer("1.0")), "1.0"), Action.INSTALL, "1.0", "offered"),
        (pin(situation(offer("1.1"), active="1.1"), "1.0"), Action.KEEP, None, "pinned to 1.0"),
        (pin(situation(offer("1.0", state=WITHDRAWN)), "1.0"), Action.KEEP, None, "withdrawn"),
        (situation(offer("1.9"), active="1.0", minimum="1.10"), Action.KEEP, None, "below the channel's minimum 1.10"),
        (situation(offer("1.10"), active="1.0", minimum="1.10"), Action.INSTALL, "1.10", "offered"),
        (situation(offer("1.0"), active="2.0"), Action.KEEP, None, "not newer than 2.0"),
        (situation(offer("2.1"), active="2.0"), Action.INSTALL, "2.1", "offered"),
        (situation(offer("1.0"), metered=True), Action.WAIT, "1.0", "metered"),
        (situation(offer("1.0"), metered=True, here=frozenset({digest("1.0")})), Action.INSTALL, "1.0", "offered"),
        (situation(offer("1.0"), in_window=False), Action.WAIT, "1.0", "time window"),
        (situation(offer("1.0"), in_window=False, here=frozenset({digest("1.0")})), Action.INSTALL, "1.0", "offered"),
        (
            situation(offer("1.1", state=WITHDRAWN), offer("1.0"), active="1.1", in_window=False),
            Action.INSTALL,
            "1.0",
            "because 1.1 was withdrawn",
        ),
        (
            situation(offer("1.1", state=WITHDRAWN), offer("1.0"), active="1.1", metered=True),
            Action.WAIT,
            "1.0",
            "metered",
        ),
    ],
)
def test_decide(where: Situation, action: Action, version: str | None, reason: str) -> None:
    found = decide(where)
    assert (found.action, None if found.offer is None else found.offer.version) == (action, version)
    assert reason in found.reason


def with_attempt(where: Situation, version: str, *states: AttemptState) -> Situation:
    """The same, with an attempt that went through some states."""
    state = begin(where.state, installed(version), tries=3, now=0.0)
    for each in states:
        state = step(state, each, now=0.0)
    return replace(where, state=state)


PROVEN = (AttemptState.STAGED, AttemptState.CANDIDATE, AttemptState.PROVEN)


@pytest.mark.parametrize(
    ("where", "abandon"),
    [
        (with_attempt(situation(offer("1.1"), active="1.0"), "1.1"), ""),
        (with_attempt(situation(offer("1.2"), offer("1.1"), active="1.0"), "1.1"), "1.2 is offered instead"),
        (with_attempt(situation(offer("1.1", state=WITHDRAWN), active="1.0"), "1.1", *PROVEN), "withdrawn"),
        (with_attempt(situation(offer("1.1", share=0), active="1.0"), "1.1"), "not in its share"),
        (with_attempt(situation(offer("1.1", state=HALTED), active="1.0"), "1.1"), "halted"),
        (with_attempt(situation(active="1.0"), "1.1"), "not offered any more"),
        (
            with_attempt(
                situation(offer("1.1", state=WITHDRAWN), active="1.0"), "1.1", *PROVEN, AttemptState.PROBATION
            ),
            "",
        ),
        (with_attempt(situation(offer("1.1"), active="1.0", metered=True), "1.1"), ""),
    ],
    ids=["wanted", "superseded", "withdrawn", "out of share", "halted", "gone", "on probation", "waits"],
)
def test_an_attempt_is_abandoned_when_its_offer_goes_away(where: Situation, abandon: str) -> None:
    found: Decision = decide(where)
    assert (abandon in found.abandon) if abandon else found.abandon == ""


def test_a_device_in_the_share_takes_it_and_one_outside_does_not() -> None:
    place = position(DEVICE, digest("1.0"))
    assert decide(situation(offer("1.0", share=place))).action is Action.KEEP
    assert decide(situation(offer("1.0", share=place + 1))).action is Action.INSTALL


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("02:00-05:00", (120, 299), (119, 300)),
        ("22:30-01:15", (1350, 0, 74), (1349, 75)),
        ("00:00-23:59", (0, 1438), (1439,)),
    ],
)
def test_a_time_window(text: str, inside: tuple[int, ...], outside: tuple[int, ...]) -> None:
    window = Window.parse(text)
    assert all(window.contains_minute(minute) for minute in inside)
    assert not any(window.contains_minute(minute) for minute in outside)


@pytest.mark.parametrize("text", ["", "2-5", "02:00", "24:00-05:00", "02:60-05:00", "02:00-02:00", "٠٢:٠٠-٠٥:٠٠"])
def test_what_is_no_time_window_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="time window"):
        Window.parse(text)


def test_a_time_window_is_in_its_zone_summer_and_winter() -> None:
    window = Window.parse("02:00-05:00", "Europe/Berlin")
    winter, summer = 1_768_000_000 // 86_400 * 86_400, 1_783_000_000 // 86_400 * 86_400  # midnights in UTC
    assert [hour for hour in range(24) if window.contains(winter + hour * 3600)] == [1, 2, 3]
    assert [hour for hour in range(24) if window.contains(summer + hour * 3600)] == [0, 1, 2]


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "", "/etc/localtime"])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(UsageError, match="window_zone"):
        Window.parse("02:00-05:00", zone)
