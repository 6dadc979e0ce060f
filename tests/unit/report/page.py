"""Reading a page back: its tags must balance, and its tables become lists of cells."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input", "line", "rect", "circle", "path", "polyline"}


@dataclass
class Table:
    """One table: its caption, and the cells of each row with their tags and attributes."""

    caption: str = ""
    rows: list[list[str]] = field(default_factory=list)
    cells: list[tuple[str, dict[str, str | None], str]] = field(default_factory=list)

    def row(self, first: str) -> list[str]:
        return next(row for row in self.rows if row[0] == first)


class Page(HTMLParser):
    """A parsed page. Raises AssertionError where tags do not balance."""

    def __init__(self, data: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[Table] = []
        self.texts: list[tuple[str, str]] = []
        self._cell: list[str] | None = None
        self.feed(data.decode("utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID or self._drawn_with_content(tag):
            self.open.append(tag)
        if tag == "table":
            self.tables.append(Table())
        elif tag == "tr":
            self.tables[-1].rows.append([])
        elif tag in ("td", "th"):
            self._cell = []
            self.tables[-1].cells.append((tag, dict(attrs), ""))

    def _drawn_with_content(self, tag: str) -> bool:
        """Marks of a plot hold a title, so they are closed by a tag of their own."""
        return tag in ("circle", "path")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag, (tag, self.open)
        if tag in ("td", "th"):
            text = " ".join("".join(self._cell or []).split())
            self.tables[-1].rows[-1].append(text)
            last = self.tables[-1].cells[-1]
            self.tables[-1].cells[-1] = (last[0], last[1], text)
            self._cell = None

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))
        if self._cell is not None:
            self._cell.append(data)
        if "caption" in self.open:
            self.tables[-1].caption += data

    @property
    def text(self) -> str:
        """All that is read on the page, without its style."""
        return " ".join(" ".join(data for tag, data in self.texts if tag != "style").split())

    def table(self, *head: str) -> Table:
        """The first table whose header begins with these cells."""
        return next(table for table in self.tables if tuple(table.rows[0][: len(head)]) == head)
