"""`edgeonnx-agent`: the command line of the device.

Everything heavy is imported inside the verbs, so that `--help` and `--version` answer at once.
"""

from __future__ import annotations

import os
import sys
import threading
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeonnx import __version__
from edgeonnx.errors import EdgeOnnxError, RuntimeUnavailableError, printable

if TYPE_CHECKING:
    from concurrent.futures import Future

    from device_agent.config import AgentConfig
    from device_agent.loading import LoadedModel

EPILOG = """\b
Exit codes:
  0  stopped in order (SIGTERM, Ctrl-C)
  1  an unexpected failure (a bug: please report it)
  2  wrong usage, or the address cannot be listened on
  5  the bundle is damaged, or is not a bundle
  6  the bundle does not give its golden answers on this machine, or no variant fits it
  7  a library is missing, or ONNX Runtime does not load the model"""

app = typer.Typer(
    name="edgeonnx-agent",
    help="Serve an edgeonnx bundle on this device.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class LogLevel(Enum):
    """How much is logged to stderr."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


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
    """Serve an edgeonnx bundle on this device."""


@app.command(epilog=EPILOG)
def serve(
    bundle: Annotated[Path, typer.Option(help="The bundle's folder, as `edgeonnx package` wrote it.")],
    host: Annotated[str, typer.Option(help="Address to listen on. There is no authentication.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free one.")] = 8080,
    variant: Annotated[str | None, typer.Option(help="The only variant to use, for example cpu-fp32.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads of one run; default: all CPUs.")] = None,
    log_level: Annotated[LogLevel, typer.Option(help="How much to log to stderr.")] = LogLevel.INFO,
) -> None:
    """Load a bundle, prove it on this machine, and serve it over HTTP until SIGTERM or Ctrl-C."""
    from device_agent.config import AgentConfig, RuntimeConfig, ServerConfig

    _start_logging(log_level)
    config = AgentConfig(
        bundles=(bundle,),
        server=ServerConfig(host=host, port=port),
        runtime=RuntimeConfig(variant=variant, threads=threads),
    )
    try:
        in_order = _serve(bundle, config)
    except EdgeOnnxError as error:
        typer.echo(f"error: {printable(error)}", err=True)
        _leave(error.exit_code, at_once=True)
    else:
        _leave(0, at_once=not in_order)


def _serve(bundle: Path, config: AgentConfig) -> bool:
    """Bind, begin to load, and serve; see `device_agent.api.server.serve`."""
    import asyncio
    import signal

    # Until the server takes the signals over, nothing is served that would have to be finished.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    # The model loads in a thread while the web stack is imported here: each takes some tenths of a second, mostly
    # outside the interpreter lock.
    from concurrent.futures import Future

    loading: Future[LoadedModel] = Future()
    loader = threading.Thread(target=_load, args=(bundle, config, loading), name="loader", daemon=True)
    loader.start()
    try:
        from device_agent.api.server import bind, url_of
        from device_agent.api.server import serve as serve_app
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    listener = bind(config.server.host, config.server.port)

    def on_ready(loaded: LoadedModel) -> None:
        manifest = loaded.manifest
        typer.echo(
            f"ready: {url_of(listener)} serves {manifest.name} {manifest.version}, variant {loaded.engine.variant.name} "
            f"({printable(loaded.engine.variant.precision)}) on {loaded.engine.provider}, after {process_age():.2f} s"
        )
        sys.stdout.flush()

    return asyncio.run(serve_app(listener, loading, config, on_ready))


def _load(bundle: Path, config: AgentConfig, loading: Future[LoadedModel]) -> None:
    """Load the model into `loading`; every outcome goes there."""
    try:
        from device_agent.loading import load_model

        loading.set_result(load_model(bundle, config))
    except ModuleNotFoundError as error:
        loading.set_exception(_missing(error))
    except BaseException as error:  # noqa: BLE001 - it is raised again where the result is asked for
        loading.set_exception(error)


def _missing(error: ModuleNotFoundError) -> RuntimeUnavailableError:
    return RuntimeUnavailableError(
        f"the library {error.name} is missing", hint="install the agent's libraries: pip install 'edgeonnx[agent]'"
    )


def _start_logging(level: LogLevel) -> None:
    import logging

    logging.basicConfig(
        level=level.name, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    # uvicorn tells the story of its own start and stop; ours is told by the agent.
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def process_age() -> float:
    """Seconds since this process was started (Linux; elsewhere since this module's clock began, that is 0)."""
    import time

    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return time.process_time()


def _leave(code: int, *, at_once: bool) -> None:
    """End the process; at once where a thread still works for nobody and would be waited for, or would crash."""
    if at_once:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise typer.Exit(code)


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="edgeonnx-agent")


if __name__ == "__main__":
    main()
