"""What the commands over a state directory share: its option, its messages, its words."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeonnx.errors import EdgeOnnxError, UsageError, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from device_agent.config import AgentConfig
    from device_agent.slots.states import AttemptState
    from device_agent.slots.store import Store

# As in `device_agent.cli.options`, which would import every setting and make an option of it.
Config = Annotated[Path | None, typer.Option("--config", "-c", help="Read settings from this file.", metavar="FILE")]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", help="Folder in which releases are installed; it wins over update.state_dir.", metavar="DIR"
    ),
]
Model = Annotated[str | None, typer.Option("--model", help="The model, where there are several.", metavar="NAME")]


def settings_file(config: Path | None, state_dir: Path | None) -> Path | None:
    """The file with the settings of a command: the one that was named, or that of the process that served here last."""
    if config is not None or state_dir is None:
        return config
    from device_agent.slots.store import Store

    return Store(state_dir).settings_file


def prepare(config: Path | None) -> AgentConfig:
    """Read the settings and begin to log.

    Raises:
        UsageError: They are wrong.
    """
    from device_agent.logs import start_logging
    from device_agent.settings import read_settings

    settings = read_settings(config)
    start_logging(settings.log)
    return settings


def chosen_store(settings: AgentConfig, state_dir: Path | None) -> Store:
    """The state directory of a command.

    Raises:
        UsageError: None is named.
    """
    from device_agent.slots.store import Store

    folder = state_dir or settings.update.state_dir
    if folder is None:
        raise UsageError(
            "no state directory is named",
            expected="--state-dir DIR, or update.state_dir in the file of --config",
            hint="a usual place is /var/lib/edgeonnx/state",
        )
    return Store(folder)


def one_model(store: Store, name: str | None) -> str:
    """The model that is meant: the one that was named, or the only one.

    Raises:
        UsageError: There is none, or it is not clear which.
    """
    models = store.models()
    if name is None and len(models) == 1:
        return models[0]
    if name is None or name not in models:
        raise UsageError(
            "which model is meant is not clear" if name is None else "no such model is installed",
            where=str(store.root),
            expected=", ".join(models) or "a model; none is installed",
            found=name,
        )
    return name


def shown_state(state: AttemptState) -> str:
    """A state in words."""
    from device_agent.slots.states import AttemptState as States

    words = {
        States.DOWNLOADING: "is being fetched",
        States.STAGED: "is staged",
        States.CANDIDATE: "is being proven",
        States.PROVEN: "is proven; it serves from the next swap or start on",
        States.PROBATION: "serves, on probation",
        States.COMMITTED: "was committed",
        States.REJECTED: "was refused",
        States.ROLLED_BACK: "was rolled back",
        States.ABANDONED: "was given up",
    }
    return words[state]


def complain(error: EdgeOnnxError, *, as_json: bool = False) -> None:
    """Tell an error: one line on stderr, or JSON on stdout."""
    if as_json:
        sys.stdout.write(json.dumps({"ok": False, "error": error.to_dict()}, indent=2) + "\n")
    else:
        typer.echo(f"error: {printable(error)}", err=True)


def tell(answer: Mapping[str, object], text: str, *, as_json: bool) -> None:
    """Tell an outcome: one line for people, or JSON."""
    if as_json:
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    else:
        typer.echo(printable(text))


def effective_time(store: Store) -> float:
    """The time to go by, in seconds since 1970; only read."""
    from device_agent.update.trust.clock import Clock

    return Clock(store.root / "clock.json", store.disk).effective()
