"""The options of `serve` and `config`: what people change often, taken from the settings themselves.

An option is a name for a setting of `device_agent.config`: its type, its help and its bounds come from there, and it
wins over the file. Typer reads options from a signature, so `with_options` writes one.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from device_agent.settings import all_settings, read_settings
from device_agent.settings_text import first_sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from device_agent.config import AgentConfig
    from device_agent.settings import Setting

Command = TypeVar("Command", bound="Callable[..., None]")

OPTIONS = {
    "bundle": "bundles",
    "repository": "repository",
    "host": "server.host",
    "port": "server.port",
    "grpc-port": "server.grpc_port",
    "providers": "runtime.providers",
    "policy": "runtime.policy",
    "variant": "runtime.variant",
    "runners": "runtime.runners",
    "threads": "runtime.threads",
    "deadline-seconds": "queue.deadline_seconds",
    "memory": "runtime.memory_bytes",
    "cache-dir": "runtime.cache_dir",
    "state-dir": "update.state_dir",
    "token-file": "security.token_file",
    "admin-token-file": "security.admin_token_file",
    "allow-anonymous": "security.allow_anonymous",
    "tls-certificate": "server.tls_certificate",
    "tls-key": "server.tls_key",
    "log-level": "log.level",
    "log-format": "log.format",
    "log-requests": "log.requests",
}
"""Each option with the key of its setting."""

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Read settings from this file; options win over it.", metavar="FILE"),
]


def with_options(command: Command) -> Command:
    """Give a command that takes `**options` every option of `OPTIONS` in its signature."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    made = [_parameter(option, all_settings()[key]) for option, key in OPTIONS.items()]
    command.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
    return command


def _parameter(option: str, setting: Setting) -> inspect.Parameter:
    kind, metavar = _type_of(setting)
    help_text = first_sentence(setting.explanation) + _notes(setting)
    annotation = Annotated[kind, typer.Option(f"--{option}", help=help_text, metavar=metavar)]  # type: ignore[valid-type]
    return inspect.Parameter(
        option.replace("-", "_"), inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None
    )


def _type_of(setting: Setting) -> tuple[Any, str | None]:
    """The type by which the command line reads a setting, and how help calls its value."""
    if setting.kind is bool:
        return bool | None, None
    if setting.many:
        return (list[Path] | None, "FOLDER") if setting.kind is Path else (str | None, "NAME,NAME")
    if setting.is_size:
        return str | None, "SIZE"
    if setting.words:
        return str | None, "|".join(setting.words)
    return setting.kind | None, {Path: "PATH", int: "N", float: "SECONDS"}.get(setting.kind, "TEXT")


def _notes(setting: Setting) -> str:
    notes = ["repeatable"] if setting.many and setting.kind is Path else []
    if setting.default not in (None, (), False):
        notes.append(
            f"default: {setting.default:g}" if isinstance(setting.default, float) else f"default: {setting.default}"
        )
    return f" [{'; '.join(notes)}]" if notes else ""


def settings_from(path: Path | None, options: Mapping[str, object]) -> AgentConfig:
    """The settings of a command line; see `read_settings`.

    Args:
        path: The file of `--config`.
        options: What Typer read, by parameter name.
    """
    overrides = {key: options.get(option.replace("-", "_")) for option, key in OPTIONS.items()}
    overrides["runtime.providers"] = _names(overrides["runtime.providers"])
    # An option that can be repeated is an empty list where it was not given.
    overrides["bundles"] = overrides["bundles"] or None
    return read_settings(path, overrides)


def _names(text: object) -> object:
    """The items of a list with commas."""
    return [name.strip() for name in text.split(",")] if isinstance(text, str) else text
