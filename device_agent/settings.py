"""Settings from `agent.toml`, from systemd's environment and from the command line, checked one by one.

What a setting is called, its type, its bounds and its explanation are read from the dataclasses of
`device_agent.config`, so that a new setting is written there alone. Of two values for one setting the command line's
wins over the file's, and that over the environment's.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import tomllib
import types
import typing
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_agent.config import AgentConfig, OneOf, Range
from edgeonnx.errors import UsageError, first_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_FILE_BYTES = 1 << 20
MOST_SECONDS = 7 * 24 * 3600.0
MOST = float(1 << 48)
"""No count or size of a request, a queue or a memory comes near, so a larger one is a slip of the pen."""

CREDENTIALS = {
    "security.token_file": "edgeonnx.tokens",
    "security.admin_token_file": "edgeonnx.admin-tokens",
    "server.tls_certificate": "edgeonnx.tls-certificate",
    "server.tls_key": "edgeonnx.tls-key",
    "update.token_file": "edgeonnx.update-token",
    "update.ca_file": "edgeonnx.update-ca",
    "update.client_certificate": "edgeonnx.update-certificate",
    "update.client_key": "edgeonnx.update-key",
}
"""Settings whose files systemd may hand over, with the names of the credentials (`LoadCredential=`)."""

UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(rf"(\d{{1,15}}(?:\.\d{{1,6}})?) ?({'|'.join(UNITS)})?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting, as `device_agent.config` declares it.

    Attributes:
        key: Table and name (`server.port`), or the name alone at the top of the file.
        kind: Type of the value, or of each value of a list: str, int, float, bool or Path.
        many: It is a list.
        default: Its default.
        range: Bounds, inclusive; None: above 0.
        words: The only words that it may be; empty: any text.
        explanation: From the class's docstring.
    """

    key: str
    kind: type
    many: bool
    default: object
    range: Range | None
    words: tuple[str, ...]
    explanation: str

    @property
    def table(self) -> str:
        """Its table; empty at the top of the file."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Its name in the table."""
        return self.key.rpartition(".")[2]

    @property
    def is_size(self) -> bool:
        """Whether it is a number of bytes, which may be written with a unit."""
        return self.kind is int and self.name.endswith("_bytes")

    @property
    def most(self) -> float:
        """The largest number that it may be."""
        general = MOST_SECONDS if self.name.endswith("_seconds") else MOST
        return min(general, self.range.most) if self.range else general

    @property
    def expected(self) -> str:
        """What it may be, in words."""
        text = self._expected_one()
        return f"a list, each item {text}" if self.many else text

    def _expected_one(self) -> str:
        if self.words:
            return "one of " + ", ".join(f'"{word}"' for word in self.words)
        if self.kind in (int, float):
            bounds = f"from {self.range.least:g}" if self.range else "above 0"
            bounds += " up to 2^48" if self.most == MOST else f" up to {self.most:.15g}"
            if self.is_size:
                return f'a size in bytes, such as 1048576 or "1 MiB", {bounds}'
            return f"a {'whole ' if self.kind is int else ''}number {bounds}"
        return {bool: "true or false", Path: "a path", str: "a text"}[self.kind]


@cache
def all_settings() -> dict[str, Setting]:
    """Every setting by its key, in the order of `agent.toml`."""
    return {setting.key: setting for setting in _settings_of(AgentConfig, "")}


@cache
def tables() -> dict[str, type]:
    """The tables of `agent.toml`, each with its class."""
    hints = typing.get_type_hints(AgentConfig)
    return {field.name: hints[field.name] for field in dataclasses.fields(AgentConfig) if _is_table(hints[field.name])}


def _is_table(hint: object) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _settings_of(owner: type, prefix: str) -> Iterator[Setting]:
    hints = typing.get_type_hints(owner, include_extras=True)
    explanations = attributes_of(owner.__doc__ or "")
    nested = []
    for field in dataclasses.fields(owner):
        if _is_table(hints[field.name]):
            nested.append((hints[field.name], f"{field.name}."))
            continue
        default = field.default if field.default is not MISSING else None
        yield _setting(prefix + field.name, hints[field.name], default, explanations.get(field.name, ""))
    for kind, name in nested:
        yield from _settings_of(kind, name)


