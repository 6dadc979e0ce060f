"""The policy over random channels and the lives of devices in them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.slots.state import Blocked, Installed, SlotState, begin, step
from device_agent.slots.states import AttemptState
from device_agent.update.policy import Action, Situation, decide
from edgeonnx.spec.rollout import WHOLE, ModelOffers, Offer, OfferState
from edgeonnx.spec.versions import version_order

VERSIONS = tuple(f"1.{number}.0" for number in range(6))
DIGESTS = {version: format(index + 1, "064x") for index, version in enumerate(VERSIONS)}

FEW = settings(max_examples=60)
"""Each example is a whole channel, or a life in several."""

shares = st.one_of(st.sampled_from((0, WHOLE)), st.integers(0, WHOLE))
devices = st.text("abcdef0123456789", min_size=1, max_size=8)


@st.composite
def offers(draw: st.DrawFn) -> ModelOffers:
    """Any channel's offers of one model."""
    versions = draw(st.lists(st.sampled_from(VERSIONS), unique=True, min_size=draw(st.sampled_from((0, 2, 3)))))
    made = tuple(
        Offer(
            version=version,
            contents=DIGESTS[version],
            share=draw(shares),
            state=draw(st.sampled_from((OfferState.OPEN, *OfferState))),
        )
        for version in versions
    )
    return ModelOffers(offers=made, minimum_version=draw(st.none() | st.none() | st.sampled_from(VERSIONS)))


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Any device, in any state, in any channel."""
    channel = draw(offers())
    named = tuple(offer.version for offer in channel.offers) or VERSIONS
    installed = st.none() | st.sampled_from(named) | st.sampled_from(VERSIONS)
    active, previous, attempt = draw(installed), draw(installed), draw(installed)
    blocked = draw(st.lists(st.sampled_from(VERSIONS), unique=True, max_size=2))
    state = SlotState(
        model="m",
        active=release(active),
        previous=release(previous),
        pin=draw(st.none() | st.none() | st.sampled_from(VERSIONS)),
        blocked=tuple(Blocked(contents=DIGESTS[each], version=each, reason="", at=0.0) for each in blocked),
    )
    if attempt is not None and attempt != active:
        trying = release(attempt)
        assert trying is not None
        state = begin(state, trying, tries=3, now=0.0)
    return Situation(
        device=draw(devices),
        state=state,
        offers=channel,
        metered=draw(st.booleans()),
        in_window=draw(st.booleans()),
        here=frozenset(draw(st.sets(st.sampled_from(sorted(DIGESTS.values()))))),
    )


def release(version: str | None) -> Installed | None:
    """A version in a slot."""
    return None if version is None else Installed(version=version, contents=DIGESTS[version])


def install(where: Situation) -> Situation:
    """The device after it took what was decided, and committed it."""
    decision = decide(where)
    state = where.state
    if decision.abandon:
        state = step(state, AttemptState.ABANDONED, now=0.0)
    if decision.action is Action.INSTALL and decision.offer is not None:
        if state.running is None:
            wanted = Installed(version=decision.offer.version, contents=decision.offer.contents)
            state = begin(state, wanted, tries=3, now=0.0)
        path = ("STAGED", "CANDIDATE", "PROVEN", "PROBATION", "COMMITTED")
        for name in path:
            state = step(state, AttemptState[name], now=0.0)
    return replace(where, state=state)


@given(situations())
@settings(max_examples=250)
def test_every_decision_keeps_the_rules(where: Situation) -> None:
    for offer in where.offers.offers:
        if where.state.running is None or where.state.running.release.contents != offer.contents:
            check(replace(where, state=replace(where.state, active=release(offer.version))))
    check(where)


def check(where: Situation) -> None:
    check_that_what_is_taken_is_allowed(where)
    check_that_an_attempt_goes_on_exactly_if_it_is_wanted(where)
    after = install(where)
    # A device that serves something is never left without.
    assert where.state.active is None or after.state.active is not None
    # One that took what was offered has nothing more to do.
    again = decide(after)
    assert again.action is not Action.INSTALL
    assert again.abandon == ""
    assert install(after) == after
    check_that_it_goes_back_only_for_a_reason(where, after)


def check_that_what_is_taken_is_allowed(where: Situation) -> None:
    decision = decide(where)
    if decision.action is not Action.INSTALL:
        return
    offer = decision.offer
    assert offer is not None
    assert offer in where.offers.offers
    assert offer.state is OfferState.OPEN
    assert offer.includes(where.device)
    assert not where.state.is_blocked(offer.contents)
    assert where.state.pin in (None, offer.version)
    minimum = where.offers.minimum_version
    assert minimum is None or version_order(offer.version) >= version_order(minimum)
    assert not where.metered or offer.contents in where.here
    assert where.state.active is None or where.state.active.contents != offer.contents


def check_that_an_attempt_goes_on_exactly_if_it_is_wanted(where: Situation) -> None:
    running, decision = where.state.running, decide(where)
    if running is None:
        assert decision.abandon == ""
    else:
        kept = decision.offer is not None and decision.offer.contents == running.release.contents
        assert kept == (decision.abandon == "")


def check_that_it_goes_back_only_for_a_reason(where: Situation, then: Situation) -> None:
    before, after = where.state.active, then.state.active
    if before is None or after is None or version_order(after.version) >= version_order(before.version):
        return
    offered = where.offers.find(before.contents)
    assert offered is not None  # what the channel does not name is never left for something older
    minimum = where.offers.minimum_version
    order = [offer.contents for offer in where.offers.offers]
    assert (
        offered.state is OfferState.WITHDRAWN
        or where.state.pin not in (None, before.version)
        or where.state.is_blocked(before.contents)
        or order.index(after.contents) < order.index(before.contents)
        or (minimum is not None and version_order(before.version) < version_order(minimum))
    )


@given(st.lists(shares, min_size=2, max_size=6).map(sorted), devices)
@FEW
def test_no_device_leaves_a_share_that_grows(growing: list[int], device: str) -> None:
    """A channel with an old version for all, and a new one whose share grows from run to run."""
    old = Offer(version="1.0.0", contents=DIGESTS["1.0.0"], share=WHOLE)
    where = Situation(device=device, state=SlotState(model="m"), offers=ModelOffers())
    versions = []
    for share in growing:
        new = Offer(version="1.1.0", contents=DIGESTS["1.1.0"], share=share)
        where = install(replace(where, offers=ModelOffers(offers=(new, old))))
        assert where.state.active is not None
        versions.append(where.state.active.version)
        assert (versions[-1] == "1.1.0") == new.includes(device)
    assert versions == sorted(versions)


@given(st.lists(offers(), min_size=1, max_size=6), devices)
@FEW
def test_a_device_s_life_keeps_the_rules_at_each_step(channels: list[ModelOffers], device: str) -> None:
    where = Situation(device=device, state=SlotState(model="m"), offers=ModelOffers())
    for offered in channels:
        before = where.state.active
        where = install(replace(where, offers=offered))
        active = where.state.active
        assert before is None or active is not None
        if active is not None and active != before:
            taken = offered.find(active.contents)
            assert taken is not None
            assert taken.state is OfferState.OPEN
            assert taken.includes(device)
            minimum = offered.minimum_version
            assert minimum is None or version_order(active.version) >= version_order(minimum)
