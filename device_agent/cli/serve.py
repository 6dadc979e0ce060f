"""`edgeonnx-agent serve`: load models, prove them on this machine, and serve them until a signal comes.

Everything heavy is imported inside the functions, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from device_agent.cli.options import Config, settings_from, with_options
from edgeonnx.errors import EdgeOnnxError, RuntimeUnavailableError, UsageError, printable

if TYPE_CHECKING:
    from concurrent.futures import Future

    from device_agent.config import AgentConfig
    from device_agent.models.loaded import LoadedModel
    from device_agent.supervision.installation import Installation

Check = Annotated[bool, typer.Option("--check", help="Check the settings and the files that they name, and exit.")]


@with_options
def serve(config: Config = None, *, check: Check = False, **options: object) -> None:
    """Load bundles, prove them on this machine, and serve them over HTTP until SIGTERM or Ctrl-C."""
    try:
        settings = settings_from(config, options)
        check_files(settings)
        if check:
            check_all(settings)
    except EdgeOnnxError as error:
        _complain(error)
        raise typer.Exit(error.exit_code) from None
    if check:
        typer.echo("the settings are in order")
        return
    try:
        in_order = _serve(settings)
    except ModuleNotFoundError as error:
        _complain(missing(error))
        _leave(RuntimeUnavailableError.exit_code, at_once=True)
    except EdgeOnnxError as error:
        _complain(error)
        _leave(error.exit_code, at_once=True)
    else:
        _leave(0, at_once=not in_order)


def check_files(config: AgentConfig) -> None:
    """Refuse settings with which nothing can be served: before anything is imported or loaded for them.

    Raises:
        UsageError: There is no model to serve, or a file or folder that a setting names cannot be read.
    """
    if not config.bundles and config.repository is None and config.update.state_dir is None:
        raise UsageError(
            "there is nothing to serve",
            expected="--bundle, --repository or --state-dir, or those settings in the file of --config",
        )
    files = {
        "security.token_file": config.security.token_file,
        "security.admin_token_file": config.security.admin_token_file,
        "server.tls_certificate": config.server.tls_certificate,
        "server.tls_key": config.server.tls_key,
        "update.token_file": config.update.token_file,
        "update.ca_file": config.update.ca_file,
        "update.client_certificate": config.update.client_certificate,
        "update.client_key": config.update.client_key,
    }
    for key, path in files.items():
        if path is not None:
            _check_readable(key, path)
    if config.repository is not None and not config.repository.is_dir():
        raise UsageError("no such folder", where=f"repository: {config.repository}")


def _check_readable(key: str, path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise UsageError("the file cannot be read", where=f"{key}: {path}", found=error.strerror) from None


def check_all(config: AgentConfig) -> None:
    """Refuse what would be refused at the start of serving, short of loading a model.

    Raises:
        EdgeOnnxError: The address needs a token, a token file or certificate cannot be used, or a folder is no bundle.
    """
    from device_agent.api.edge.auth import check_listen_address, load_tokens
    from edgeonnx.bundle import open_bundle

    if config.update.window is not None:
        from device_agent.update.policy import Window

        Window.parse(config.update.window, config.update.window_zone)
    check_listen_address(config)
    load_tokens(config.security)
    if config.server.tls_certificate is not None:
        from device_agent.api.edge.tls import ssl_context

        ssl_context(config.server)
    for bundle in config.bundles:
        open_bundle(bundle)


def _serve(config: AgentConfig) -> bool:
    """Bind, begin to load, and serve; see `device_agent.server.serve`."""
    import signal

    from device_agent.logs import start_logging
    from device_agent.models.memory import share_heaps

    start_logging(config.log)
    # Until the server takes the signals over, nothing is served that would have to be finished.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    share_heaps()
    # The first model loads in a thread while the web stack is imported here: each takes some tenths of a second, mostly
    # outside the interpreter lock.
    installation = None if config.update.state_dir is None else _installation(config, config.update.state_dir)
    installed_first = None if installation is None else installation.first
    first = installed_first or next(iter(config.bundles), None)
    loading = None if first is None else _begin_loading(first, config)
    from device_agent.server import bind, run, url_of

    listener = bind(config.server.host, config.server.port)
    url = url_of(listener, "http" if config.server.tls_certificate is None else "https")

    def on_ready(loaded: LoadedModel | None) -> None:
        typer.echo(f"ready: {url} serves {_describe(loaded)}, after {process_age():.2f} s")
        sys.stdout.flush()

    return run(listener, loading, config, on_ready, installation)


def _installation(config: AgentConfig, folder: Path) -> Installation:
    """The state directory, taken for this process.

    Raises:
        StateError: Another serving process uses it.
    """
    from device_agent.supervision.installation import Installation

    return Installation.open(config, folder)


def _describe(loaded: LoadedModel | None) -> str:
    if loaded is None:
        return "no model yet"
    variant = loaded.engine.variant
    return (
        f"{loaded.name} {loaded.version}, variant {variant.name} ({printable(variant.precision)}) "
        f"on {loaded.engine.provider}"
    )


def _begin_loading(first: Path, config: AgentConfig) -> Future[list[LoadedModel]]:
    from concurrent.futures import Future

    loading: Future[list[LoadedModel]] = Future()
    # A load cannot be called off: a stop while it runs must not take the place where its outcome goes.
    loading.set_running_or_notify_cancel()
    threading.Thread(target=_load, args=(first, config, loading), name="loader", daemon=True).start()
    return loading


def _load(bundle: Path, config: AgentConfig, loading: Future[list[LoadedModel]]) -> None:
    """Load the model into `loading`; every outcome goes there, the model in a list from which the server takes it."""
    try:
        from device_agent.models.loading import load_model

        loading.set_result([load_model(bundle, config)])
    except ModuleNotFoundError as error:
        loading.set_exception(missing(error))
    except BaseException as error:  # noqa: BLE001 - it is raised again where the result is asked for
        loading.set_exception(error)


def missing(error: ModuleNotFoundError) -> RuntimeUnavailableError:
    """What to say where one of the agent's libraries is not installed."""
    return RuntimeUnavailableError(
        f"the library {error.name} is missing", hint="install the agent's libraries: pip install 'edgeonnx[agent]'"
    )


def process_age() -> float:
    """Seconds since this process was started (Linux; elsewhere since this module's clock began, that is 0)."""
    import time

    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return time.process_time()


def _complain(error: EdgeOnnxError) -> None:
    typer.echo(f"error: {printable(error)}", err=True)


def _leave(code: int, *, at_once: bool) -> None:
    """End the process; at once where a thread still works for nobody and would be waited for, or would crash."""
    if at_once:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise typer.Exit(code)
