"""The picture of an attempt's states in the documentation is the one that follows from the table."""

from __future__ import annotations

import re
from pathlib import Path

from device_agent.slots.drawing import diagram, meanings, section, table
from device_agent.slots.states import TRANSITIONS, AttemptState

PAGE = Path(__file__).parents[2] / "docs" / "updates.md"
BEGIN, END = "<!-- states: begin -->", "<!-- states: end -->"


def test_the_documentation_shows_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == section(), "run: python -m device_agent.slots.drawing, and put what it prints between the marks"


def test_the_diagram_has_every_transition_and_no_other() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+)$", diagram(), re.MULTILINE))
    assert drawn == {
        (before.name.lower(), after.name.lower()) for before, following in TRANSITIONS.items() for after in following
    }


def test_the_table_tells_what_every_state_means() -> None:
    assert set(meanings()) == set(AttemptState)
    assert all(meaning.endswith(".") for meaning in meanings().values())
    assert [line.split(" | ")[0].removeprefix("| ") for line in table().splitlines()[2:]] == [
        state.value for state in AttemptState
    ]
