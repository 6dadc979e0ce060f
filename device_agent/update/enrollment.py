"""Which repository a device belongs to: written once by `edgeonnx-agent enroll`, read by every update."""

from __future__ import annotations

import re
import secrets
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from device_agent.slots.disk import Disk, read_file
from device_agent.slots.store import UPDATE_LOCK
from edgeonnx.errors import EdgeOnnxError, NotEnrolledError, StateError, UsageError
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.paths import check_bundle_name
from edgeonnx.spec.release import channel_target

if TYPE_CHECKING:
    from device_agent.config import UpdateConfig
    from device_agent.slots.store import Store
    from edgeonnx.spec.rollout import Channel

ENROLLMENT_FILE = "enrollment.json"
ENROLLMENT_SCHEMA = "1.0"
MAX_BYTES = 1 << 16
MAX_ROOT_BYTES = 512_000

_DEVICE = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, kw_only=True)
class Enrollment:
    """What `enrollment.json` says.

    Attributes:
        url: The repository: http, https or file.
        channel: Whose offers it follows.
        device: This device's id, which decides its cohorts. It is made up at enrolment and says nothing of the box.
        models: Models that it installs; empty: every model of the channel.
    """

    url: str
    channel: str
    device: str
    models: tuple[str, ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes) -> Enrollment:
        """Read the file.

        Raises:
            ManifestError, SchemaVersionError, UsageError: It is damaged, or of another version.
        """
        node = parse_document(data, ENROLLMENT_FILE).version("schema_version", known=ENROLLMENT_SCHEMA)
        node.only(("schema_version", "url", "channel", "device", "models"))
        return cls(
            url=node.text("url"),
            channel=check_bundle_name(node.text("channel")),
            device=check_device_id(node.text("device")),
            models=tuple(check_bundle_name(item.typed(str)) for item in node.required("models").items()),
        )

    def to_bytes(self) -> bytes:
        """The file."""
        return canonical_json(
            {
                "schema_version": ENROLLMENT_SCHEMA,
                "url": self.url,
                "channel": self.channel,
                "device": self.device,
                "models": list(self.models),
            }
        )


def new_device_id() -> str:
    """A random device id of 128 bits."""
    return secrets.token_hex(16)


def check_device_id(device: str) -> str:
    """Return `device` if it can be a device's id.

    Raises:
        UsageError: It is empty, longer than 128 characters, or has spaces or characters outside ASCII.
    """
    if _DEVICE.fullmatch(device) is None:
        raise UsageError(
            "is no id of a device",
            where="--device",
            expected="1 to 128 printable ASCII characters without spaces",
            found=repr(device[:40]),
        )
    return device


def repository_url(text: str) -> str:
    """The URL of a repository that was given as one, or as a folder (a stick, a mounted share).

    Raises:
        UsageError: It is neither.
    """
    if "://" in text:
        return text.rstrip("/")
    if Path(text).is_dir():
        return Path(text).resolve().as_uri()
    raise UsageError(
        "is no repository",
        where="--repo",
        expected="https://..., http://... or a folder",
        found=repr(text[:200]),
    )


