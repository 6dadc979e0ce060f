"""The state directory: where everything lies, who may write, and what is written how.

enrollment.json                         which repository and channel; `device_agent.update.enrollment`
update.lock, serve.lock, state.lock     held by the update process, by the serving process, while a state is changed
clock.json, metadata/                   what TUF verified; `device_agent.update`
serve.toml                              the settings of the process that serves
incoming/                               what is being downloaded
blobs/ab/<digest>                       verified contents, hard-linked into slots
models/<model>/state.json               the one truth of a model; state.backup.json is its copy
models/<model>/active                   a link to the active slot, for when both are damaged
models/<model>/slots/<digest>/          an installed bundle; hidden ones are being built or removed

Whoever installs or removes holds `update.lock`. Whoever changes a model's state, which the serving process does, too,
holds `state.lock` from reading it to writing it. Reading needs no lock, because a name changes its content in one step.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import stat
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from device_agent.slots import cleaning
from device_agent.slots.disk import Disk, entries_of, read_file
from device_agent.slots.state import Installed, SlotState
from edgeonnx.bundle import identify, open_bundle, verify_files
from edgeonnx.errors import BundleError, EdgeOnnxError, NoSpaceError, SchemaVersionError, StateError, UsageError
from edgeonnx.spec.paths import check_bundle_name

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS_FILE = "serve.toml"
MAX_STATE_BYTES = 1 << 20
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""What `link` says on file systems that have none (FAT, some network and user-space ones), or no more of them."""
GRACE_SECONDS = 0.2
"""How long a lock is tried for at least: whoever asks whether it is held (`is_locked`) holds it for a moment."""

UPDATE_LOCK = "update.lock"
SERVE_LOCK = "serve.lock"
STATE_LOCK = "state.lock"
STATE_SECONDS = 10.0
"""How long `state.lock` is waited for: it is held for milliseconds."""

STATE_FILE = "state.json"
BACKUP_FILE = "state.backup.json"
ACTIVE_LINK = "active"
_DIGEST = re.compile(r"[0-9a-f]{64}")

logger = logging.getLogger("edgeonnx.slots")


