"""Repositories that are signed by the right keys and still hostile or broken: what the bundle says is not believed.

Each case goes through the production updater with a device that serves a good release. It must keep that one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from device_agent.slots.states import AttemptState
from device_agent.update.install import staging
from edgeonnx.blobs.codec import compress
from edgeonnx.errors import BlobError, CandidateError, EdgeOnnxError, FetchError, UntrustedError
from edgeonnx.repository import Repository
from edgeonnx.repository.offers import OfferChange
from edgeonnx.repository.publish import add_target, conclude
from edgeonnx.repository.signing.roles import RELEASES
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.release import Delta, Release, blob_path, delta_path, release_target
from edgeonnx.spec.rollout import WHOLE
from tests.support.bundles import make_bundle
from tests.support.device import QuickFiles, TestDevice
from tests.support.repository import TestRepository

HTML = b"<!DOCTYPE html><html><body>Please log in</body></html>"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> tuple[TestRepository, Path]:
    """A repository with 1.0.0, and a device that serves it."""
    folder = tmp_path_factory.mktemp("start")
    repository = TestRepository.create(folder / "repo", files=QuickFiles(folder / "repo"))
    repository.publish(make_bundle(folder, version="1.0.0", seed=1))
    TestDevice(folder / "state", repository).install()
    return repository, folder


@pytest.fixture
def device(start: tuple[TestRepository, Path], tmp_path: Path) -> TestDevice:
    """A copy of both."""
    first, folder = start
    for name in ("repo", "state"):
        shutil.copytree(folder / name, tmp_path / name, symlinks=True)
    copy = Repository(tmp_path / "repo", files=QuickFiles(tmp_path / "repo"))
    return TestDevice(tmp_path / "state", TestRepository(copy, first.keys, first.role_keys))


def sign(device: TestDevice, release: Release, *, path: str | None = None) -> None:
    """Sign a release, whatever it says, and offer it to everybody."""
    repository = device.repository
    with repository.repository.changing() as draft:
        add_target(draft, RELEASES, path or release_target(release.name, release.version), release.to_bytes())
        change = OfferChange(
            channel="stable", model="tiny", version=release.version, contents=release.contents, share=WHOLE
        )
        assert conclude(draft, (change,), repository.keys) == ()


def blob(device: TestDevice, data: bytes) -> str:
    """Put a content into the repository; returns its digest."""
    digest = hashlib.sha256(data).hexdigest()
    path = device.repository.path / blob_path(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(compress(data, 1))
    return digest


def bundle_of(device: TestDevice, files: dict[str, bytes], **entry: object) -> Release:
    """A release of a bundle with some files; `entry` overrides what the list says of the first one."""
    listed = [{"path": path, "sha256": blob(device, data), "size": len(data)} for path, data in sorted(files.items())]
    listed[0].update(entry)
    data = canonical_json({"schema_version": "1.0", "files": listed})
    return Release(
        name="tiny", version="9.0.0", contents=blob(device, data), contents_size=len(data), size=1, deltas=()
    )


def files_of(folder: Path) -> dict[str, bytes]:
    """The sealed files of a bundle."""
    names = [path for path in folder.rglob("*") if path.is_file() and path.name != "contents.json"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in names}


def refused(device: TestDevice, kind: type[EdgeOnnxError], text: str) -> None:
    """The update fails in this way, and 1.0.0 serves on; nothing is left half-done outside of the state directory."""
    outcome = device.update()
    assert isinstance(outcome.error, kind), outcome.error
    assert text in str(outcome.error)
    device.check_active("1.0.0")
    assert device.update().decision.reason  # the next run runs


@pytest.mark.parametrize("path", ["../../../evil", "/etc/passwd", "a/../../b", "a\\b", "con", "a//b", ".hidden"])
def test_a_path_that_leaves_the_bundle(device: TestDevice, path: str) -> None:
    sign(device, bundle_of(device, {"manifest.json": b"{}"}, path=path))
    refused(device, CandidateError, "no bundle that this agent reads")
    assert not any("evil" in each.name for each in device.store.root.parent.rglob("*"))


def test_two_files_of_one_name(device: TestDevice) -> None:
    release = bundle_of(device, {"Manifest.json": b"{}", "manifest.json": b"{}"})
    sign(device, release)
    refused(device, CandidateError, "occurs twice")


@pytest.mark.parametrize("path", ["Evidence.json/inside", "contents.json/inside", "partial.json/inside"])
def test_a_file_that_is_also_a_folder(device: TestDevice, tmp_path: Path, path: str) -> None:
    files = files_of(make_bundle(tmp_path, version="9.0.0", seed=2))
    sign(device, bundle_of(device, {**files, path: b"x"}))
    refused(device, CandidateError, "is also a folder")


def test_a_list_with_more_files_than_a_bundle_has(device: TestDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MAX_FILES", 3)
    sign(device, bundle_of(device, dict.fromkeys(("a", "b", "c", "manifest.json"), b"{}")))
    refused(device, CandidateError, "too many files")


def test_a_list_of_a_million_files_is_not_even_fetched(device: TestDevice) -> None:
    release = bundle_of(device, {"manifest.json": b"{}"})
    sign(device, replace(release, contents_size=150 << 20))
    refused(device, CandidateError, "list of files is too large")


def test_a_bundle_without_a_manifest(device: TestDevice) -> None:
    sign(device, bundle_of(device, {"a": b"{}"}))
    refused(device, CandidateError, "manifest.json")


def test_a_list_that_holds_what_belongs_to_the_device(device: TestDevice, tmp_path: Path) -> None:
    files = files_of(make_bundle(tmp_path, version="9.0.0", seed=2))
    sign(device, bundle_of(device, {**files, "partial.json": b"{}"}))
    refused(device, CandidateError, "partial.json")


@pytest.mark.parametrize(("name", "version"), [("another", "9.0.0"), ("tiny", "8.0.0")])
def test_a_bundle_whose_manifest_says_another_name(device: TestDevice, tmp_path: Path, name: str, version: str) -> None:
    files = files_of(make_bundle(tmp_path, name=name, version=version, seed=2))
    sign(device, bundle_of(device, files))
    refused(device, CandidateError, f"found {name} {version}")


def test_a_release_of_another_model_under_this_one_s_path(device: TestDevice) -> None:
    release = bundle_of(device, {"manifest.json": b"{}"})
    sign(device, replace(release, name="another"), path=release_target("tiny", "9.0.0"))
    refused(device, UntrustedError, "disagree")


def test_a_channel_that_offers_what_was_never_signed(device: TestDevice) -> None:
    repository = device.repository
    with repository.repository.changing() as draft:
        change = OfferChange(channel="stable", model="tiny", version="9.0.0", contents="a" * 64, share=WHOLE)
        assert conclude(draft, (change,), repository.keys) == ()
    refused(device, UntrustedError, "never signed")


def test_a_channel_that_gives_a_signed_version_another_digest(device: TestDevice) -> None:
    release = bundle_of(device, {"manifest.json": b"{}"})
    sign(device, release)
    channel = next((device.repository.path / "targets" / "channels").glob("*.stable.json"))
    assert channel.exists()
    with device.repository.repository.changing() as draft:
        add_target(draft, RELEASES, release_target("tiny", "9.0.0"), replace(release, contents="b" * 64).to_bytes())
        assert conclude(draft, (), device.repository.keys) == ()
    refused(device, UntrustedError, "disagree")


@pytest.mark.parametrize("data", [b"", b"no zstd", HTML, compress(b"another content"), compress(bytes(1 << 26), 1)])
def test_a_list_of_files_that_is_something_else(device: TestDevice, data: bytes) -> None:
    release = bundle_of(device, {"manifest.json": b"{}"})
    (device.repository.path / blob_path(release.contents)).write_bytes(data)
    sign(device, release)
    refused(device, (BlobError, FetchError), "")  # type: ignore[arg-type]
    state = device.state()
    assert state.blocked == ()  # whoever changes a mirror must not be able to lock devices out of a release
    assert state.attempt is not None
    assert state.attempt.state is AttemptState.DOWNLOADING


@pytest.mark.parametrize("wire", [b"", b"garbage", compress(b"other bytes of this size!"), HTML, None])
def test_a_delta_that_decodes_to_something_else_costs_only_bytes(
    device: TestDevice, tmp_path: Path, wire: bytes | None
) -> None:
    files = files_of(make_bundle(tmp_path, version="9.0.0", seed=2))
    release = bundle_of(device, files)
    target = hashlib.sha256(files["evidence.json"]).hexdigest()
    active = device.state().active
    assert active is not None
    delta = Delta(target=target, base=active.contents, encoding="dictionary", size=max(1, len(wire or b"")))
    if wire is not None:
        path = device.repository.path / delta_path(delta)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wire)
    sign(device, replace(release, deltas=(delta,)))
    (device.store.blob(target)).unlink(missing_ok=True)
    outcome = device.update()
    assert outcome.error is None, outcome.error
    device.commit()
    device.check_active("9.0.0")


@pytest.mark.parametrize("name", ["timestamp.json", "3.snapshot.json", "3.rollout.json"])
def test_a_captive_portal_s_page_instead_of_metadata(device: TestDevice, tmp_path: Path, name: str) -> None:
    device.repository.publish(make_bundle(tmp_path, version="1.1.0", seed=2))
    path = device.repository.path / "metadata" / name
    assert path.exists()
    path.write_bytes(HTML)
    with pytest.raises((UntrustedError, FetchError)):
        device.update()
    device.check_active("1.0.0")


@pytest.mark.parametrize(
    "document",
    [b"[]", b"{}", b"\xff", b'{"schema_version": "2.0"}', json.dumps({"schema_version": "1.0"}).encode()],
)
def test_a_signed_channel_that_cannot_be_read(device: TestDevice, document: bytes) -> None:
    from edgeonnx.repository.signing.roles import ROLLOUT

    with device.repository.repository.changing() as draft:
        add_target(draft, ROLLOUT, "channels/stable.json", document)
        assert conclude(draft, (), device.repository.keys) == ()
    with pytest.raises(UntrustedError, match="channel cannot be read"):
        device.update()
    device.check_active("1.0.0")


def test_a_signed_channel_under_another_one_s_path(device: TestDevice, tmp_path: Path) -> None:
    from edgeonnx.repository.signing.roles import ROLLOUT

    make: Callable[[str], bytes] = lambda name: canonical_json(  # noqa: E731
        {"schema_version": "1.0", "channel": name, "models": {}}
    )
    with device.repository.repository.changing() as draft:
        add_target(draft, ROLLOUT, "channels/stable.json", make("beta"))
        assert conclude(draft, (), device.repository.keys) == ()
    with pytest.raises(UntrustedError, match="another one"):
        device.update()
