"""Tables and lists of facts in the terminal: no frames, readable when piped, cells never taken for markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from edgeonnx.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable


def facts(rows: Iterable[tuple[str, str]]) -> Text:
    """One line for each fact: what, and its value. Never folded when piped."""
    shown = [(printable(key), printable(value)) for key, value in rows]
    width = max(len(key) for key, _ in shown)
    return Text("\n").join(Text.assemble((f"{key:<{width}}  ", "dim"), value) for key, value in shown)


def row(table: Table, *cells: str) -> None:
    """One row; the cells are text as it is, not markup."""
    table.add_row(*(Text(printable(cell)) for cell in cells))


def table(*columns: str) -> Table:
    """A table without frames. A `>` before a column's name sets it to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column.removeprefix(">"), overflow="fold", justify="right" if column[:1] == ">" else "left")
    return made
