"""Contents of a release: what is here, what is fetched, as a delta or whole."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from device_agent.config import UpdateConfig
from device_agent.slots.store import Store
from device_agent.update.install.contents import Contents
from device_agent.update.transfer.downloader import Downloader
from device_agent.update.transfer.sources.folder import FolderSource
from edgeonnx.blobs import delta as deltas
from edgeonnx.blobs.codec import compress
from edgeonnx.errors import BlobError, FetchError
from edgeonnx.spec.contents import FileEntry
from edgeonnx.spec.release import Delta, Release, blob_path, delta_path
from tests.support.device import QuickDisk

OLD = bytes(range(256)) * 40
NEW = OLD[:5000] + bytes((byte + 1) % 256 for byte in OLD[5000:5100]) + OLD[5100:]


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Place:
    """A repository's folder, and a device that fetches from it."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "repository"
        self.repository.mkdir()
        self.store = Store(folder / "state", QuickDisk())
        self.store.prepare()
        self.delta = Delta(target=digest_of(NEW), base=digest_of(OLD), encoding=deltas.DIFFERENCE, size=1)

    def put(self, path: str, data: bytes) -> None:
        target = self.repository / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def publish(self, *contents: bytes) -> None:
        for data in contents:
            self.put(blob_path(digest_of(data)), compress(data))

    def offer_delta(self, wire: bytes) -> None:
        self.delta = Delta(
            target=self.delta.target, base=self.delta.base, encoding=self.delta.encoding, size=max(1, len(wire))
        )
        self.put(delta_path(self.delta), wire)

    def contents(self) -> Contents:
        downloader = Downloader(FolderSource(self.repository), UpdateConfig(retries=0), self.store.disk)
        release = Release(name="tiny", version="1", contents="0" * 64, contents_size=1, size=1, deltas=(self.delta,))
        return Contents(self.store, downloader, release)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_content_is_fetched_once_and_cannot_be_written_to(place: Place) -> None:
    place.publish(OLD)
    contents = place.contents()
    path = contents.ensure(digest_of(OLD), len(OLD))
    assert path.read_bytes() == OLD
    assert path.stat().st_mode & 0o777 == 0o444
    (place.repository / blob_path(digest_of(OLD))).unlink()
    assert contents.ensure(digest_of(OLD), len(OLD)) == path
    assert place.contents().has(digest_of(OLD))
    assert contents.fetched == 1
    assert list(place.store.incoming.iterdir()) == []


def test_what_rotted_on_the_disk_is_fetched_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.publish(OLD)
    path = place.contents().ensure(digest_of(OLD), len(OLD))
    path.chmod(0o600)
    path.write_bytes(NEW)
    contents = place.contents()
    assert not contents.has(digest_of(OLD))
    assert "is damaged and is fetched again" in caplog.text
    assert contents.ensure(digest_of(OLD), len(OLD)).read_bytes() == OLD


def test_a_delta_is_taken_where_its_base_is_here_and_its_size_is_foreseen(place: Place) -> None:
    place.publish(OLD)
    place.offer_delta(deltas.encode(deltas.DIFFERENCE, OLD, NEW))
    contents = place.contents()
    entry = FileEntry(path="a", size=len(NEW), sha256=digest_of(NEW))
    whole = contents.wire_bytes([entry])
    with pytest.raises(FetchError):  # the base is not here, and there is no full blob
        contents.ensure(entry.sha256, entry.size)
    contents.ensure(digest_of(OLD), len(OLD))
    assert contents.wire_bytes([entry]) == place.delta.size < whole
    assert contents.ensure(entry.sha256, entry.size).read_bytes() == NEW


@pytest.mark.parametrize("wire", [b"no frame", deltas.encode(deltas.DIFFERENCE, OLD, OLD)])
def test_a_delta_that_does_not_work_out_costs_bytes_and_nothing_else(
    place: Place, wire: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    place.publish(OLD, NEW)
    place.offer_delta(wire)
    contents = place.contents()
    contents.ensure(digest_of(OLD), len(OLD))
    assert contents.ensure(digest_of(NEW), len(NEW)).read_bytes() == NEW
    assert "is not used, the whole content is fetched" in caplog.text


def test_a_blob_of_another_content_gets_no_name(place: Place) -> None:
    place.put(blob_path(digest_of(OLD)), compress(NEW))
    with pytest.raises(BlobError, match=f"blobs/sha256/.*is another content.*{digest_of(OLD)}"):
        place.contents().ensure(digest_of(OLD), len(OLD))
    assert not place.store.blob(digest_of(OLD)).exists()
    assert list(place.store.incoming.iterdir()) == []


def test_the_first_of_several_that_fails_ends_the_rest_and_what_arrived_is_kept(place: Place) -> None:
    many = [bytes([value]) * 1000 for value in range(6)]
    place.publish(*many[:3])
    entries = [FileEntry(path=str(index), size=1000, sha256=digest_of(data)) for index, data in enumerate(many)]
    with pytest.raises(FetchError):
        place.contents().ensure_all(entries, connections=1)
    assert [place.contents().has(entry.sha256) for entry in entries] == [True] * 3 + [False] * 3
