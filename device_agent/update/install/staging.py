"""From a release to a slot: what is missing is fetched, and a folder is built from hard links.

What to fetch is found out in three steps, each from what the one before gave: the list of files and the metadata; then
what all variants need, and the graphs of those that this machine would run; then the tensors that these graphs name.
The variants that are left out are named in the slot's `partial.json`.

A new slot gets its name last: it is built beside, and one that has its name is complete and durable. A slot that is
there already is completed or repaired in place, file by file: each file is verified before it gets its name in one
step, and `partial.json`, which says what may be missing, is replaced last. So at no time does a slot promise what it
lacks, or hold what it does not list: it may be the one that serves, and power may fail at any moment.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.bundle import needs, open_bundle
from edgeonnx.bundle.reader import MAX_CONTENTS_BYTES, MAX_FILES, MAX_METADATA_BYTES
from edgeonnx.errors import BundleError, CandidateError, NoSpaceError
from edgeonnx.spec.contents import CONTENTS_FILE
from edgeonnx.spec.contents import Contents as FileList
from edgeonnx.spec.partial import PARTIAL_FILE, Partial, variant_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from device_agent.slots.store import Store
    from device_agent.update.install.contents import Contents
    from edgeonnx.spec.contents import FileEntry
    from edgeonnx.spec.manifest import Manifest
    from edgeonnx.spec.release import Release

    Choose = Callable[[Path], Collection[str]]
    """Says which variants of the bundle in a folder (of which the metadata suffice) this machine would run, each as
    `<component>/<variant>`."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """What a bundle says of itself, before its files are here.

    Attributes:
        manifest: Its manifest.
        contents: Its list of files.
    """

    manifest: Manifest
    contents: FileList


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What staging may take.

    Attributes:
        reserve: Bytes of the disk that stay free.
        connections: Contents that are fetched at one time.
    """

    reserve: int
    connections: int


