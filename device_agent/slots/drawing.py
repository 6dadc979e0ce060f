"""`python -m device_agent.slots.drawing`: the states of an attempt as `docs/updates.md` shows them, from the table.

Prints a Mermaid diagram and a table of what each state means. A contract test compares the documentation with it.
"""

from __future__ import annotations

import ast
import inspect

from device_agent.slots import states
from device_agent.slots.states import FINAL, TRANSITIONS, AttemptState


def diagram() -> str:
    """A Mermaid state diagram of `TRANSITIONS`; states are named by their identifiers, so that none has a space."""
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{state.value}" as {_identifier(state)}' for state in AttemptState if " " in state.value]
    lines.append(f"    [*] --> {_identifier(AttemptState.DOWNLOADING)}")
    for state in AttemptState:
        following = [each for each in AttemptState if each in TRANSITIONS[state]]
        lines += [f"    {_identifier(state)} --> {_identifier(each)}" for each in following]
    lines += [f"    {_identifier(state)} --> [*]" for state in AttemptState if state in FINAL]
    return "\n".join(lines)


def table() -> str:
    """A Markdown table: each state, what it means, and what may follow."""
    lines = ["| state | meaning | then |", "|---|---|---|"]
    for state, meaning in meanings().items():
        following = ", ".join(each.value for each in AttemptState if each in TRANSITIONS[state])
        lines.append(f"| {state.value} | {meaning} | {following or 'over'} |")
    return "\n".join(lines)


def meanings() -> dict[AttemptState, str]:
    """What each state means: the text under its member in the source."""
    tree = ast.parse(inspect.getsource(states))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "AttemptState")
    found: dict[AttemptState, str] = {}
    name = ""
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            found[AttemptState[name]] = " ".join(str(node.value.value).split())
    return found


def section() -> str:
    """What the documentation holds between its two marks."""
    return f"```mermaid\n{diagram()}\n```\n\n{table()}"


def _identifier(state: AttemptState) -> str:
    return state.name.lower()


if __name__ == "__main__":
    print(section())  # noqa: T201 - that is what it is for
