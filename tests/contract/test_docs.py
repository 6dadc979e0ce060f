"""The documentation says what is so: its links lead somewhere, its commands exist, its tables are the code's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import device_agent.cli.main
import edgeonnx.cli.main
from device_agent.api.app import ROUTES
from edgeonnx.cli import exits
from edgeonnx.export.decoder.families import DECODER_FAMILIES
from edgeonnx.export.tasks import SUPPORTED_FAMILIES
from edgeonnx.pipeline.recipe import DECODER_STAGES, STAGES
from edgeonnx.spec.manifest import Task

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
APPS = {"edgeonnx": edgeonnx.cli.main.app, "edgeonnx-agent": device_agent.cli.main.app}


def commands(page: Path) -> set[str]:
    """The command lines of ours in a page's code blocks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^(?:\$ )?(edgeonnx(?:-agent)? [a-z][^\n#]*)", "\n".join(blocks), re.MULTILINE)
    return {line.strip() for line in lines}


COMMANDS = sorted(set().union(*(commands(page) for page in PAGES)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:edgeonnx|device_agent|ext|tests|bench|docs)/[\w/.]+)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_there_are_commands_to_look_at() -> None:
    assert len(COMMANDS) > 5


def split_verbs(command: Any, words: list[str]) -> tuple[list[str], list[str]]:
    """The words that lead to a command, through groups of commands (`repo keys rotate`), and what is given to it."""
    verbs: list[str] = []
    while hasattr(command, "commands"):
        assert words[0] in command.commands, words
        command = command.commands[words[0]]
        verbs.append(words[0])
        words = words[1:]
    return verbs, words


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_and_their_options_exist(line: str) -> None:
    program, *words = line.split()
    verbs, rest = split_verbs(typer.main.get_command(APPS[program]), words)
    shown = CliRunner().invoke(APPS[program], [*verbs, "--help"])
    assert shown.exit_code == 0, shown.output
    assert [word for word in rest if word.startswith("-") and word not in shown.output] == []


def test_the_guide_has_the_exit_codes_of_the_help() -> None:
    documented = re.findall(r"^\| (\d+) \| (.+?) \|$", GUIDE, re.MULTILINE)
    assert documented == re.findall(r"^  (\d+) +(.+)$", exits.HELP, re.MULTILINE)


def test_the_guide_names_every_family_and_task() -> None:
    listed = re.search(r"Supported families: ([^.]+)\.", GUIDE)
    assert listed
    assert re.split(r",\s+", listed.group(1)) == list(SUPPORTED_FAMILIES)
    decoders = re.search(r"Supported decoders: ([^.]+)\.", GUIDE)
    assert decoders
    assert re.split(r",\s+", decoders.group(1)) == list(DECODER_FAMILIES)
    assert [task.value for task in Task if f"`{task.value}`" not in GUIDE] == []


def test_the_guide_tells_every_stage() -> None:
    cells = re.findall(r"^\| ([a-z, ]+) \| ", GUIDE, re.MULTILINE)
    told = {name for cell in cells for name in cell.split(", ")}
    assert [name for name, _ in (*STAGES, *DECODER_STAGES) if name not in told] == []


def test_the_documentation_of_the_api_names_every_route() -> None:
    paths = {path.split("/versions/")[0].replace("/{id}", "") for _, path, _ in ROUTES}
    assert [path for path in sorted(paths) if f"{path}`" not in API] == []