class Staging:
    """Has the bundle of a release in a slot.

    Args:
        store: The state directory.
        contents: Fetches the release's contents.
        release: The release.
        limits: What it may take.
        choose: Says which variants are needed; None: all.
    """

    def __init__(
        self, store: Store, contents: Contents, release: Release, limits: Limits, choose: Choose | None = None
    ) -> None:
        self._store = store
        self._contents = contents
        self._release = release
        self._limits = limits
        self._choose = choose
        self._slot = store.slot(release.name, release.contents)

    def stage(self) -> Path:
        """Have the slot, with what is needed in it; nothing is fetched that is here.

        Returns:
            The slot.

        Raises:
            FetchError, BlobError: The repository does not give what the release names.
            NoSpaceError, StateError: The disk does not take it.
            CandidateError: The bundle is not what the release says, or this machine can run no variant of it.
        """
        described = self._described()
        wanted = self._wanted(described)
        self._fetch_rest(described, wanted)
        if self._slot.is_dir() and not self._slot.is_symlink():
            self._complete(described, wanted)
        else:
            self._build(described, wanted)
        self._check()
        return self._slot

    def missing(self) -> int:
        """The most bytes that would be fetched, as far as it can be told; only the metadata are fetched for that."""
        described = self._described()
        wanted = self._wanted(described)
        known = self._first_files(described, wanted)
        missing = [entry for entry in known if not self._contents.has(entry.sha256)]
        if missing:
            # Which tensors are needed, only the graphs say, which are not here: all of them are at most needed.
            everything = described.contents.files if wanted == _every(described.manifest) else known
            folders = tuple(needs.tensor_folders(described.manifest))
            tensors = [entry for entry in described.contents.files if entry.path.startswith(folders)]
            files = {*everything, *tensors}
        else:
            files = {*known, *self._tensor_files(described, wanted)}
        return self._contents.wire_bytes(each for each in files if not self._contents.has(each.sha256))

    # What is needed.

    def _described(self) -> Described:
        """The bundle's list and manifest; both are fetched, and must be of this release."""
        release = self._release
        if release.contents_size > MAX_CONTENTS_BYTES:
            raise self._refused("its list of files is too large", f"at most {MAX_CONTENTS_BYTES:,} bytes")
        self._contents.ensure(release.contents, release.contents_size)
        try:
            listed = FileList.from_bytes(self._contents.read(release.contents))
            if len(listed.files) > MAX_FILES:
                raise self._refused("it has too many files", f"at most {MAX_FILES:,}")
            twofold = not_both(entry.path for entry in listed.files)
            if twofold is not None:
                raise self._refused(f"it lists {twofold}, which belongs to the device or is also a folder")
            first = needs.metadata_files(listed)
            if sum(entry.size for entry in first) > MAX_METADATA_BYTES * 2:
                raise self._refused("its metadata are too large", f"at most {MAX_METADATA_BYTES * 2:,} bytes")
            self._fetch(first)
            files = {entry.path: entry.sha256 for entry in first}
            manifest = needs.read_manifest(lambda path: self._contents.read(_listed(files, path)))
        except BundleError as error:
            raise self._refused(f"it is no bundle that this agent reads: {error}") from None
        if (manifest.name, manifest.version) != (release.name, release.version):
            raise self._refused(
                "the bundle calls itself something else than its release",
                f"{release.name} {release.version}",
                f"{manifest.name} {manifest.version}",
            )
        return Described(manifest=manifest, contents=listed)

    def _wanted(self, described: Described) -> frozenset[str]:
        """The variants that the slot must have; those that it has already stay."""
        every = _every(described.manifest)
        if self._choose is None:
            return every
        entry = described.manifest.entry
        others = frozenset(each for each in every if not each.startswith(f"{entry}/"))
        folder = self._metadata_folder(described)
        try:
            chosen = frozenset(self._choose(folder)) & every
        finally:
            with contextlib.suppress(OSError):
                self._store.disk.remove(folder)
        present = every - self._absent() if self._slot.is_dir() else frozenset()
        return (chosen or every) | others | present

    def _metadata_folder(self, described: Described) -> Path:
        """A folder with the bundle's metadata alone, for the process that chooses variants."""
        folder = self._store.incoming / f"{self._release.contents}.metadata"
        with self._store.writing("the metadata"):
            self._store.disk.remove(folder)
            for entry in needs.metadata_files(described.contents):
                self._store.disk.make_folder((folder / entry.path).parent)
                self._store.place(entry.sha256, folder / entry.path)
        return folder

    def _absent(self) -> frozenset[str]:
        """The variants that a slot which is there does not have; a `partial.json` that cannot be read names none."""
        try:
            return Partial.from_bytes((self._slot / PARTIAL_FILE).read_bytes()).absent
        except (OSError, BundleError):
            return frozenset()

    def _first_files(self, described: Described, wanted: Collection[str]) -> list[FileEntry]:
        """What all variants need, and the graphs of the wanted ones."""
        graphs = [
            entry
            for name, component in described.manifest.components.items()
            for variant in component.variants
            if variant_path(name, variant.name) in wanted
            for entry in needs.graph_files(described, name, variant)
        ]
        return [*needs.common_files(described), *graphs]

    def _tensor_files(self, described: Described, wanted: Collection[str]) -> list[FileEntry]:
        """The tensors that the graphs of the wanted variants name; the graphs are here."""
        found = []
        for name, component in described.manifest.components.items():
            for variant in component.variants:
                if variant_path(name, variant.name) in wanted:
                    graphs = needs.graph_files(described, name, variant)
                    names = [needs.tensor_names(self._contents.pieces(entry.sha256)) for entry in graphs]
                    found += needs.tensor_files(described, variant, frozenset().union(*names))
        return found

    def _fetch_rest(self, described: Described, wanted: Collection[str]) -> None:
        self._fetch(self._first_files(described, wanted))
        self._fetch(self._tensor_files(described, wanted))

    def _files(self, described: Described, wanted: Collection[str]) -> dict[str, FileEntry]:
        """Every file that the slot gets, by its path; all are here."""
        files = [*self._first_files(described, wanted), *self._tensor_files(described, wanted)]
        return {entry.path: entry for entry in files}

    def _fetch(self, entries: Iterable[FileEntry]) -> None:
        missing = [entry for entry in entries if not self._contents.has(entry.sha256)]
        check_room(self._store, missing, self._limits)
        self._contents.ensure_all(missing, self._limits.connections)

    # The slot.

    def _build(self, described: Described, wanted: Collection[str]) -> None:
        """Build the slot beside, from hard links, and give it its name."""
        self._store.discard_slot(self._release.name, self._release.contents)
        building = self._slot.with_name(f".{self._slot.name}.new")
        disk, files = self._store.disk, self._files(described, wanted)
        with self._store.writing("the slot"):
            disk.remove(building)
            disk.make_folder(self._slot.parent)
            folders = {building, *(parent for path in files for parent in _parents(building, path))}
            for folder in sorted(folders):
                disk.mkdir(folder)
            self._store.place(self._release.contents, building / CONTENTS_FILE)
            for path, entry in files.items():
                self._store.place(entry.sha256, building / path)
            absent = _every(described.manifest) - frozenset(wanted)
            if absent:
                disk.create(building / PARTIAL_FILE, [Partial(absent=absent).to_bytes()], mode=0o444)
            for folder in sorted(folders):
                disk.sync_folder(folder)
            disk.rename(building, self._slot)
            disk.sync_folder(self._slot.parent)

    def _complete(self, described: Described, wanted: Collection[str]) -> None:
        """Let a slot that is there have exactly what is wanted, and no file that is not the verified content."""
        disk, files = self._store.disk, self._files(described, wanted)
        digests = {CONTENTS_FILE: self._release.contents} | {path: entry.sha256 for path, entry in files.items()}
        with self._store.writing("the slot"):
            for stray in _strays(self._slot, {*digests, PARTIAL_FILE}):
                disk.remove(stray)
            touched = set()
            for path, digest in digests.items():
                target = self._slot / path
                if not _same_file(target, self._store.blob(digest)):
                    self._place(digest, target)
                    touched.add(target.parent)
            for folder in sorted(touched):
                disk.sync_folder(folder)
            self._write_partial(_every(described.manifest) - frozenset(wanted))

    def _place(self, digest: str, target: Path) -> None:
        """Give a file of the slot its verified content, in one step: a bundle has no half-made files beside it."""
        disk = self._store.disk
        disk.remove(self._beside)
        self._store.place(digest, self._beside)
        disk.make_folder(target.parent)
        if target.is_dir() and not target.is_symlink():
            disk.remove(target)
        disk.rename(self._beside, target)

    def _write_partial(self, absent: frozenset[str]) -> None:
        path, disk = self._slot / PARTIAL_FILE, self._store.disk
        if absent and self._absent() == absent:
            return
        if absent:
            disk.remove(self._beside)
            disk.create(self._beside, [Partial(absent=absent).to_bytes()], mode=0o444)
            disk.move(self._beside, path)
        else:
            disk.remove(path)
            disk.sync_folder(self._slot)

    @property
    def _beside(self) -> Path:
        """Where a file lies before it gets its name in the slot."""
        return self._store.incoming / f"{self._release.contents}.place.new"

    def _check(self) -> None:
        """The slot must be a bundle: a signed list may still be wrong."""
        try:
            bundle = open_bundle(self._slot)
        except BundleError as error:
            raise self._refused(f"it is no bundle that this agent reads: {error}") from None
        if bundle.digest != self._release.contents:
            raise self._refused("the slot has another digest", self._release.contents, bundle.digest)

    def _refused(self, why: str, expected: str | None = None, found: str | None = None) -> CandidateError:
        return CandidateError(
            why, where=f"{self._release.name} {self._release.version}", expected=expected, found=found
        )


