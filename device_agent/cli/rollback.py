"""`edgeonnx-agent rollback`: the previous version serves again."""

from __future__ import annotations

from typing import Annotated

import typer

from device_agent.cli.states import Config, StateDir, chosen_store, complain, effective_time, one_model, prepare, tell
from edgeonnx.errors import EdgeOnnxError, StateError


def rollback(
    model: Annotated[str | None, typer.Argument(help="The model, where there are several.", metavar="[MODEL]")] = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Why, for whoever reads the status.", metavar="TEXT")
    ] = "rolled back by hand",
    no_block: Annotated[
        bool, typer.Option("--no-block", help="Let updates take the version again that serves now.")
    ] = False,
    config: Config = None,
    state_dir: StateDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Let the previous version serve again, without the network. What serves now is not taken again.

    An agent that serves from the state directory swaps to it within seconds.
    """
    from device_agent.slots.journal import change_state
    from device_agent.update.byhand import rolled_back

    try:
        store = chosen_store(prepare(config), state_dir)
        name = one_model(store, model)
        before = store.read_state(name)
        if before.previous is not None:
            fault = store.slot_fault(name, before.previous.contents, hashed=True)
            if fault is not None:
                raise StateError(
                    "the previous version is damaged on this disk",
                    where=f"{name} {before.previous.version}",
                    found=fault,
                    hint="withdraw the version that serves (edgeonnx rollout --withdraw): the next update then fetches",
                )
        now = effective_time(store)
        after = change_state(store, name, lambda found: rolled_back(found, now=now, reason=reason, block=not no_block))
    except EdgeOnnxError as error:
        complain(error, as_json=as_json)
        raise typer.Exit(error.exit_code) from None
    left = "" if before.active is None else before.active.version
    version = "" if after.active is None else after.active.version
    answer = {"ok": True, "model": name, "active": version, "left": left, "blocked": not no_block}
    note = f"; unless you pin {version}, the next update takes {left} again" if no_block else ""
    tell(answer, f"{name}: {version} serves again instead of {left}{note}", as_json=as_json)
