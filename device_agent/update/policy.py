"""Which release this device takes now. Pure: everything that matters is in `Situation`.

The rules, in this order, over the channel's offers from the preferred one down:

- A pin allows one version only.
- Blocked digests, and versions below the channel's minimum, are passed over.
- An offer that this device has already is kept, unless it is withdrawn.
- A halted offer is taken by nobody new; an open one by the devices of its share.
- A release that the channel does not name any more is kept until a newer one is offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from edgeonnx.spec.rollout import ModelOffers, Offer, OfferState
from edgeonnx.spec.versions import version_order

if TYPE_CHECKING:
    from device_agent.slots.state import SlotState


class Action(Enum):
    """What to do now."""

    KEEP = "keep"
    INSTALL = "install"
    WAIT = "wait"


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What the decision depends on.

    Attributes:
        device: The device's id.
        state: What is installed and blocked.
        offers: What the channel offers of this model.
        metered: Nothing may be fetched now.
        in_window: It is the time of day for new releases.
    """

    device: str
    state: SlotState
    offers: ModelOffers
    metered: bool = False
    in_window: bool = True


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, with what, and why; the reason is for people."""

    action: Action
    reason: str
    offer: Offer | None = None


def decide(situation: Situation) -> Decision:
    """Which release this device takes now."""
    offer, passed = wanted(situation)
    active = situation.state.active
    if offer is None:
        return Decision(action=Action.KEEP, reason="; ".join(passed) or "the channel offers nothing")
    if active is not None and offer.contents == active.contents:
        return Decision(action=Action.KEEP, reason=f"{offer.version} is installed", offer=offer)
    if situation.metered:
        return Decision(action=Action.WAIT, reason=f"{offer.version} waits: the link is metered", offer=offer)
    if not situation.in_window:
        return Decision(action=Action.WAIT, reason=f"{offer.version} waits for the time window", offer=offer)
    return Decision(action=Action.INSTALL, reason=f"{offer.version} is offered", offer=offer)


def wanted(situation: Situation) -> tuple[Offer | None, list[str]]:
    """The offer that this device should have, and why each preferred one was passed over."""
    passed: list[str] = []
    for offer in situation.offers.offers:
        reason = _against(offer, situation)
        if reason is None:
            return offer, passed
        passed.append(f"{offer.version}: {reason}")
    return None, passed


def _against(offer: Offer, situation: Situation) -> str | None:
    """Why this device does not take an offer; None if it does."""
    state, offers = situation.state, situation.offers
    active = state.active
    if state.pin is not None and offer.version != state.pin:
        return f"this device is pinned to {state.pin}"
    if offer.state is OfferState.WITHDRAWN:
        return "withdrawn"
    if state.is_blocked(offer.contents):
        return "it failed on this device before"
    minimum = offers.minimum_version
    if minimum is not None and version_order(offer.version) < version_order(minimum):
        return f"below the channel's minimum {minimum}"
    if active is not None and offer.contents == active.contents:
        return None
    if offer.state is OfferState.HALTED:
        return "halted"
    if not offer.includes(situation.device):
        return f"this device is not in its share of {offer.share / 10_000:g} %"
    if active is not None and offers.find(active.contents) is None:
        return _not_newer(offer, active.version)
    return None


def _not_newer(offer: Offer, version: str) -> str | None:
    """An active version that the channel does not name gives way to newer ones only."""
    return None if version_order(offer.version) > version_order(version) else f"not newer than {version}"
