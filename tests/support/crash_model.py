"""What a disk may hold after a power cut: every write is recorded, and the trees that a crash could leave are rebuilt.

The model is that of a POSIX file system that promises no more than the standard and Linux's manual pages do. It is the
abstract persistence model of Pillai et al., "All File Systems Are Not Created Equal: On the Complexity of Crafting
Crash-Consistent Applications" (OSDI 2014), section 3, in a weak form, so that what holds in it holds on ext4, XFS,
btrfs and F2FS:

- A file's data are durable when `fsync` of the file has returned, as they were then. Of what was written or truncated
  later, each operation may be durable or not, in any order. A write may be torn: only a prefix of it is durable. Or
  the size is durable and the data are not: then zeros are read (delayed allocation of ext4 and XFS).
- Names are durable when `fsync` of their folder has returned. "Calling fsync() does not necessarily ensure that the
  entry in the directory containing the file has also reached disk. For that an explicit fsync() on a file descriptor
  for the directory is also needed" (fsync(2)). Of what was made, linked, renamed and removed later in a folder, each
  operation may be durable or not, in any order: the paper finds file systems that reorder them. For one name the later
  operation counts if both are durable.
- `rename` within a folder is atomic: POSIX asks that the new name always exists, and the file systems above keep that
  over a crash. Between two folders the new name and the loss of the old one may be durable separately, so that both
  may exist, or none.
- What an earlier crash left is durable: recovery after a reboot reads it from the disk.

What the model leaves out: blocks that rot, disks that lie about `fsync`, and errors of `fsync` itself (`FaultyDisk`
raises those).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.recording import Operation, promised


@dataclass(eq=False)
class File:
    """A file: its data as they are read, as they are durable, and what lies between."""

    data: bytes = b""
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Writes (offset, data) and truncations (size, None) since the last sync."""


@dataclass(eq=False)
class Link:
    """A symbolic link; its text is durable with its name."""

    text: str


@dataclass(eq=False)
class Folder:
    """A folder: its names as they are seen, as they are durable, and the changes that lie between.

    A change is a group of names and what they stand for afterwards (None: nothing); it is durable as a whole or not.
    """

    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[tuple[int, dict[str, Node | None]]] = field(default_factory=list)


Node = File | Link | Folder


@dataclass(frozen=True, kw_only=True)
class Crash:
    """What of the pending operations a crash makes durable.

    Attributes:
        name: For people.
        keeps: Whether a change of names is durable, by the number of the operation that made it.
        data: What becomes of a pending write: its data, a part of them, zeros, or None for nothing.
    """

    name: str
    keeps: Callable[[int], bool]
    data: Callable[[bytes], bytes | None]


def crashes(rng: random.Random, last: int, *, wild: int = 1) -> list[Crash]:
    """The crashes to try after an operation: the extremes, and some by chance.

    Args:
        rng: Chance.
        last: Number of the last operation.
        wild: How many with each operation durable or not by chance.
    """

    def torn(data: bytes) -> bytes:
        return data[: rng.randint(0, len(data))]

    def wild_data(data: bytes) -> bytes | None:
        return rng.choice((None, data, torn(data), bytes(len(data))))

    until = rng.randint(0, max(last, 0))
    return [
        Crash(name="nothing that was not synced", keeps=lambda _: False, data=lambda _: None),
        Crash(name="names without data", keeps=lambda _: True, data=lambda _: None),
        Crash(name="names with zeros", keeps=lambda _: True, data=lambda data: bytes(len(data))),
        Crash(name="everything", keeps=lambda _: True, data=lambda data: data),
        Crash(name="names in order, data torn", keeps=lambda number: number <= until, data=torn),
        *(Crash(name="each by chance", keeps=lambda _: rng.random() < 0.5, data=wild_data) for _ in range(wild)),
    ]