def _setting(key: str, hint: Any, default: object, explanation: str) -> Setting:
    """A setting from its annotation: `X`, `X | None`, `tuple[X, ...]`, each may be `Annotated`."""
    rules: list[object] = []
    many = False
    while not isinstance(hint, type) or typing.get_origin(hint) is not None:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            rules.extend(arguments[1:])
            hint = arguments[0]
        elif origin is tuple:
            many, hint = True, arguments[0]
        elif origin in (typing.Union, types.UnionType):
            (hint,) = (one for one in arguments if one is not type(None))
        else:
            raise TypeError(f"{key}: settings have no type {hint!r}")
    return Setting(
        key=key,
        kind=hint,
        many=many,
        default=default,
        range=next((rule for rule in rules if isinstance(rule, Range)), None),
        words=next((rule.words for rule in rules if isinstance(rule, OneOf)), ()),
        explanation=explanation,
    )


def attributes_of(docstring: str) -> dict[str, str]:
    """The section `Attributes:` of a Google-style docstring, each text on one line."""
    found: dict[str, list[str]] = {}
    texts: list[str] | None = None
    for line in docstring.partition("Attributes:\n")[2].splitlines():
        start = re.fullmatch(r" {8}(\w+): (.+)", line)
        if start:
            texts = found.setdefault(start[1], [])
            texts.append(start[2])
        elif texts is not None:
            texts.append(line.strip())
    return {name: " ".join(filter(None, texts)) for name, texts in found.items()}


