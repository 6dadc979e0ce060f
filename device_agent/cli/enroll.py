"""`edgeonnx-agent enroll`: tell a device which repository it belongs to, and whom it trusts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from device_agent.cli.states import Config, StateDir, chosen_store, complain, prepare
from edgeonnx.errors import EdgeOnnxError


def enroll(
    repo: Annotated[str, typer.Option("--repo", help="The repository: a URL, or a folder (a stick).", metavar="URL")],
    root: Annotated[
        Path, typer.Option("--root", help="Its root.json, from whoever runs it, over a trusted way.", metavar="FILE")
    ],
    channel: Annotated[
        str | None, typer.Option("--channel", help="Whose offers to follow. [default: stable]", metavar="NAME")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="Install this model only. [repeatable; default: all of the channel]"),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="This device's id. [default: a random one]", metavar="ID")
    ] = None,
    config: Config = None,
    state_dir: StateDir = None,
    force: Annotated[
        bool, typer.Option("--force", help="Follow another repository, with another root, from now on.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Enrol this device with a repository. Its metadata are fetched and verified before anything is written.

    Enrolling again changes what is given, and keeps what is installed.
    """
    from device_agent.update.enrollment import (
        enroll as write,
    )
    from device_agent.update.enrollment import (
        present_enrollment,
        read_root_file,
        repository_url,
        with_changes,
    )

    try:
        settings = prepare(config)
        store = chosen_store(settings, state_dir)
        wanted = with_changes(
            present_enrollment(store),
            url=repository_url(repo),
            channel=channel,
            models=tuple(model or ()),
            device=device,
        )
        offered = write(store, wanted, read_root_file(root), settings.update, force=force)
    except EdgeOnnxError as error:
        complain(error, as_json=as_json)
        raise typer.Exit(error.exit_code) from None
    models = {name: [offer.version for offer in offers.offers] for name, offers in sorted(offered.models.items())}
    if as_json:
        answer = {"ok": True, "device": wanted.device, "url": wanted.url, "channel": wanted.channel, "offers": models}
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        return
    typer.echo(f"enrolled as {wanted.device} with {wanted.url}, channel {wanted.channel}")
    for name in wanted.models or models:
        typer.echo(f"  {name}: {', '.join(models[name]) if name in models else 'not offered by this channel yet'}")