class Store:
    """A device's state directory.

    Args:
        root: The directory; `prepare` makes it. It may be reached through links, nothing in it may.
        disk: All writes go through it.
    """

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = Path(os.path.realpath(root))
        self.disk = disk or Disk()
        self._told: set[str] = set()

    @property
    def metadata(self) -> Path:
        """TUF's local files."""
        return self.root / "metadata"

    @property
    def incoming(self) -> Path:
        """Where downloads grow."""
        return self.root / "incoming"

    @property
    def blobs(self) -> Path:
        """Where verified contents lie."""
        return self.root / "blobs"

    @property
    def settings_file(self) -> Path | None:
        """The settings of the process that served here last, or None: whoever proves a release should load it so."""
        path = self.root / SETTINGS_FILE
        try:
            return path if stat.S_ISREG(path.lstat().st_mode) else None
        except OSError:
            return None

    def blob(self, digest: str) -> Path:
        """Where a verified content lies."""
        return self.blobs / digest[:2] / digest

    def model(self, name: str) -> Path:
        """The folder of a model."""
        return self.root / "models" / check_bundle_name(name)

    def slots(self, model: str) -> Path:
        """The folder of a model's slots."""
        return self.model(model) / "slots"

    def slot(self, model: str, contents: str) -> Path:
        """The folder of an installed bundle."""
        return self.slots(model) / contents

    def models(self) -> list[str]:
        """Names of the models that have a folder, sorted. What has no name of a model is none of ours."""
        return [path.name for path in entries_of(self.root / "models") if _is_model(path)]

    def prepare(self) -> None:
        """Make the folders that every update needs.

        Raises:
            NoSpaceError: The disk is full.
            StateError: The directory cannot be written, or something else has the name of a folder.
        """
        inner = (self.metadata, self.incoming, self.blobs, self.root / "models")
        with self.writing("the state directory"):
            for folder in (self.root, *inner):
                self.disk.make_folder(folder)
        for folder in inner:
            if folder.is_symlink():
                raise StateError(
                    "is a link",
                    where=str(folder),
                    expected="a folder of the state directory",
                    hint="move the whole state directory (update.state_dir), never a part of it",
                )

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
            # Of a rename or a link, the new name tells more.
            where = str(error.filename2 or error.filename or self.root)
            if error.errno in FULL_DISK:
                raise NoSpaceError(
                    f"{what} cannot be written: the disk is full",
                    where=where,
                    found=error.strerror,
                    hint="make room; the version that serves is not touched, and the next update goes on",
                ) from error
            raise StateError(
                f"{what} cannot be written",
                where=where,
                found=error.strerror or str(error),
                hint="the version that serves is not touched; check the disk and who owns the state directory",
            ) from error

    @contextmanager
    def locked(self, name: str, holder: str, *, wait: float = 0.0) -> Iterator[None]:
        """Hold one of the locks.

        Args:
            name: `update.lock` or `serve.lock`.
            holder: Who else may hold it, for the message.
            wait: Seconds that another holder is waited for.

        Raises:
            StateError: Another process holds it, or the directory cannot be written.
        """
        with self.writing("the lock"):
            descriptor = self._open_lock(self.root / name)
        try:
            if not _flock(descriptor, max(wait, GRACE_SECONDS)):
                raise StateError(
                    f"{holder} uses this state directory already",
                    where=str(self.root),
                    hint="one at a time; wait until it has ended, or give another --state-dir",
                )
            yield
        finally:
            self.disk.close(descriptor)

    def _open_lock(self, path: Path) -> int:
        try:
            return self.disk.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
            # Locking is no writing: a box whose disk has become read-only still serves.
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

    def is_locked(self, name: str) -> bool:
        """Whether a process holds a lock now."""
        try:
            descriptor = os.open(self.root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _flock(descriptor, 0)
        finally:
            os.close(descriptor)

    def read_state(self, model: str) -> SlotState:
        """What is known of a model: from the state file, else from its copy, else from the slots themselves.

        The copy may be a step behind; every step may be repeated. With both damaged, the bundle that the link names is
        active, and what was blocked is forgotten. That is logged once, and `damage` tells it.
        """
        found = self.read_files(model)
        if found is not None:
            return found
        recovered = SlotState(model=model, active=self._linked(model))
        told = self.damage(model)
        if told is not None and model not in self._told:
            self._told.add(model)
            logger.error("the state of %s is lost (%s); %s serves", model, told, _name(recovered.active))
        return recovered

    def read_files(self, model: str) -> SlotState | None:
        """The newer one of a model's state file and its copy; None if neither can be read."""
        found = [self._state_or_fault(model, name) for name in (STATE_FILE, BACKUP_FILE)]
        states = [each for each in found if isinstance(each, SlotState)]
        return max(states, key=lambda state: state.sequence, default=None)

    def _state_or_fault(self, model: str, name: str) -> SlotState | str:
        """A state file, or what is wrong with it in words."""
        path = self.model(model) / name
        try:
            found = SlotState.from_bytes(read_file(path, limit=MAX_STATE_BYTES), file=name)
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        except SchemaVersionError as error:
            return f"{name} is of another version of the agent ({error.found})"
        except (BundleError, UsageError) as error:
            return f"{name} is damaged ({error.message})"
        return found if found.model == model else f"{name} is that of {found.model}"

    def damage(self, model: str) -> str | None:
        """What is wrong with a model's state and with the slots that it names, in words; None if nothing is.

        No file is hashed: loading a model does that.
        """
        if not os.path.lexists(self.slots(model)):
            return None
        faults = []
        for name in (STATE_FILE, BACKUP_FILE):
            fault = self._state_or_fault(model, name)
            if isinstance(fault, str):
                faults.append(fault)
        found = self.read_files(model)
        state = found or SlotState(model=model, active=self._linked(model))
        if found is not None and self._link_text(model) != _text_of(found):
            faults.append("the link to the active slot does not name it")
        for what, installed in (("active", state.active), ("previous", state.previous)):
            fault_ = None if installed is None else self.slot_fault(model, installed.contents)
            if fault_ is not None:
                faults.append(f"the {what} slot {fault_}")
        return "; ".join(faults) or None

    def slot_fault(self, model: str, contents: str, *, hashed: bool = False) -> str | None:
        """Why a slot is not the bundle that its name says, in words; None if it is.

        Args:
            model: The model.
            contents: The slot's name: the digest of its bundle.
            hashed: Also read every byte.
        """
        path = self.slot(model, contents)
        if path.is_symlink() or not path.is_dir():
            return f"{contents[:16]} is missing" if not os.path.lexists(path) else f"{contents[:16]} is no folder"
        try:
            bundle = open_bundle(path)
            if (bundle.manifest.name, bundle.digest) != (model, contents):
                return f"{contents[:16]} holds {bundle.manifest.name} {bundle.digest[:16]}"
            if hashed:
                verify_files(bundle)
        except (EdgeOnnxError, OSError) as error:
            return f"{contents[:16]} is damaged ({error})"
        return None

    def _link_text(self, model: str) -> str | None:
        """What the link `active` says; None if there is none, and empty if something else has its name."""
        link = self.model(model) / ACTIVE_LINK
        try:
            return os.fspath(link.readlink())
        except OSError:
            return "" if os.path.lexists(link) else None

    def _linked(self, model: str) -> Installed | None:
        """The bundle that the link `active` names, if it is one of the model's slots."""
        try:
            folder, _, digest = (self._link_text(model) or "").partition("/")
            slot = self.slot(model, digest)
            if folder != "slots" or _DIGEST.fullmatch(digest) is None or slot.is_symlink():
                return None
            name, version, contents = identify(slot)
        except (OSError, EdgeOnnxError):
            return None
        return Installed(version=version, contents=contents) if (name, contents) == (model, digest) else None

    def write_state(self, state: SlotState) -> SlotState:
        """Write a model's state durably; from the rename on it is true. Returns it with its new sequence number.

        Its copy and the link to the active slot are for a damaged disk: if they cannot be written, that is logged, and
        `damage` tells it.

        Raises:
            NoSpaceError, StateError: It could not be written. The old state is still true, unless the disk failed after
                the rename: read the state again to know.
        """
        folder = self.model(state.model)
        state = replace(state, sequence=state.sequence + 1)
        data = state.to_bytes()
        with self.writing("the state"):
            self.disk.make_folder(self.slots(state.model))
            self.disk.replace(folder / STATE_FILE, data)
        try:
            with self.writing("the copy of the state"):
                self.disk.replace(folder / BACKUP_FILE, data)
            self.repair_link(state)
        except (NoSpaceError, StateError) as error:
            logger.warning("%s", error)
        return state

    def repair_link(self, state: SlotState) -> None:
        """Let the link `active` say what the state says.

        Raises:
            NoSpaceError, StateError: It could not be written.
        """
        link, text = self.model(state.model) / ACTIVE_LINK, _text_of(state)
        if self._link_text(state.model) == text:
            return
        with self.writing("the link to the active slot"):
            if text is None:
                self.disk.remove(link)
            else:
                self.disk.replace_link(link, text)

    def place(self, digest: str, target: Path) -> None:
        """Give a content that is here a further name, in a slot: a hard link, or a checked copy where there are none.

        The name is not durable before its folder is synced.

        Raises:
            OSError: It could not be written, or the content is not here, or has another digest by now.
        """
        source = self.blob(digest)
        try:
            self.disk.link(source, target)
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            self.disk.create(target, cleaning.checked_pieces(source, digest), mode=0o444)

    def discard_slot(self, model: str, contents: str) -> None:
        """Remove a slot, or whatever has its name: first its name, durably, then its files.

        Raises:
            NoSpaceError, StateError: It could not be removed.
        """
        with self.writing("the clean-up"):
            cleaning.discard(self.disk, self.slot(model, contents))

    def collect(self, keep: frozenset[str] = frozenset()) -> int:
        """Remove what no model needs: old slots, half-built ones, contents that no slot holds, downloads for nothing.

        Call it with the update lock held. The active slot, the previous one and what is being installed always stay,
        with the contents and the downloads that it needs. The slots of a model whose state is lost stay, too.

        Args:
            keep: Digests of further contents that stay.

        Returns:
            Bytes that were freed.

        Raises:
            NoSpaceError, StateError: Something could not be removed; the rest was.
        """
        with self.writing("the clean-up"):
            freed = cleaning.collect(self, keep)
            with self.locked(STATE_LOCK, "another process", wait=STATE_SECONDS):
                cleaning.remove_unfinished(self)
        return freed


def _is_model(path: Path) -> bool:
    try:
        return check_bundle_name(path.name) == path.name and not path.is_symlink() and path.is_dir()
    except UsageError:
        return False


def _text_of(state: SlotState) -> str | None:
    """What the link `active` must say; None if there must be none."""
    return None if state.active is None else f"slots/{state.active.contents}"


def _name(installed: Installed | None) -> str:
    return "no version" if installed is None else f"version {installed.version}, which the link names,"


def _flock(descriptor: int, wait: float) -> bool:
    """Take a lock, for at most `wait` seconds; False if another process holds it."""
    until = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        else:
            return True
