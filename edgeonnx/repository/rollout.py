"""Changing who may take a release: it needs the online keys alone, and costs devices a few kilobytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeonnx.errors import UsageError
from edgeonnx.repository.offers import OfferChange, check_channel
from edgeonnx.repository.publish import apply_change
from edgeonnx.repository.signing.roles import RELEASES, ROLLOUT
from edgeonnx.repository.state import read_channel, read_release
from edgeonnx.spec.release import channel_target

if TYPE_CHECKING:
    from edgeonnx.repository.repository import Repository
    from edgeonnx.repository.signing.draft import Draft
    from edgeonnx.repository.signing.keys import KeyStore
    from edgeonnx.repository.state import State
    from edgeonnx.spec.rollout import Channel, OfferState


def change_offer(
    repository: Repository,
    keys: KeyStore,
    *,
    channel: str,
    model: str | None = None,
    version: str | None = None,
    share: int | None = None,
    state: OfferState | None = None,
    minimum_version: str | None = None,
    force: bool = False,
) -> Channel:
    """Change the offer of a release in a channel.

    Args:
        repository: The repository.
        keys: Where the online keys are.
        channel: The channel's name.
        model: The model; may be left out if the channel has one only.
        version: The release; the newest one of the channel if not given. A release that is signed and that the
            channel does not offer yet is added.
        share: Its share of the fleet in parts per million, as before if not given.
        state: What it allows, as before if not given.
        minimum_version: Devices of the channel never go below it, as before if not given.
        force: Let the share shrink, or the minimum version go back.

    Returns:
        The channel's policy afterwards.

    Raises:
        UsageError: There is no such channel, model or release, or the change makes no sense.
        KeyStoreError: An online key is missing.
        RepositoryBusyError: Another process changes the repository.
    """
    check_channel(channel)
    with repository.changing() as draft:
        name, chosen = _choose(draft, channel, model, version)
        contents = _contents(draft, name, chosen)
        change = OfferChange(
            channel=channel,
            model=name,
            version=chosen,
            contents=contents,
            share=share,
            state=state,
            minimum_version=minimum_version,
            force=force,
        )
        after = apply_change(draft, change)
        draft.commit(keys)
    return after


def find_channel(repository: Repository, state: State, channel: str) -> Channel:
    """A channel's policy.

    Raises:
        UsageError: There is no such channel.
    """
    found = read_channel(repository.files, state.targets(ROLLOUT), check_channel(channel))
    if found is None:
        raise _no_channel(state, channel)
    return found


def _no_channel(state: State, channel: str) -> UsageError:
    known = sorted(path.removeprefix("channels/").removesuffix(".json") for path in state.targets(ROLLOUT).targets)
    return UsageError(
        "there is no such channel",
        where=channel_target(channel),
        expected=", ".join(known) or "a channel; `edgeonnx publish` makes one",
    )


def _choose(draft: Draft, channel: str, model: str | None, version: str | None) -> tuple[str, str]:
    """The model and the version that are meant."""
    known = read_channel(draft.files, draft.before.targets(ROLLOUT), channel)
    if known is None:
        if model is not None and version is not None:
            return model, version
        raise _no_channel(draft.before, channel)
    if model is None:
        if len(known.models) != 1:
            raise UsageError("say which model", where=channel, expected="--model " + " or ".join(sorted(known.models)))
        model = next(iter(known.models))
    if version is not None:
        return model, version
    offers = known.models.get(model)
    if offers is None or not offers.offers:
        raise UsageError(
            "the channel does not offer this model",
            where=f"{channel}: {model}",
            expected=", ".join(sorted(known.models)) or "a model",
        )
    return model, offers.offers[0].version


def _contents(draft: Draft, model: str, version: str) -> str:
    release = read_release(draft.files, draft.before.targets(RELEASES), model, version)
    if release is None:
        raise UsageError(
            "there is no such release",
            where=f"{model} {version}",
            hint="`edgeonnx publish` makes a release of a bundle",
        )
    return release.contents
