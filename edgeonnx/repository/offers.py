"""Changes of a channel's policy. Pure: a channel in, a channel out, or the reason why not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgeonnx.errors import UsageError
from edgeonnx.repository.share import show_share
from edgeonnx.spec.paths import check_bundle_name, check_bundle_version
from edgeonnx.spec.rollout import WHOLE, Channel, ModelOffers, Offer, OfferState
from edgeonnx.spec.versions import version_order


@dataclass(frozen=True, kw_only=True)
class OfferChange:
    """What is to become of one release in a channel; what is None stays as it is.

    Attributes:
        channel: The channel's name.
        model: The model's name.
        version: The release's version.
        contents: Digest of its bundle.
        share: Its share of the fleet, in parts per million; needed for a release that the channel does not offer yet.
        state: What it allows.
        minimum_version: The version that devices of the channel never go below.
        force: Also do what devices cannot follow: shrink a share, lower the minimum version.
    """

    channel: str
    model: str
    version: str
    contents: str
    share: int | None = None
    state: OfferState | None = None
    minimum_version: str | None = None
    force: bool = False


def check_channel(name: str) -> str:
    """Return `name` if it can name a channel: it becomes a part of a path and of a URL.

    Raises:
        UsageError: It has other characters than lower-case letters, digits and `._-`, or is too long.
    """
    try:
        return check_bundle_name(name)
    except UsageError as error:
        raise UsageError(
            "the channel's name cannot be used", where="--channel", expected=error.expected, found=error.found
        ) from None


def changed(channel: Channel, change: OfferChange) -> Channel:
    """The channel after a change; the same one if nothing changes.

    Raises:
        UsageError: The change makes no sense, or devices could not follow it and it is not forced.
    """
    before = channel.models.get(change.model, ModelOffers())
    known = before.find(change.contents)
    if known is None:
        same = next((offer for offer in before.offers if offer.version == change.version), None)
        if same is not None:
            raise UsageError(
                "the channel offers another release of this version",
                where=f"{change.channel}: {change.model} {change.version}",
                found=same.contents[:16],
            )
        known = Offer(version=change.version, contents=change.contents, share=0)
    share = known.share if change.share is None else change.share
    _check_growth(change, known.share, share)
    offer = replace(known, share=share, state=change.state or known.state)
    after = channel.with_offer(change.model, offer)
    offers = after.models[change.model]
    offers = replace(
        offers,
        offers=tuple(sorted(offers.offers, key=lambda each: version_order(each.version), reverse=True)),
        minimum_version=_minimum(change, offers),
    )
    return replace(after, models={**after.models, change.model: offers})


def _check_growth(change: OfferChange, before: int, after: int) -> None:
    if after < before and not change.force:
        raise UsageError(
            "the share would shrink, and devices that have the release would keep it",
            where=f"{change.channel}: {change.model} {change.version}",
            expected=f"at least {show_share(before)}",
            found=show_share(after),
            hint="--halt stops the rollout, --withdraw takes the release back; --force only lets fewer devices begin",
        )


def _minimum(change: OfferChange, offers: ModelOffers) -> str | None:
    wanted = change.minimum_version
    if wanted is None:
        return offers.minimum_version
    check_bundle_version(wanted)
    where = f"{change.channel}: {change.model}"
    newest = max((offer.version for offer in offers.offers), key=version_order)
    if version_order(wanted) > version_order(newest):
        raise UsageError(
            "no release of the channel reaches the minimum version",
            where=where,
            expected=f"at most {newest}",
            found=wanted,
        )
    present = offers.minimum_version
    if present is not None and version_order(wanted) < version_order(present) and not change.force:
        raise UsageError(
            "the minimum version would go back",
            where=where,
            expected=f"at least {present}",
            found=wanted,
            hint="--force lowers it; devices that know the higher one keep to it",
        )
    return wanted


def without_release(channel: Channel, model: str, contents: str) -> Channel:
    """The channel without the offer of a release; a model that is offered no more is left out."""
    before = channel.models.get(model)
    if before is None or before.find(contents) is None:
        return channel
    offers = tuple(offer for offer in before.offers if offer.contents != contents)
    rest = {name: each for name, each in channel.models.items() if name != model}
    if offers:
        rest[model] = replace(before, offers=offers)
    return replace(channel, models=rest)


def needed_by_devices(channel: Channel, model: str, contents: str) -> bool:
    """Whether a device of the channel may take a release.

    It may, unless the offer is withdrawn, or an offer that goes before it is open to all.
    """
    for offer in channel.models.get(model, ModelOffers()).offers:
        if offer.contents == contents:
            return offer.state is not OfferState.WITHDRAWN
        if offer.state is OfferState.OPEN and offer.share == WHOLE:
            return False
    return False
