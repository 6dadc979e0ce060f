"""`edgeonnx-agent config`: the effective settings, as a commented file."""

from __future__ import annotations

import typer

from device_agent.cli.options import Config, settings_from, with_options
from edgeonnx.errors import UsageError, printable


@with_options
def config(config: Config = None, **options: object) -> None:
    """Print the effective settings as a commented agent.toml: the defaults, the file and the options put together."""
    from device_agent.settings_text import to_toml

    try:
        settings = settings_from(config, options)
    except UsageError as error:
        typer.echo(f"error: {printable(error)}", err=True)
        raise typer.Exit(error.exit_code) from None
    typer.echo(to_toml(settings), nl=False)
