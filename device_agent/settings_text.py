"""Settings as a commented `agent.toml`, made from the docstrings of `device_agent.config`."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, cast

from device_agent.settings import UNITS, all_settings, tables

if TYPE_CHECKING:
    from device_agent.config import AgentConfig
    from device_agent.settings import Setting

WIDTH = 100

HEAD = """\
Settings of edgeonnx-agent, read by `edgeonnx-agent serve --config agent.toml`. Lines such as "#port = 8080" show \
defaults: remove the "#" to change them. Sizes are bytes, or texts such as "512 MiB"; times are seconds; relative \
paths start at the folder of this file. A setting that is not known, not possible or contradicts another one stops the \
agent before it serves."""


def to_toml(config: AgentConfig) -> str:
    """The settings as a file that `read_settings` reads back to the same; what has its default is commented out."""
    lines = [*_comment(HEAD)]
    table = ""
    for setting in all_settings().values():
        if setting.table != table:
            table = setting.table
            lines += ["", "", f"[{table}]", *_comment(summary_of(tables()[table]))]
        lines += ["", *_comment(plain(setting.explanation)), _assignment(setting, config)]
    return "\n".join(lines) + "\n"


def summary_of(owner: type) -> str:
    """The first line of a table's docstring, without the table's name."""
    text = (owner.__doc__ or "").partition("\n")[0].partition(": ")[2]
    return text[:1].upper() + text[1:]


def plain(text: str) -> str:
    """An explanation in the words of the file, which has no `None`."""
    return re.sub(r"\bNone\b", "not set", text)


def first_sentence(text: str) -> str:
    """The first sentence of an explanation, for `--help`."""
    return re.split(r"(?<=[.!?])(?<!\.\w\.) (?=[A-Z0-9`])", plain(text), maxsplit=1)[0]


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _assignment(setting: Setting, config: AgentConfig) -> str:
    owner = getattr(config, setting.table) if setting.table else config
    value = getattr(owner, setting.name)
    mark = "#" if value == setting.default else ""
    return f"{mark}{setting.name} = {'(not set)' if value is None else value_text(setting, value)}"


def value_text(setting: Setting, value: object) -> str:
    """A value as TOML; sizes with the largest unit that divides them."""
    if setting.many:
        return "[" + ", ".join(_quoted(one) for one in cast("tuple[object, ...]", value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if setting.is_size and isinstance(value, int):
        unit = max((size, name) for name, size in UNITS.items() if "i" in name or size == 1 if value % size == 0)
        return str(value) if unit[0] == 1 else f'"{value // unit[0]} {unit[1]}"'
    if isinstance(value, int | float):
        return repr(value)
    return _quoted(value)


def _quoted(value: object) -> str:
    """A basic string of TOML; its escapes are JSON's. Paths are made absolute, so that the file can lie anywhere."""
    text = str(value.absolute() if isinstance(value, Path) else value)
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
