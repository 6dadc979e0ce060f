"""`edgeonnx-agent pin`: this device takes one version only, or any again."""

from __future__ import annotations

from typing import Annotated

import typer

from device_agent.cli.states import Config, Model, StateDir, chosen_store, complain, one_model, prepare, tell
from edgeonnx.errors import EdgeOnnxError, UsageError


def pin(
    version: Annotated[str | None, typer.Argument(help="The only version to take.", metavar="[VERSION]")] = None,
    model: Model = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take any version again.")] = False,
    config: Config = None,
    state_dir: StateDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Pin this device to one version of a model. The repository must still offer it: a pin allows nothing more."""
    from device_agent.slots.journal import change_state
    from device_agent.update.byhand import pinned
    from device_agent.update.enrollment import present_enrollment

    try:
        if clear == (version is not None):
            raise UsageError("nothing to do is named", expected="either a version or --clear")
        store = chosen_store(prepare(config), state_dir)
        enrolled = present_enrollment(store)
        # A model may be pinned before it is installed.
        known = () if enrolled is None else enrolled.models
        name = model if model in known and model is not None else one_model(store, model)
        state = change_state(store, name, lambda found: pinned(found, version))
    except EdgeOnnxError as error:
        complain(error, as_json=as_json)
        raise typer.Exit(error.exit_code) from None
    active = None if state.active is None else state.active.version
    text = f"{name}: any version may be taken" if version is None else f"{name}: only {version} may be taken"
    if version is not None and active != version:
        text += f"; {active or 'nothing'} serves until the repository offers {version} to this device"
    tell({"ok": True, "model": name, "pin": version, "active": active}, text, as_json=as_json)