def check_room(store: Store, missing: Collection[FileEntry], limits: Limits) -> None:
    """Refuse what would fill the disk: before anything is fetched, not in the middle.

    Raises:
        NoSpaceError: There is too little room.
    """
    if not missing:
        return
    # A blob lies beside what it decodes to for a moment.
    sizes = sorted(entry.size for entry in missing)
    needed = sum(sizes) + sum(sizes[-limits.connections :])
    status = os.statvfs(store.root)
    free = status.f_bavail * status.f_frsize
    if needed + limits.reserve > free:
        raise NoSpaceError(
            "the disk has no room for the release",
            where=str(store.root),
            expected=f"{needed + limits.reserve:,} bytes free, {limits.reserve:,} of them in reserve",
            found=f"{free:,} bytes",
            hint="make room, or lower update.disk_reserve_bytes",
        )


def not_both(paths: Iterable[str]) -> str | None:
    """A path of a list that cannot be a file, because another one needs it as a folder, or the device as its own file.

    Pure; case does not count, as on the file systems where bundles are copied to.
    """
    files = {path.lower() for path in paths}
    if PARTIAL_FILE in files:
        return PARTIAL_FILE
    files |= {CONTENTS_FILE, PARTIAL_FILE}
    folders = {
        "/".join(parts[:count]) for parts in (path.split("/") for path in files) for count in range(1, len(parts))
    }
    return min(files & folders, default=None)


def _every(manifest: Manifest) -> frozenset[str]:
    """All variants, as `partial.json` names them."""
    return frozenset(
        variant_path(name, variant.name)
        for name, component in manifest.components.items()
        for variant in component.variants
    )


def _listed(files: dict[str, str], path: str) -> str:
    if path not in files:
        raise CandidateError("the bundle lacks a file of its metadata", where=path)
    return files[path]


def _parents(root: Path, path: str) -> list[Path]:
    """The folders between a bundle's root and a file in it."""
    parts = path.split("/")[:-1]
    return [root.joinpath(*parts[: count + 1]) for count in range(len(parts))]


def _same_file(first: Path, second: Path) -> bool:
    try:
        one, other = first.lstat(), second.lstat()
    except OSError:
        return False
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _strays(slot: Path, known: set[str]) -> list[Path]:
    """What lies in a slot and must not: files that are not listed, links, folders that are not needed."""
    folders = {slot, *(parent for path in known for parent in _parents(slot, path))}
    found: list[Path] = []
    for folder in sorted(folders):
        if not folder.is_dir() or folder.is_symlink():
            continue
        for entry in os.scandir(folder):
            path = slot.__class__(entry.path)
            inside = path.relative_to(slot).as_posix()
            is_folder = entry.is_dir(follow_symlinks=False)
            if (path not in folders if is_folder else inside not in known) or entry.is_symlink():
                found.append(path)
    return found