class Model:
    """The disk below a folder, as operations change it.

    Args:
        root: The folder as it is when recording begins; all of it is durable.
    """

    def __init__(self, root: Path) -> None:
        self.root = _load(root, {})
        self._handles: dict[int, Node] = {}
        self.count = 0

    def apply(self, operation: Operation) -> None:
        """Let an operation happen."""
        getattr(self, f"_{operation.kind}")(operation)
        self.count += 1

    def _at(self, path: str) -> tuple[Folder, str]:
        *folders, name = path.split("/")
        found: Node = self.root
        for each in folders:
            assert isinstance(found, Folder)
            found = found.names[each]
        assert isinstance(found, Folder)
        return found, name

    def _find(self, path: str) -> Node:
        if path == ".":
            return self.root
        folder, name = self._at(path)
        return folder.names[name]

    def _change(self, folder: Folder, change: dict[str, Node | None]) -> None:
        folder.pending.append((self.count, change))
        for name, node in change.items():
            if node is None:
                folder.names.pop(name)
            else:
                folder.names[name] = node

    def _open(self, operation: Operation) -> None:
        if operation.path != ".":
            folder, name = self._at(operation.path)
            if name not in folder.names:
                self._change(folder, {name: File()})
        self._handles[operation.handle] = self._find(operation.path)

    def _rename(self, operation: Operation) -> None:
        (before, old), (after, new) = self._at(operation.path), self._at(operation.other)
        node = before.names[old]
        if before is after:
            self._change(before, {old: None, new: node})
        else:
            self._change(after, {new: node})
            self._change(before, {old: None})

    def _link(self, operation: Operation) -> None:
        folder, name = self._at(operation.other)
        self._change(folder, {name: self._find(operation.path)})

    def _symlink(self, operation: Operation) -> None:
        folder, name = self._at(operation.path)
        self._change(folder, {name: Link(operation.other)})

    def _mkdir(self, operation: Operation) -> None:
        folder, name = self._at(operation.path)
        self._change(folder, {name: Folder()})

    def _unlink(self, operation: Operation) -> None:
        folder, name = self._at(operation.path)
        self._change(folder, {name: None})

    _rmdir = _unlink

    def _write(self, operation: Operation) -> None:
        file = self._file(operation)
        file.data = _written(file.data, operation.offset, operation.data)
        file.pending.append((operation.offset, operation.data))

    def _truncate(self, operation: Operation) -> None:
        file = self._file(operation)
        file.data = _sized(file.data, operation.offset)
        file.pending.append((operation.offset, None))

    def _sync(self, operation: Operation) -> None:
        node = self._handles[operation.handle]
        if isinstance(node, Folder):
            node.durable = dict(node.names)
            node.pending.clear()
        elif isinstance(node, File):
            node.durable = node.data
            node.pending.clear()

    def _chmod(self, operation: Operation) -> None:
        pass

    _mark = _chmod

    def _file(self, operation: Operation) -> File:
        node = self._handles[operation.handle]
        assert isinstance(node, File)
        return node

    def after(self, crash: Crash) -> Folder:
        """The tree that a crash now leaves; all of it is durable, and files that are one file stay one."""
        return self._left(self.root, crash, {})

    def _left(self, folder: Folder, crash: Crash, files: dict[int, File]) -> Folder:
        names = dict(folder.durable)
        for number, change in folder.pending:
            if crash.keeps(number):
                for name, node in change.items():
                    if node is None:
                        names.pop(name, None)
                    else:
                        names[name] = node
        left = Folder()
        for name, node in names.items():
            if isinstance(node, Folder):
                left.names[name] = self._left(node, crash, files)
            elif isinstance(node, File):
                if id(node) not in files:
                    data = _crashed(node, crash)
                    files[id(node)] = File(data=data, durable=data)
                left.names[name] = files[id(node)]
            else:
                left.names[name] = node
        left.durable = dict(left.names)
        return left


def _crashed(file: File, crash: Crash) -> bytes:
    data = file.durable
    for offset, written in file.pending:
        if written is None:
            data = _sized(data, offset) if crash.data(b"\0") else data
            continue
        kept = crash.data(written)
        if kept is not None:
            data = _written(data, offset, kept)
    return data


def _written(data: bytes, offset: int, added: bytes) -> bytes:
    return data[:offset].ljust(offset, b"\0") + added + data[offset + len(added) :]


def _sized(data: bytes, size: int) -> bytes:
    return data[:size].ljust(size, b"\0")


def _load(path: Path, files: dict[int, File]) -> Folder:
    folder = Folder()
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_symlink():
                folder.names[entry.name] = Link(str(Path(entry.path).readlink()))
            elif entry.is_dir():
                folder.names[entry.name] = _load(Path(entry.path), files)
            else:
                inode = entry.inode()
                if inode not in files:
                    data = Path(entry.path).read_bytes()
                    files[inode] = File(data=data, durable=data)
                folder.names[entry.name] = files[inode]
    folder.durable = dict(folder.names)
    return folder


def build(folder: Folder, path: Path, made: dict[int, Path] | None = None) -> None:
    """Write a tree to the real disk, at a path that does not exist; hard links stay hard links."""
    made = {} if made is None else made
    path.mkdir(mode=0o700)
    for name, node in folder.names.items():
        target = path / name
        if isinstance(node, Folder):
            build(node, target, made)
        elif isinstance(node, Link):
            target.symlink_to(node.text)
        elif id(node) in made:
            os.link(made[id(node)], target)
        else:
            target.write_bytes(node.data)
            made[id(node)] = target


def signature(folder: Folder) -> int:
    """A number that two trees share if they are equal: names, contents, and which names are one file."""
    seen: dict[int, int] = {}

    def of(node: Node) -> object:
        if isinstance(node, Folder):
            return tuple((name, of(child)) for name, child in sorted(node.names.items()))
        if isinstance(node, Link):
            return node.text
        return (seen.setdefault(id(node), len(seen)), node.data)

    return hash(of(folder))


def crash_states(
    before: Path, operations: list[Operation], rng: random.Random, *, wild: int = 1
) -> Iterator[tuple[int, str, Folder]]:
    """Every tree that the crashes of `crashes` leave after each prefix of the operations; each once after each mark.

    Args:
        before: The folder as it was when recording began.
        operations: What was recorded.
        rng: Chance.
        wild: As for `crashes`.

    Yields:
        How many operations had happened, the crash's name, the tree.
    """
    model = Model(before)
    seen: set[tuple[int, int]] = set()
    for number in range(len(operations) + 1):
        for crash in crashes(rng, number, wild=wild):
            tree = model.after(crash)
            mark = (signature(tree), promised(operations, number))
            if mark not in seen:
                seen.add(mark)
                yield number, crash.name, tree
        if number < len(operations):
            model.apply(operations[number])