def read_root_file(path: Path) -> bytes:
    """The bytes of the root that an operator hands over.

    Raises:
        UsageError: The file cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_ROOT_BYTES + 1)
    except OSError as error:
        raise UsageError(
            "the root cannot be read",
            where=f"--root: {path}",
            found=error.strerror or str(error),
            hint="`edgeonnx repo init` wrote it as metadata/1.root.json of the repository",
        ) from None
    if len(data) > MAX_ROOT_BYTES:
        raise UsageError("is no root", where=f"--root: {path}", expected=f"at most {MAX_ROOT_BYTES:,} bytes")
    return data


def read_enrollment(store: Store) -> Enrollment:
    """What this device is enrolled to.

    Raises:
        NotEnrolledError: It is not enrolled.
        StateError: The file cannot be read.
    """
    path = store.root / ENROLLMENT_FILE
    try:
        return Enrollment.from_bytes(read_file(path, limit=MAX_BYTES))
    except FileNotFoundError:
        raise NotEnrolledError(
            "this device is not enrolled",
            where=str(store.root),
            hint="edgeonnx-agent enroll --repo URL --root root.json --state-dir DIR",
        ) from None
    except (OSError, EdgeOnnxError) as error:
        raise StateError(
            "the enrolment cannot be read",
            where=str(path),
            found=str(error),
            hint="enrol again; what is installed stays",
        ) from None


def write_enrollment(store: Store, enrollment: Enrollment) -> None:
    """Write it durably."""
    with store.writing("the enrolment"):
        store.disk.replace(store.root / ENROLLMENT_FILE, enrollment.to_bytes())


def present_enrollment(store: Store) -> Enrollment | None:
    """What this device is enrolled to; None if it is not, or if that cannot be read."""
    try:
        return read_enrollment(store)
    except (NotEnrolledError, StateError):
        return None


def check_repository(enrollment: Enrollment, root: bytes, settings: UpdateConfig) -> Channel:
    """Fetch and verify a repository's metadata once, without a trace in the state directory.

    A typing error in the URL or the channel, or the wrong root, is told here, and not in the first update at night.

    Args:
        enrollment: The repository and the channel.
        root: The root that the operator trusts.
        settings: `[update]`.

    Returns:
        The channel.

    Raises:
        UntrustedError: The root is none, or the repository is not signed by its keys.
        FetchError: The repository cannot be reached, or has no such file.
        UsageError: It has no such channel.
    """
    from device_agent.update.transfer.downloader import Downloader
    from device_agent.update.transfer.sources.factory import open_source
    from device_agent.update.transfer.sources.folder import FolderSource
    from device_agent.update.trust.clock import Clock
    from device_agent.update.trust.metadata import TrustedMetadata
    from edgeonnx.spec.rollout import Channel

    with tempfile.TemporaryDirectory(prefix="edgeonnx-enroll-") as name:
        folder, disk = Path(name), Disk()
        # The root says when it was signed: with a clock that is behind that, certificates' times say nothing. Nothing
        # is fetched for pinning the root, so any source will do.
        clock = Clock(folder / "clock.json", disk)
        downloader = Downloader(FolderSource(folder), settings, disk)
        metadata = TrustedMetadata(folder / "metadata", downloader, clock, disk)
        metadata.bootstrap(root)
        source = open_source(enrollment.url, settings, check_times=not clock.behind)
        metadata = TrustedMetadata(folder / "metadata", Downloader(source, settings, disk), clock, disk)
        metadata.refresh()
        data = metadata.target(channel_target(enrollment.channel))
        if data is None:
            raise UsageError(
                "the repository has no such channel",
                where="--channel",
                found=enrollment.channel,
                hint="`edgeonnx rollout --show` lists the channels of a repository",
            )
        return Channel.from_bytes(data, file=channel_target(enrollment.channel))


def enroll(
    store: Store, enrollment: Enrollment, root: bytes, settings: UpdateConfig, *, force: bool = False
) -> Channel:
    """Enrol a device: pin the root and write down the repository, once it was checked.

    What is installed stays. With the root that is pinned already, or one that followed from it, what was accepted from
    the repository so far is remembered; another root belongs to another repository, and begins anew.

    Args:
        store: The state directory.
        enrollment: What to write.
        root: The root that the operator trusts.
        settings: `[update]`.
        force: Take another root than the one that is pinned.

    Returns:
        The channel, as it is now.

    Raises:
        UsageError: Another root is pinned, and `force` is not set.
        StateError, NoSpaceError: It could not be written.
        UntrustedError, FetchError: As `check_repository`.
    """
    from device_agent.update.transfer.downloader import Downloader
    from device_agent.update.transfer.sources.folder import FolderSource
    from device_agent.update.trust.clock import Clock
    from device_agent.update.trust.metadata import TrustedMetadata, read_root

    read_root(root)
    known = knows_root(store, root)
    if known is False and not force:
        raise UsageError(
            "this device is enrolled with another root of trust",
            where=str(store.root),
            expected="the root that is pinned, or one that followed from it",
            hint="--force follows the other repository from now on; what is installed stays and serves",
        )
    channel = check_repository(enrollment, root, settings)
    store.prepare()
    with store.locked(UPDATE_LOCK, "an update"):
        if known is not True:
            if known is False:
                # Without its enrolment a device updates nothing: a power cut leaves no mixture of two repositories.
                with store.writing("the enrolment"):
                    store.disk.remove(store.root / ENROLLMENT_FILE)
                    store.disk.sync_folder(store.root)
            clock = Clock(store.root / "clock.json", store.disk)
            downloader = Downloader(FolderSource(store.root), settings, store.disk)
            TrustedMetadata(store.metadata, downloader, clock, store.disk).bootstrap(root)
        write_enrollment(store, enrollment)
    return channel


def knows_root(store: Store, root: bytes) -> bool | None:
    """Whether a root is one that this device trusts already; None if it trusts none yet."""
    pinned = _bytes_of(store.metadata / "anchor" / "root.json")
    history = [_bytes_of(path) for path in sorted((store.metadata / "root_history").glob("*.root.json"))]
    trusted = [each for each in (pinned, *history) if each is not None]
    return root in trusted if trusted else None


def _bytes_of(path: Path) -> bytes | None:
    try:
        return read_file(path, limit=MAX_ROOT_BYTES)
    except OSError:
        return None


def with_changes(
    before: Enrollment | None, *, url: str, channel: str | None, models: tuple[str, ...], device: str | None
) -> Enrollment:
    """An enrolment from what was given; what was not given stays as it was before."""
    start = before or Enrollment(url=url, channel="stable", device=device or new_device_id())
    return replace(
        start,
        url=url,
        channel=check_bundle_name(channel or start.channel),
        device=check_device_id(device or start.device),
        models=tuple(check_bundle_name(name) for name in models) or start.models,
    )
