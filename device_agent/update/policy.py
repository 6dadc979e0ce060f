"""Which release this device takes now, and what becomes of an attempt. Pure: all that matters is in `Situation`.

The rules, in this order, over the channel's offers from the preferred one down:

- A pin allows one version only.
- Withdrawn offers, blocked digests, and versions below the channel's minimum are passed over.
- An offer that this device has already is kept.
- A halted offer is taken by nobody new; an open one by the devices of its share.
- A release that the channel does not name any more is kept until a newer one is offered.

What is wanted then waits, if it is to be fetched, for a link that is not metered, and for the time window. A device
whose release was withdrawn does not wait for the window; and nothing waits that is here already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING

from device_agent.slots.states import AttemptState
from edgeonnx.errors import UsageError
from edgeonnx.spec.rollout import ModelOffers, Offer, OfferState
from edgeonnx.spec.versions import version_order

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from device_agent.slots.state import SlotState

MINUTES = 24 * 60
_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


class Action(Enum):
    """What to do now."""

    KEEP = "keep"
    INSTALL = "install"
    WAIT = "wait"


@dataclass(frozen=True, kw_only=True)
class Window:
    """A time of day, in minutes from midnight; where it ends before it begins, it goes over midnight.

    Attributes:
        begin: Its first minute.
        end: The minute after its last one.
        zone: The time zone; None: that of this machine.
    """

    begin: int
    end: int
    zone: ZoneInfo | None = None

    @classmethod
    def parse(cls, text: str, zone: str | None = None) -> Window:
        """Read "02:00-05:00", and the name of a time zone.

        Raises:
            UsageError: It is something else, or empty, or this machine knows no such zone.
        """
        found = _WINDOW.fullmatch(text)
        if found is None or found.group(1, 2) == found.group(3, 4):
            raise UsageError(
                "is no time window",
                where="update.window",
                expected='hours and minutes such as "02:00-05:00"',
                found=repr(text[:40]),
            )
        hours = [int(part) for part in found.groups()]
        found_zone = None if zone is None else _zone(zone)
        return cls(begin=hours[0] * 60 + hours[1], end=hours[2] * 60 + hours[3], zone=found_zone)

    def contains(self, seconds: float) -> bool:
        """Whether a moment, in seconds since 1970, is in it."""
        local = datetime.fromtimestamp(seconds, self.zone)
        return self.contains_minute(local.hour * 60 + local.minute)

    def contains_minute(self, minute: int) -> bool:
        """Whether a minute of the day is in it."""
        return (minute - self.begin) % MINUTES < (self.end - self.begin) % MINUTES


def _zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo  # few devices name a zone

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise UsageError(
            "this machine knows no such time zone",
            where="update.window_zone",
            expected='a name such as "Europe/Berlin"',
            found=repr(name[:40]),
            hint="install the package tzdata if the name is right",
        ) from None


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What the decision depends on.

    Attributes:
        device: The device's id.
        state: What is installed and blocked.
        offers: What the channel offers of this model.
        metered: Nothing may be fetched now.
        in_window: It is the time of day for new releases.
        here: Digests of the bundles that lie in slots: they need not be fetched.
    """

    device: str
    state: SlotState
    offers: ModelOffers
    metered: bool = False
    in_window: bool = True
    here: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, with what, and why; the reasons are for people.

    Attributes:
        action: What to do.
        reason: Why.
        offer: The offer that this device should have, or None.
        abandon: Why the running attempt is to be given up; empty if it is not.
    """

    action: Action
    reason: str
    offer: Offer | None = None
    abandon: str = ""


def decide(situation: Situation) -> Decision:
    """Which release this device takes now."""
    offer, passed = wanted(situation)
    action, reason = _act(offer, passed, situation)
    return Decision(action=action, reason=reason, offer=offer, abandon=_given_up(offer, situation))


def _act(offer: Offer | None, passed: dict[str, str], situation: Situation) -> tuple[Action, str]:
    active = situation.state.active
    withdrawn = active is not None and passed.get(active.contents) == "withdrawn"
    if offer is None:
        reasons = {each.contents: each.version for each in situation.offers.offers}
        why = "; ".join(f"{reasons[contents]}: {reason}" for contents, reason in passed.items())
        if withdrawn:
            return Action.KEEP, f"nothing may take the place of what was withdrawn, so it serves on ({why})"
        return Action.KEEP, why or "the channel offers nothing of this model"
    if active is not None and offer.contents == active.contents:
        return Action.KEEP, f"{offer.version} is installed"
    if offer.contents not in situation.here:
        if situation.metered:
            return Action.WAIT, f"{offer.version} waits: the link is metered"
        if not situation.in_window and not withdrawn:
            return Action.WAIT, f"{offer.version} waits for the time window"
    because = f", because {active.version} was withdrawn" if active is not None and withdrawn else ""
    return Action.INSTALL, f"{offer.version} is offered{because}"


def wanted(situation: Situation) -> tuple[Offer | None, dict[str, str]]:
    """The offer that this device should have, and by digest why each preferred one was passed over."""
    passed: dict[str, str] = {}
    for offer in situation.offers.offers:
        reason = _against(offer, situation)
        if reason is None:
            return offer, passed
        passed[offer.contents] = reason
    return None, passed


def _against(offer: Offer, situation: Situation) -> str | None:
    """Why this device does not take an offer; None if it does."""
    state, offers = situation.state, situation.offers
    active = state.active
    if offer.state is OfferState.WITHDRAWN:
        return "withdrawn"
    if state.pin is not None and offer.version != state.pin:
        return f"this device is pinned to {state.pin}"
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


def _given_up(offer: Offer | None, situation: Situation) -> str:
    """Why the running attempt is to be abandoned; empty if it goes on.

    One on probation serves already and is watched by the process that serves: what takes its place is decided when its
    probation is over.
    """
    running = situation.state.running
    if running is None or running.state is AttemptState.PROBATION:
        return ""
    if offer is not None and offer.contents == running.release.contents:
        return ""
    found = situation.offers.find(running.release.contents)
    if found is None:
        return "it is not offered any more"
    against = _against(found, situation)
    if against is None:
        return f"{offer.version} is offered instead" if offer is not None else "it is not offered any more"
    return against
