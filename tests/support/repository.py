"""A repository for tests: the real one, with keys in memory, so that making it takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from securesystemslib.signer import CryptoSigner, Key, Signer
from tuf.api.exceptions import DownloadHTTPError
from tuf.ngclient import Updater
from tuf.ngclient.fetcher import FetcherInterface

from edgeonnx.repository import Files, Published, Repository, Settings, create_repository
from edgeonnx.repository import publish as publish_bundle
from edgeonnx.repository.publish import NEWEST_BEFORE, DeltaBase
from edgeonnx.repository.rollout import change_offer
from edgeonnx.repository.signing.roles import ROLES, ROOT, utc_now
from edgeonnx.repository.state import versions_on_disk
from edgeonnx.spec.rollout import WHOLE, Channel, OfferState


class MemoryKeys:
    """Private keys that are nowhere but here."""

    def __init__(self) -> None:
        self.signers: dict[str, CryptoSigner] = {}

    def generate(self) -> Key:
        """Make a key; returns the public part."""
        signer = CryptoSigner.generate_ed25519()
        self.signers[signer.public_key.keyid] = signer
        return signer.public_key

    def signer(self, key: Key) -> Signer | None:
        """What signs with a key."""
        return self.signers.get(key.keyid)

    def only(self, *keys: Key) -> MemoryKeys:
        """A store with some of the keys."""
        part = MemoryKeys()
        part.signers = {key.keyid: self.signers[key.keyid] for key in keys}
        return part


class TestRepository:
    """A repository in a folder, one key for each role.

    Attributes:
        path: Its folder.
        keys: All private keys.
        role_keys: The public keys of each role.
        repository: What the commands work on.
        url: Where a server serves it; set by whoever starts one.
    """

    __test__ = False

    def __init__(self, repository: Repository, keys: MemoryKeys, role_keys: dict[str, list[Key]]) -> None:
        self.repository = repository
        self.path = repository.files.root
        self.keys = keys
        self.role_keys = role_keys
        self.url = ""

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        thresholds: dict[str, int] | None = None,
        settings: Settings | None = None,
        now: Callable[[], datetime] = utc_now,
        files: Files | None = None,
    ) -> TestRepository:
        """Make one in a folder that is empty or does not exist.

        Args:
            folder: The folder.
            thresholds: How many keys a role has, all of which must sign; 1 for roles that are absent.
            settings: Periods of expiry, for example.
            now: Gives the time of every change.
            files: The folder's files, instead of those of `folder`.
        """
        keys = MemoryKeys()
        needed = thresholds or {}
        role_keys = {role: [keys.generate() for _ in range(needed.get(role, 1))] for role in ROLES}
        repository = Repository(folder, now=now, files=files)
        create_repository(repository.files, role_keys, keys, thresholds=needed, settings=settings, now=now())
        return cls(repository, keys, role_keys)

    def publish(
        self,
        bundle: Path,
        channel: str = "stable",
        share: int = WHOLE,
        *,
        minimum_version: str | None = None,
        deltas: DeltaBase | None = NEWEST_BEFORE,
        force: bool = False,
    ) -> Published:
        """Publish a bundle; name and version are its own."""
        return publish_bundle(
            self.repository,
            bundle,
            self.keys,
            channel=channel,
            share=share,
            minimum_version=minimum_version,
            deltas=deltas,
            force=force,
        )

    def rollout(
        self,
        model: str,
        version: str,
        channel: str = "stable",
        *,
        share: int | None = None,
        state: OfferState | None = None,
        minimum_version: str | None = None,
        force: bool = False,
    ) -> Channel:
        """Change the offer of a release."""
        return change_offer(
            self.repository,
            self.keys,
            channel=channel,
            model=model,
            version=version,
            share=share,
            state=state,
            minimum_version=minimum_version,
            force=force,
        )

    @property
    def root_bytes(self) -> bytes:
        """The first root: what a device is enrolled with."""
        return (self.path / "metadata" / "1.root.json").read_bytes()

    @property
    def newest_root_bytes(self) -> bytes:
        """The newest root."""
        version = versions_on_disk(self.repository.files, ROOT)[-1]
        return (self.path / "metadata" / f"{version}.root.json").read_bytes()


class Reader:
    """A plain TUF client of python-tuf on a repository's folder: what any client makes of the metadata.

    Args:
        repository: The repository's folder.
        folder: Where it keeps what it trusts.
        root: What it trusts first.
    """

    def __init__(self, repository: Path, folder: Path, root: bytes) -> None:
        self._repository = repository
        self._folder = folder
        self._root: bytes | None = root
        folder.mkdir(parents=True, exist_ok=True)

    def refresh(self) -> Updater:
        """Follow the metadata; raises what python-tuf raises."""
        updater = Updater(
            str(self._folder),
            f"{self._repository}/metadata/",
            target_dir=str(self._folder),
            target_base_url=f"{self._repository}/targets/",
            fetcher=_FolderFetcher(),
            bootstrap=self._root,
        )
        self._root = None
        updater.refresh()
        return updater

    def target(self, path: str) -> bytes | None:
        """A target's verified bytes, or None if nobody signed it."""
        updater = self.refresh()
        found = updater.get_targetinfo(path)
        return None if found is None else Path(updater.download_target(found, str(self._folder / "t"))).read_bytes()


class _FolderFetcher(FetcherInterface):
    def _fetch(self, url: str) -> Iterator[bytes]:
        file = Path(url)
        if not file.is_file():
            raise DownloadHTTPError("not found", 404)
        return iter([file.read_bytes()])
