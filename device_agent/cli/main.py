"""`edgeonnx-agent`: the command line of the device.

Everything heavy is imported inside the verbs, so that `--help` and `--version` answer at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from device_agent.cli.config import config
from device_agent.cli.doctor import doctor
from device_agent.cli.enroll import enroll
from device_agent.cli.importing import import_
from device_agent.cli.pin import pin
from device_agent.cli.rollback import rollback
from device_agent.cli.serve import process_age, serve
from device_agent.cli.status import status
from device_agent.cli.update import update
from edgeonnx import __version__

__all__ = ["app", "main", "process_age"]

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

app = typer.Typer(
    name="edgeonnx-agent",
    help="Serve edgeonnx bundles on this device.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"edgeonnx-agent {__version__}")
        raise typer.Exit


@app.callback()
def agent(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Serve edgeonnx bundles on this device."""


app.command(epilog=EPILOG)(serve)
app.command()(config)
app.command(epilog=EPILOG)(doctor)
app.command(epilog=EPILOG)(enroll)
app.command(epilog=EPILOG)(update)
app.command(epilog=EPILOG)(status)
app.command(epilog=EPILOG)(rollback)
app.command(epilog=EPILOG)(pin)
app.command("import", epilog=EPILOG)(import_)


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="edgeonnx-agent")


if __name__ == "__main__":
    main()
