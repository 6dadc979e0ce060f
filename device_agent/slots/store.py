"""The state directory: where everything lies, who may write, and what is written how.

enrollment.json                         which repository and channel; `device_agent.update.enrollment`
update.lock, serve.lock                 held by the update process, by the serving process
clock.json, metadata/                   what TUF verified; `device_agent.update`
incoming/                               what is being downloaded
blobs/ab/<digest>                       verified contents, hard-linked into slots
models/<model>/state.json               the one truth of a model; state.backup.json is its copy
models/<model>/active                   a link to the active slot, for when both are damaged
models/<model>/slots/<digest>/          an installed bundle; hidden ones are being built
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from device_agent.slots.disk import TEMPORARY, Disk
from device_agent.slots.state import Installed, SlotState
from edgeonnx.bundle import identify
from edgeonnx.errors import EdgeOnnxError, NoSpaceError, StateError, printable
from edgeonnx.spec.paths import check_bundle_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_STATE_BYTES = 1 << 20
FULL_DISK = (28, 122)
"""ENOSPC and EDQUOT."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Store:
    """A device's state directory.

    Args:
        root: The directory; `prepare` makes it.
        disk: All writes go through it.
    """

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self.disk = disk or Disk()

    @property
    def metadata(self) -> Path:
        """TUF's local files."""
        return self.root / "metadata"

    @property
    def incoming(self) -> Path:
        """Where downloads grow."""
        return self.root / "incoming"

    def blob(self, digest: str) -> Path:
        """Where a verified content lies."""
        return self.root / "blobs" / digest[:2] / digest

    def model(self, name: str) -> Path:
        """The folder of a model."""
        return self.root / "models" / check_bundle_name(name)

    def slot(self, model: str, contents: str) -> Path:
        """The folder of an installed bundle."""
        return self.model(model) / "slots" / contents

    def models(self) -> list[str]:
        """Names of the models that have a folder, sorted."""
        try:
            return sorted(
                entry.name for entry in os.scandir(self.root / "models") if entry.is_dir(follow_symlinks=False)
            )
        except FileNotFoundError:
            return []

    def prepare(self) -> None:
        """Make the folders that every update needs.

        Raises:
            StateError: The directory cannot be written.
        """
        with self.writing("the state directory"):
            for folder in (self.root, self.metadata, self.incoming, self.root / "blobs", self.root / "models"):
                self.disk.make_folder(folder)

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """What the disk refuses becomes an error that says so.

        Raises:
            NoSpaceError: The disk or the quota is full.
            StateError: It is read-only, belongs to somebody else, or fails.
        """
        try:
            yield
        except OSError as error:
            where = str(error.filename or self.root)
            if error.errno in FULL_DISK:
                raise NoSpaceError(
                    f"{what} cannot be written: the disk is full",
                    where=where,
                    hint="make room; the version that serves is not touched, and the next update goes on",
                ) from error
            raise StateError(
                f"{what} cannot be written",
                where=where,
                found=error.strerror or str(error),
                hint="the version that serves is not touched; check the disk and who owns the state directory",
            ) from error

    @contextmanager
    def locked(self, name: str, holder: str) -> Iterator[None]:
        """Hold one of the locks.

        Args:
            name: `update.lock` or `serve.lock`.
            holder: Who else may hold it, for the message.

        Raises:
            StateError: Another process holds it, or the directory cannot be written.
        """
        with self.writing("the lock"):
            descriptor = self.disk.open(self.root / name, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StateError(
                    f"{holder} uses this state directory already",
                    where=str(self.root),
                    hint="one at a time; wait until it has ended, or give another --state-dir",
                ) from None
            yield
        finally:
            self.disk.close(descriptor)

    def is_locked(self, name: str) -> bool:
        """Whether a process holds a lock now."""
        try:
            descriptor = os.open(self.root / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)

    def read_state(self, model: str) -> SlotState:
        """What is known of a model: from the state file, else from its copy, else from the slots themselves.

        The copy may be a step behind; every step may be repeated. With both damaged, the bundle that the link names is
        active, and what was blocked is forgotten.
        """
        folder = self.model(model)
        for name in ("state.json", "state.backup.json"):
            found = _parse(folder / name, model)
            if found is not None:
                return found
        return SlotState(model=model, active=self._linked(model))

    def damage(self, model: str) -> str | None:
        """What is wrong with a model's state file, in words; None if nothing is."""
        folder = self.model(model)
        if _parse(folder / "state.json", model) is not None:
            return None
        if not os.path.lexists(folder / "state.json"):
            return "state.json is missing" if os.path.lexists(folder / "slots") else None
        return "state.json is damaged"

    def _linked(self, model: str) -> Installed | None:
        """The bundle that the link `active` names, if it is one."""
        try:
            digest = (self.model(model) / "active").readlink().name
            if _DIGEST.fullmatch(digest) is None:
                return None
            name, version, contents = identify(self.slot(model, digest))
        except (OSError, EdgeOnnxError):
            return None
        return Installed(version=version, contents=contents) if (name, contents) == (model, digest) else None

    def write_state(self, state: SlotState) -> SlotState:
        """Write a model's state durably; from the rename on it is true. Returns it with its new sequence number.

        Raises:
            NoSpaceError, StateError: It could not be written; the old state is still true.
        """
        folder = self.model(state.model)
        state = replace(state, sequence=state.sequence + 1)
        with self.writing("the state"):
            self.disk.make_folder(folder / "slots")
            self.disk.replace(folder / "state.json", state.to_bytes())
            self.disk.replace(folder / "state.backup.json", state.to_bytes())
        self.repair_link(state)
        return state

    def repair_link(self, state: SlotState) -> None:
        """Let the link `active` say what the state says."""
        link = self.model(state.model) / "active"
        text = None if state.active is None else f"slots/{state.active.contents}"
        try:
            found = str(link.readlink())
        except OSError:
            found = None
        if found == text:
            return
        with self.writing("the link to the active slot"):
            if text is None:
                self.disk.remove(link)
            else:
                self.disk.replace_link(link, text)

    def collect(self) -> int:
        """Remove what no model needs: old slots, half-built ones, contents that no slot holds; bytes that were freed.

        Call it with the update lock held. The active slot, the previous one and what is being installed always stay.
        """
        freed = 0
        with self.writing("the clean-up"):
            for model in self.models():
                kept = self.read_state(model).in_use()
                for entry in _entries(self.model(model) / "slots"):
                    if entry.name not in kept:
                        freed += _size(entry)
                        self.disk.remove(entry)
            for folder in _entries(self.root / "blobs"):
                for blob in _entries(folder):
                    status = blob.lstat()
                    if status.st_nlink == 1 or blob.name.endswith(TEMPORARY):
                        freed += status.st_size
                        self.disk.remove(blob)
        return freed


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(folder.iterdir())
    return []


def _size(path: Path) -> int:
    """Bytes that only this path holds."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(each.lstat().st_size for each in path.rglob("*") if each.is_file() and each.lstat().st_nlink == 1)


def _parse(path: Path, model: str) -> SlotState | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = SlotState.from_bytes(file.read(MAX_STATE_BYTES + 1), file=printable(path.name))
    except (OSError, EdgeOnnxError):
        return None
    return found if found.model == model else None
