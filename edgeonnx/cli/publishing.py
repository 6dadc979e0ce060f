"""`edgeonnx publish` and `edgeonnx rollout`: a release, and who may take it."""

from __future__ import annotations

import time
from pathlib import Path  # noqa: TC003 - Typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from edgeonnx.cli.repo_options import (
    JsonOption,
    KeysOption,
    Passphrase,
    PassphraseOption,
    QuietOption,
    RepoOption,
    open_keys,
)
from edgeonnx.errors import UsageError

if TYPE_CHECKING:
    from edgeonnx.repository.publish import DeltaBase
    from edgeonnx.spec.rollout import OfferState

NO_DELTAS = "none"

ChannelOption = Annotated[str, typer.Option("--channel", "-c", help="The channel, such as stable.")]
MinimumOption = Annotated[
    str | None, typer.Option("--minimum-version", metavar="V", help="Devices of the channel never go below it.")
]


def publish(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle's folder.")],
    repo: RepoOption,
    channel: ChannelOption,
    rollout: Annotated[
        str, typer.Option("--rollout", metavar="SHARE", help="Share of the fleet, such as 10% or 0.5%.")
    ],
    keys: KeysOption = None,
    delta_from: Annotated[
        str | None,
        typer.Option(
            "--delta-from",
            metavar="VERSION",
            help="Release to make differences from, or none. [default: the newest one before this]",
        ),
    ] = None,
    minimum_version: MinimumOption = None,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Let the share shrink, or the minimum version go back.")
    ] = False,
    skip_golden: Annotated[
        bool, typer.Option("--skip-golden", help="Do not replay the golden set here before anything is written.")
    ] = False,
    passphrase_file: PassphraseOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Publish a bundle: write what the repository lacks of it, sign the release, offer it to a share of the fleet.

    The bundle is verified before, as by `edgeonnx verify`: every device would refuse what does not give its golden
    answers. Publishing the same bundle again changes the share. If the release needs signatures of further people, it
    waits for them; see `edgeonnx repo sign`.
    """
    from edgeonnx.cli import show_repository as show
    from edgeonnx.cli.output import Stages, print_json
    from edgeonnx.pipeline.verify import verify
    from edgeonnx.repository import Repository
    from edgeonnx.repository.publish import publish as run_publish
    from edgeonnx.repository.share import parse_share

    share = parse_share(rollout, where="--rollout")
    store = open_keys(keys, Passphrase(file=passphrase_file), repo)
    store.unlock()
    with Stages(quiet=quiet or as_json) as stages:
        if not skip_golden:
            verify(bundle, stages)
        begun = time.monotonic()
        stages.started("blobs", "compressing what the repository lacks")
        done = run_publish(
            Repository(repo),
            bundle,
            store,
            channel=channel,
            share=share,
            minimum_version=minimum_version,
            deltas=_delta_base(delta_from),
            force=force,
            on_blob=stages.advanced,
        )
        stages.finished("blobs", show.written(done), time.monotonic() - begun)
    print_json(show.published_facts(done)) if as_json else show.published(done)


def _delta_base(version: str | None) -> DeltaBase | None:
    from edgeonnx.repository.publish import DeltaBase

    return None if version == NO_DELTAS else DeltaBase(version=version)


def rollout(
    repo: RepoOption,
    channel: ChannelOption,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The model [default: the channel's only one].")
    ] = None,
    version: Annotated[
        str | None, typer.Option("--version", "-v", help="The release [default: the channel's newest].")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="SHARE", help="Its share of the fleet, such as 50%.")
    ] = None,
    halt: Annotated[
        bool, typer.Option("--halt", help="No further device takes it; those that have it keep it.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Undo --halt or --withdraw.")] = False,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Devices that have it go back to the next offer.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the channel; change nothing, and need no key.")] = False,
    minimum_version: MinimumOption = None,
    keys: KeysOption = None,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Let the share shrink, or the minimum version go back.")
    ] = False,
    passphrase_file: PassphraseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change which share of the fleet may take a release; it needs the online keys alone."""
    from edgeonnx.cli import show_repository
    from edgeonnx.cli.output import print_json
    from edgeonnx.repository import Repository
    from edgeonnx.repository.rollout import change_offer, find_channel
    from edgeonnx.repository.share import parse_share

    repository = Repository(repo)
    state = _state(halt=halt, resume=resume, withdraw=withdraw)
    share = None if to is None else parse_share(to, where="--to")
    if show:
        if share is not None or state is not None or minimum_version is not None:
            raise UsageError("--show changes nothing", found="it was given together with a change")
        found = find_channel(repository, repository.state(), channel)
    elif share is None and state is None and minimum_version is None:
        raise UsageError(
            "say what is to change", expected="--to, --halt, --resume, --withdraw, --minimum-version, or --show"
        )
    else:
        found = change_offer(
            repository,
            open_keys(keys, Passphrase(file=passphrase_file), repo),
            channel=channel,
            model=model,
            version=version,
            share=share,
            state=state,
            minimum_version=minimum_version,
            force=force,
        )
    print_json(show_repository.channel_facts(found)) if as_json else show_repository.channel(found)


def _state(*, halt: bool, resume: bool, withdraw: bool) -> OfferState | None:
    from edgeonnx.spec.rollout import OfferState

    chosen = [
        state
        for wanted, state in (
            (halt, OfferState.HALTED),
            (resume, OfferState.OPEN),
            (withdraw, OfferState.WITHDRAWN),
        )
        if wanted
    ]
    if len(chosen) > 1:
        raise UsageError("only one of them can be done", expected="--halt, --resume or --withdraw")
    return chosen[0] if chosen else None
