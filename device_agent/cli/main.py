"""`edgeonnx-agent`: the command line of the device.

Everything heavy is imported inside the verbs, so that `--help` and `--version` answer at once. Of the verbs themselves
only the one that is asked for is imported: `update` runs every hour on machines that have better things to do.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgeonnx import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EPILOG = """\b
Exit codes:
  0  stopped in order (SIGTERM, Ctrl-C)
  1  an unexpected failure (a bug: please report it)
  2  wrong usage or settings, or the address cannot be listened on
  5  the bundle is damaged, or is not a bundle
  6  the bundle does not give its golden answers on this machine, or no variant fits it
  7  a library is missing, or ONNX Runtime does not load the model
  9  the repository is not signed as it must be, or has something else under a name
  10 the repository cannot be reached: the next try may succeed
  11 this device cannot take the release, or cannot go back: the message says why"""

VERBS = {
    "serve": "serve:serve",
    "config": "config:config",
    "doctor": "doctor:doctor",
    "enroll": "enroll:enroll",
    "update": "update:update",
    "status": "status:status",
    "rollback": "rollback:rollback",
    "pin": "pin:pin",
    "import": "importing:import_",
}
"""Each verb with the module of this package, and the function in it."""


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"edgeonnx-agent {__version__}")
        raise typer.Exit


def agent(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Serve edgeonnx bundles on this device, and keep them up to date."""


def make_app(verbs: Iterable[str] = VERBS) -> typer.Typer:
    """The command line, with some of its verbs."""
    made = typer.Typer(
        name="edgeonnx-agent",
        help="Serve edgeonnx bundles on this device, and keep them up to date.",
        epilog=EPILOG,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(agent)
    for verb in verbs:
        module, _, function = VERBS[verb].partition(":")
        command = getattr(importlib.import_module(f"device_agent.cli.{module}"), function)
        made.command(verb, epilog=None if verb == "config" else EPILOG)(command)
    return made


def needed_verbs(arguments: Sequence[str]) -> tuple[str, ...]:
    """The verbs that a command line needs: the one that it begins with, else all of them."""
    return (arguments[0],) if arguments and arguments[0] in VERBS else tuple(VERBS)


def __getattr__(name: str) -> Any:
    """What is made or imported only when somebody asks for it: the whole command line as `app`."""
    if name == "app":
        return make_app()
    if name == "process_age":
        return importlib.import_module("device_agent.cli.serve").process_age
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """Entry point of the console script."""
    make_app(needed_verbs(sys.argv[1:]))(prog_name="edgeonnx-agent")


if __name__ == "__main__":
    main()
