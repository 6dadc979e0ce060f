"""Who may take which release: a channel's policy, and the arithmetic that puts a device into a cohort. Pure.

A channel lists, for each model, its offers, the preferred one first. Each offer has a share of the fleet. Whether a
device is in it follows from the device's id and the release alone (`position`), so no server decides, a device always
gets the same answer, and a device that is in a share stays in it when the share grows.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.paths import check_bundle_name, check_bundle_version

if TYPE_CHECKING:
    from edgeonnx.spec.parse import Node

ROLLOUT_SCHEMA = "1.0"
WHOLE = 1_000_000
"""The share of the whole fleet: shares are counted in parts per million, so that they are exact."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


class OfferState(Enum):
    """What an offer allows."""

    OPEN = "open"
    """Devices of its share take it."""
    HALTED = "halted"
    """No further device takes it; those that have it keep it."""
    WITHDRAWN = "withdrawn"
    """No device takes it, and those that have it go back to the next offer that they may take."""


def position(device: str, contents: str) -> int:
    """Where a device stands in the order in which the fleet takes a release, from 0 to `WHOLE` - 1.

    The first 64 bits of SHA-256 of the release's digest and the device's id, scaled: uniform over devices, and
    independent from release to release, so that it is not always the same boxes that try first.

    Args:
        device: The device's id.
        contents: The digest of the release's bundle.
    """
    digest = hashlib.sha256(f"{contents}\n{device}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") * WHOLE) >> 64


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One release in a channel.

    Attributes:
        version: The release's version.
        contents: Digest of its bundle, lower-case hexadecimal SHA-256.
        share: Part of the fleet that may take it, in parts per million.
        state: What it allows.
    """

    version: str
    contents: str
    share: int
    state: OfferState = OfferState.OPEN

    def includes(self, device: str) -> bool:
        """Whether a device is in its share; the state is not looked at."""
        return position(device, self.contents) < self.share

    @classmethod
    def from_dict(cls, node: Node) -> Offer:
        """Read one element of `offers`."""
        node.only(("version", "contents", "share", "state"))
        if _SHA256.fullmatch(node.text("contents")) is None:
            node.required("contents").fail("is no SHA-256", expected="64 lower-case hexadecimal digits")
        states = {state.value: state for state in OfferState}
        if node.text("state") not in states:
            node.required("state").fail("is not a known state", expected=" or ".join(states))
        return cls(
            version=check_bundle_version(node.text("version")),
            contents=node.text("contents"),
            share=node.integer("share", maximum=WHOLE),
            state=states[node.text("state")],
        )

    def to_dict(self) -> dict[str, object]:
        """One element of `offers`."""
        return {
            "version": self.version,
            "contents": self.contents,
            "share": self.share,
            "state": self.state.value,
        }


@dataclass(frozen=True, kw_only=True)
class ModelOffers:
    """What a channel offers of one model.

    Attributes:
        offers: The preferred one (the newest) first.
        minimum_version: Devices never go below it, or None.
    """

    offers: tuple[Offer, ...] = ()
    minimum_version: str | None = None

    def find(self, contents: str) -> Offer | None:
        """The offer of a bundle's digest."""
        return next((offer for offer in self.offers if offer.contents == contents), None)

    @classmethod
    def from_dict(cls, node: Node) -> ModelOffers:
        """Read one member of `models`."""
        node.only(("offers", "minimum_version"))
        offers = tuple(Offer.from_dict(item) for item in node.required("offers").items())
        for key in ("version", "contents"):
            values = [getattr(offer, key) for offer in offers]
            if len(set(values)) != len(values):
                node.required("offers").fail(f"offers one {key} twice")
        return cls(offers=offers, minimum_version=node.optional_text("minimum_version"))

    def to_dict(self) -> dict[str, object]:
        """One member of `models`."""
        return {"offers": [offer.to_dict() for offer in self.offers], "minimum_version": self.minimum_version}


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A channel's policy: the content of `channels/<name>.json`, signed by the role `rollout`."""

    name: str
    models: dict[str, ModelOffers]

    @classmethod
    def from_bytes(cls, data: bytes, *, file: str = "channel") -> Channel:
        """Read a channel's policy.

        Raises:
            ManifestError, SchemaVersionError: It breaks the schema, or is of another version.
        """
        node = parse_document(data, file).version("schema_version", known=ROLLOUT_SCHEMA)
        node.only(("schema_version", "channel", "models"))
        models = {
            check_bundle_name(name): ModelOffers.from_dict(child) for name, child in node.required("models").members()
        }
        return cls(name=check_bundle_name(node.text("channel")), models=models)

    def to_bytes(self) -> bytes:
        """The canonical bytes of the policy."""
        models = {name: offers.to_dict() for name, offers in self.models.items()}
        return canonical_json({"schema_version": ROLLOUT_SCHEMA, "channel": self.name, "models": models})

    def with_offer(self, model: str, offer: Offer) -> Channel:
        """This channel with an offer in front, or changed in its place if it offers that release already."""
        before = self.models.get(model, ModelOffers())
        if before.find(offer.contents) is None:
            offers = (offer, *before.offers)
        else:
            offers = tuple(offer if each.contents == offer.contents else each for each in before.offers)
        return replace(self, models={**self.models, model: replace(before, offers=offers)})