def read_settings(
    path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> AgentConfig:
    """The settings of an agent.

    Args:
        path: `agent.toml`; None: the defaults.
        overrides: Values by key (`server.port`) that win over the file's; those that are None do not count. Their
            relative paths start at the working directory.
        environment: Environment variables; None: this process's. Of systemd's, `CACHE_DIRECTORY` gives
            `runtime.cache_dir`, and `CREDENTIALS_DIRECTORY` the files named in `CREDENTIALS` that exist in it.

    Raises:
        UsageError: The file cannot be read, or a setting is unknown, wrong, or contradicts another one.
    """
    values: dict[str, object] = dict(_from_environment(os.environ if environment is None else environment))
    if path is not None:
        values.update(_from_file(path))
    for key, value in (overrides or {}).items():
        if value is not None:
            values[key] = convert(all_settings()[key], value, f"the command line: {key}")
    config = _assemble(values)
    _check_together(config, "the settings" if path is None else str(path))
    return config


def _assemble(values: Mapping[str, object]) -> AgentConfig:
    parts: dict[str, dict[str, Any]] = {table: {} for table in ("", *tables())}
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        parts[table][name] = value
    nested = {table: kind(**parts[table]) for table, kind in tables().items()}
    return AgentConfig(**parts[""], **nested)


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    folder = environment.get("CACHE_DIRECTORY", "").partition(":")[0]
    if folder:
        yield "runtime.cache_dir", Path(folder)
    folder = environment.get("CREDENTIALS_DIRECTORY", "")
    for key, name in CREDENTIALS.items():
        if folder and (path := Path(folder, name)).is_file():
            yield key, path


def _from_file(path: Path) -> Iterator[tuple[str, object]]:
    for name, value in _parse(path).items():
        if name not in tables():
            yield name, convert(_find(name, "", path), value, f"{path}: {name}", path.parent)
            continue
        if not isinstance(value, dict):
            raise UsageError(
                "wrong settings", where=f"{path}: {name}", expected=f"a table [{name}]", found=_found(value)
            )
        for key, inner in value.items():
            setting = _find(key, name, path)
            yield setting.key, convert(setting, inner, f"{path}: {setting.key}", path.parent)


def _parse(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(
            "the settings cannot be read", where=str(path), found=error.strerror or first_line(error)
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise UsageError("the settings cannot be read", where=str(path), expected=f"at most {MAX_FILE_BYTES:,} bytes")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of TOML, or of UTF-8
        raise UsageError("the settings are not TOML", where=str(path), found=first_line(error)) from None


def _find(name: str, table: str, path: Path) -> Setting:
    """The setting of a name in the file.

    Raises:
        UsageError: There is none; the message names the one that was probably meant.
    """
    found = all_settings().get(f"{table}.{name}" if table else name)
    if found is not None:
        return found
    keys = [setting.name for setting in all_settings().values() if setting.table == table]
    raise UsageError(
        "unknown setting",
        where=f"{path}: {printable(f'[{table}] {name}' if table else name)[:120]}",
        expected=f"one of {', '.join(keys)}" + ("" if table else f", or a table of {', '.join(tables())}"),
        hint=_meant(name, table, keys),
    )


def _meant(name: str, table: str, keys: Iterable[str]) -> str | None:
    elsewhere = [setting for setting in all_settings().values() if setting.name == name and setting.table != table]
    if elsewhere:
        return (
            f"{name} belongs into [{elsewhere[0].table}]" if elsewhere[0].table else f"{name} belongs above all tables"
        )
    near = difflib.get_close_matches(name, (*keys, *(() if table else tables())), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else None


def convert(setting: Setting, value: object, where: str, folder: Path | None = None) -> object:
    """A value as the dataclass has it.

    Args:
        setting: What it is for.
        value: As TOML, or the command line, gives it.
        where: Names file and key for the message.
        folder: Where relative paths start; None: they stay relative to the working directory.

    Raises:
        UsageError: It is of a wrong type or out of range.
    """
    values = list(value) if setting.many and isinstance(value, list | tuple) else [value]
    converted = [_convert_one(setting, one, folder) for one in values]
    if any(one is None for one in converted) or setting.many != isinstance(value, list | tuple):
        raise UsageError("wrong value", where=where, expected=setting.expected, found=_found(value))
    return tuple(converted) if setting.many else converted[0]


def _convert_one(setting: Setting, value: object, folder: Path | None) -> object:
    """The value, or None if it is wrong."""
    if setting.is_size and isinstance(value, str):
        value = parse_size(value)
    if setting.kind is bool:
        return value if isinstance(value, bool) else None
    if setting.kind in (int, float):
        return _number(setting, value)
    text = str(value) if isinstance(value, Path) else value
    if not isinstance(text, str) or not text or not text.isprintable() or (setting.words and text not in setting.words):
        return None
    if setting.kind is Path:
        return Path(text) if folder is None else folder / text
    return text


def _number(setting: Setting, value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int if setting.kind is int else (int, float)):
        return None
    above = value >= setting.range.least if setting.range else value > 0
    if not above or not value <= setting.most or not math.isfinite(value):
        return None
    return setting.kind(value)  # type: ignore[no-any-return]


def parse_size(text: str) -> int | None:
    """A number of bytes from a text such as "512 MiB", "1.5 GB" or "4096"; None if it is none."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    size = float(match[1]) * UNITS[match[2] or "B"]
    return int(size) if size.is_integer() else None


def _found(value: object) -> str:
    text = repr(str(value) if isinstance(value, Path) else value)
    return text if len(text) <= 120 else text[:117] + "..."


def _check_together(config: AgentConfig, where: str) -> None:
    problems = tuple(contradictions(config))
    if problems:
        raise UsageError("settings contradict each other", where=where, details=problems)


def _value_of(config: AgentConfig, key: str) -> object:
    """The value of a setting in a table."""
    table, _, name = key.partition(".")
    return getattr(getattr(config, table), name)


def contradictions(config: AgentConfig) -> Iterator[str]:
    """Each pair of settings that cannot be meant together, in words."""
    server, queue, security = config.server, config.queue, config.security
    for certificate, key in (
        ("server.tls_certificate", "server.tls_key"),
        ("update.client_certificate", "update.client_key"),
    ):
        given = [name for name in (certificate, key) if _value_of(config, name) is not None]
        if len(given) == 1:
            missing = key if given[0] == certificate else certificate
            yield f"{given[0]} is set, but {missing} is not: TLS needs both"
    if server.grpc_port and server.grpc_port == server.port:
        yield f"server.port and server.grpc_port are both {server.port}"
    if queue.deadline_seconds > queue.max_deadline_seconds:
        yield (
            f"queue.deadline_seconds ({queue.deadline_seconds:g}) is above "
            f"queue.max_deadline_seconds ({queue.max_deadline_seconds:g})"
        )
    if queue.batch_tokens > queue.max_tokens:
        yield f"queue.batch_tokens ({queue.batch_tokens}) is above queue.max_tokens ({queue.max_tokens})"
    if security.allow_anonymous and security.token_file is not None:
        yield "security.allow_anonymous is true, but security.token_file asks for tokens"
    doubled = sorted({name for name in config.runtime.providers if config.runtime.providers.count(name) > 1})
    if doubled:
        yield f"runtime.providers names {', '.join(doubled)} twice"
