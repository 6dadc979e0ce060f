"""Prints the errors of a valgrind memcheck run that are ours; exits with 1 if there is one.

Python, NumPy and other libraries make memcheck report errors too. An error counts as ours if one of its stacks (where
it happened, or where the memory was allocated) goes through a shared object below a given folder: the instrumented
copy of the extension. No suppressions are needed then.

Run it with `python ext/tools/valgrind_report.py FOLDER REPORT.xml...`.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAMES: Final = 12


def our_errors(report: Path, folder: Path) -> Iterator[ElementTree.Element]:
    """Yield the errors of a report whose stacks touch an object below `folder`."""
    for error in ElementTree.parse(report).iter("error"):  # noqa: S314 - valgrind wrote it
        objects = [Path(found.text or "") for found in error.iter("obj")]
        if any(folder in found.parents for found in objects):
            yield error


def shown(error: ElementTree.Element) -> str:
    """An error with the top of its stacks, for people."""
    what = error.findtext("what") or error.findtext("xwhat/text") or error.findtext("kind")
    lines = [f"{error.findtext('kind')}: {what}"]
    for stack in error.iter("stack"):
        for frame in list(stack.iter("frame"))[:FRAMES]:
            place = frame.findtext("file") or frame.findtext("obj") or "?"
            lines.append(f"    {frame.findtext('fn') or '?'} ({place}:{frame.findtext('line') or '?'})")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Read the reports."""
    folder, reports = Path(sys.argv[1]).resolve(), [Path(name) for name in sys.argv[2:]]
    everything = sum(1 for report in reports for _ in ElementTree.parse(report).iter("error"))  # noqa: S314
    ours = [error for report in reports for error in our_errors(report, folder)]
    for error in ours:
        sys.stdout.write(f"{shown(error)}\n")
    sys.stdout.write(f"valgrind: {len(ours)} errors of the extension, {everything - len(ours)} of other libraries\n")
    sys.exit(1 if ours else 0)


if __name__ == "__main__":
    main()
