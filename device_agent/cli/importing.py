"""`edgeonnx-agent import`: an update from a stick or an archive, without a network."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from device_agent.cli.states import Config, StateDir
from device_agent.cli.update import DryRun, Json, Once, carry_out


def import_(
    path: Annotated[
        Path, typer.Argument(help="A copy of the repository: a folder, or a tar archive.", metavar="DIR|ARCHIVE")
    ],
    config: Config = None,
    state_dir: StateDir = None,
    once: Once = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Update this device from a copy of its repository. The checks are those of an update over the network.

    `edgeonnx repo export` makes a copy with what one release needs. The enrolled URL is not asked, and the time window
    and the metered link do not matter.
    """
    from device_agent.update.importing import imported

    carry_out(config, state_dir, once=once, dry_run=dry_run, as_json=as_json, source=partial(imported, path))
