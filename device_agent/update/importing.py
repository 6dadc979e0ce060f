"""Updates without a network: a repository, or the part of it that a device needs, on a stick or in an archive.

The updater and its checks are the same as for a server: the metadata on the stick must be signed, unexpired, and no
older than what this device has seen. What is named by digest is taken from the stick if it is not here already.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from device_agent.slots.disk import TEMPORARY, entries_of
from device_agent.update.transfer.sources.folder import FolderSource
from edgeonnx.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from device_agent.slots.store import Store
    from device_agent.update.transfer.sources import Source

METADATA = "metadata"
UNPACKED = "import."
"""Beginning of the names of unpacked archives. They lie beside the other folders of the state directory, and not in
`incoming/`, which a clean-up in the middle of an update empties."""


@contextmanager
def imported(path: Path, store: Store) -> Iterator[Source]:
    """The files of a repository that was carried here. The update lock must be held.

    Args:
        path: A folder with the repository, or with one folder that holds it; or an archive of one.
        store: An archive is unpacked into its folder, and removed afterwards.

    Raises:
        UsageError: There is neither.
        FetchError, NoSpaceError, StateError: The archive cannot be unpacked.
    """
    if path.is_dir():
        yield FolderSource(_repository_in(path))
        return
    if not path.is_file():
        raise UsageError("no such folder or archive", where=str(path), expected="a copy of a repository")
    from device_agent.update.transfer.sources.archive import unpacked

    store.prepare()
    with store.writing("the clean-up"):
        for left in entries_of(store.root):
            if left.name.startswith(UNPACKED) and left.name.endswith(TEMPORARY):
                store.disk.remove(left)
    with unpacked(path, store.root, store.disk) as source:
        yield source


def _repository_in(folder: Path) -> Path:
    """The folder that holds `metadata/`: this one, or the only one in it that does."""
    if (folder / METADATA).is_dir():
        return folder
    inside = [each for each in sorted(folder.iterdir()) if (each / METADATA).is_dir()]
    if len(inside) != 1:
        raise UsageError(
            "is no repository" if not inside else "holds several repositories",
            where=str(folder),
            expected=f"a folder with {METADATA}/ in it",
            found=", ".join(each.name for each in inside) or None,
        )
    return inside[0]
