"""Publishing: what is written, in which order, and what is left if it is stopped."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import shutil
import threading
from pathlib import Path

import pytest

from edgeonnx.bundle import open_bundle
from edgeonnx.errors import BundleError, KeyStoreError, RepositoryBusyError, RepositoryError, UsageError
from edgeonnx.repository import Files, Repository, files
from edgeonnx.repository import publish as publish_bundle
from edgeonnx.repository.files import BLOBS_LOCK, LOCK
from edgeonnx.repository.publish import DeltaBase
from edgeonnx.repository.signing.ceremony import discard_pending, rotate_key, sign_pending
from edgeonnx.repository.signing.pending import PENDING
from edgeonnx.repository.upkeep.verify import verify
from edgeonnx.spec.release import Release, blob_path, delta_path
from edgeonnx.spec.rollout import WHOLE, Channel, OfferState
from tests.support.bundles import CPU_VARIANTS, make_bundle
from tests.support.repository import Reader, TestRepository
from tests.support.tamper import leave_out
from tests.unit.repository.conftest import copy_of

RELEASE = "releases/tiny/1.1.0.json"


def snapshot_of(folder: Path) -> dict[str, bytes]:
    """All served files."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".edgeonnx" not in path.parts
    }


def clean(repository: Repository) -> bool:
    return verify(repository).faults == []


def test_a_client_finds_the_release_its_channel_and_all_contents(
    published: TestRepository, bundles: dict[str, Path], tmp_path: Path
) -> None:
    reader = Reader(published.path, tmp_path, published.root_bytes)
    release = Release.from_bytes(reader.target(RELEASE) or b"")
    bundle = open_bundle(bundles["1.1.0"])
    assert (release.name, release.version, release.contents) == ("tiny", "1.1.0", bundle.digest)
    assert release.contents_size == (bundle.root / "contents.json").stat().st_size
    assert release.size == bundle.contents.total_size
    channel = Channel.from_bytes(reader.target("channels/stable.json") or b"")
    assert [(offer.version, offer.share) for offer in channel.models["tiny"].offers] == [
        ("1.1.0", 100_000),
        ("1.0.0", WHOLE),
    ]
    for digest in (release.contents, *(entry.sha256 for entry in bundle.contents.files)):
        assert (published.path / blob_path(digest)).is_file()
    assert clean(published.repository)


def test_only_contents_that_are_new_are_written(repository: TestRepository, bundles: dict[str, Path]) -> None:
    before = snapshot_of(repository.path)
    done = repository.publish(bundles["second"])
    written = {path for path in snapshot_of(repository.path) if path not in before and path.startswith("blobs/")}
    assert len(written) == done.written.blobs
    assert done.written.present > 0
    assert sum((repository.path / path).stat().st_size for path in written) == done.written.wire_bytes


def test_the_same_bundle_gives_the_same_blobs(
    repository: TestRepository, bundles: dict[str, Path], tmp_path: Path
) -> None:
    other = TestRepository.create(tmp_path / "other")
    other.publish(bundles["1.0.0"])
    other.publish(bundles["1.1.0"])

    def contents(folder: Path) -> dict[str, bytes]:
        return {path: data for path, data in snapshot_of(folder).items() if path.startswith(("blobs", "deltas"))}

    assert contents(other.path) == contents(repository.path)


def test_publishing_again_changes_nothing(repository: TestRepository, bundles: dict[str, Path]) -> None:
    before = snapshot_of(repository.path)
    done = repository.publish(bundles["1.1.0"], share=100_000)
    assert not done.new
    assert snapshot_of(repository.path) == before


def test_publishing_again_may_change_the_share_alone(repository: TestRepository, bundles: dict[str, Path]) -> None:
    before = repository.repository.state()
    done = repository.publish(bundles["1.1.0"], share=500_000)
    after = repository.repository.state()
    assert done.channel.models["tiny"].offers[0].share == 500_000
    assert after.targets("releases") == before.targets("releases")
    assert after.targets("rollout").version == before.targets("rollout").version + 1


def test_another_bundle_of_a_published_version_is_refused(repository: TestRepository, bundles: dict[str, Path]) -> None:
    before = snapshot_of(repository.path)
    with pytest.raises(UsageError, match="published with other contents"):
        repository.publish(bundles["other"])
    assert snapshot_of(repository.path) == before


def test_a_damaged_bundle_is_refused_before_anything_is_written(
    repository: TestRepository, bundles: dict[str, Path], tmp_path: Path
) -> None:
    bundle = tmp_path / "second-2.0.0"
    shutil.copytree(bundles["second"], bundle)
    graph = next(bundle.rglob("model.onnx"))
    graph.write_bytes(graph.read_bytes()[:-1] + b"\xff")
    before = snapshot_of(repository.path)
    with pytest.raises(BundleError):
        repository.publish(bundle)
    assert snapshot_of(repository.path) == before


def test_a_damaged_or_lost_blob_is_repaired(repository: TestRepository, bundles: dict[str, Path]) -> None:
    first, second, third = sorted((repository.path / "blobs").rglob("*.zst"))[:3]
    whole = {path: path.read_bytes() for path in (first, second, third)}
    first.unlink()
    second.write_bytes(b"")
    third.write_bytes(whole[first])
    assert len(verify(repository.repository).faults) >= 3
    repository.publish(bundles["1.0.0"])
    repository.publish(bundles["1.1.0"], share=100_000)
    assert {path: path.read_bytes() for path in whole} == whole
    assert clean(repository.repository)


def test_deltas_are_made_from_the_newest_release_before_and_repaired(
    repository: TestRepository, bundles: dict[str, Path]
) -> None:
    done = repository.publish(bundles["1.1.0"], share=100_000)
    assert done.release.deltas
    paths = [repository.path / delta_path(delta) for delta in done.release.deltas]
    whole = [file.read_bytes() for file in paths]
    assert [len(data) for data in whole] == [delta.size for delta in done.release.deltas]
    paths[0].write_bytes(whole[0][:-1])
    assert not clean(repository.repository)
    repository.publish(bundles["1.1.0"], share=100_000)
    assert [file.read_bytes() for file in paths] == whole


def test_deltas_are_left_out_or_made_from_a_named_release(tmp_path: Path, bundles: dict[str, Path]) -> None:
    made = TestRepository.create(tmp_path / "repo")
    made.publish(bundles["1.0.0"])
    with pytest.raises(UsageError, match="no such release to make deltas from"):
        made.publish(bundles["1.1.0"], deltas=DeltaBase(version="0.9.0"))
    assert not made.publish(bundles["1.1.0"], deltas=None).release.deltas
    other = TestRepository.create(tmp_path / "other")
    other.publish(bundles["1.0.0"])
    assert other.publish(bundles["1.1.0"], deltas=DeltaBase(version="1.0.0")).release.deltas


@pytest.mark.parametrize("name", [LOCK, BLOBS_LOCK])
def test_two_publishers_are_kept_apart(
    repository: TestRepository, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(files, "WAIT_SECONDS", 0.1)
    with Files(repository.path).lock(name), pytest.raises(RepositoryBusyError, match="another process"):
        repository.publish(bundles["second"])
    repository.publish(bundles["second"])


def test_a_rollout_is_halted_while_a_release_is_being_published(
    repository: TestRepository, bundles: dict[str, Path]
) -> None:
    halted: list[Channel] = []

    def halt(done: int, _: int) -> None:
        if done == 1:
            halted.append(repository.rollout("tiny", "1.1.0", state=OfferState.HALTED))

    publish_bundle(repository.repository, bundles["second"], repository.keys, channel="stable", share=5, on_blob=halt)
    assert len(halted) == 1
    channel = repository.rollout("tiny", "1.1.0")
    assert channel.models["tiny"].offers[0].state is OfferState.HALTED
    assert channel.models["second"].offers[0].share == 5
    assert clean(repository.repository)


def test_the_lock_of_the_signed_state_is_waited_for(repository: TestRepository) -> None:
    with contextlib.ExitStack() as held:
        held.enter_context(Files(repository.path).lock())
        release = threading.Timer(0.1, held.close)
        release.start()
        repository.rollout("tiny", "1.1.0", share=900_000)
        release.join()


def test_without_a_key_nothing_is_written(repository: TestRepository, bundles: dict[str, Path]) -> None:
    before = snapshot_of(repository.path)
    online = repository.keys.only(*(repository.role_keys[role][0] for role in ("rollout", "snapshot", "timestamp")))
    with pytest.raises(KeyStoreError, match="no key of the role releases"):
        publish_bundle(repository.repository, bundles["second"], online, channel="stable", share=WHOLE)
    assert snapshot_of(repository.path) == before


def test_what_is_no_repository_is_said_to_be_none_and_stays_as_it_is(tmp_path: Path, bundles: dict[str, Path]) -> None:
    made = TestRepository.create(tmp_path / "repo")
    with pytest.raises(RepositoryError, match="is no repository"):
        publish_bundle(Repository(tmp_path / "nothing"), bundles["1.0.0"], made.keys, channel="stable", share=WHOLE)
    assert not (tmp_path / "nothing").exists()


def test_a_full_disk_is_said_to_be_full(repository: TestRepository, bundles: dict[str, Path]) -> None:
    class Full(Files):
        def put(self, path: Path, data: bytes | memoryview, mode: int) -> None:
            raise OSError(28, "No space left on device")

    full = TestRepository(Repository(repository.path, files=Full(repository.path)), repository.keys, {})
    with pytest.raises(RepositoryError, match="cannot be written") as caught:
        full.publish(bundles["second"])
    assert caught.value.found == "No space left on device"
    assert clean(repository.repository)


class TestThreshold:
    """A release that two people sign."""

    @pytest.fixture
    def shared(self, tmp_path: Path) -> TestRepository:
        return TestRepository.create(tmp_path / "shared", thresholds={"releases": 2})

    def parts(self, made: TestRepository) -> tuple[object, object, object]:
        """Keys of the first person, the second person, and the server."""
        first, second = made.role_keys["releases"]
        online = [made.role_keys[role][0] for role in ("rollout", "snapshot", "timestamp")]
        return made.keys.only(first), made.keys.only(second), made.keys.only(*online)

    def test_it_waits_for_the_second_and_then_for_the_server(
        self, shared: TestRepository, bundles: dict[str, Path], tmp_path: Path
    ) -> None:
        first, second, online = self.parts(shared)
        reader = Reader(shared.path, tmp_path / "reader", shared.root_bytes)
        done = publish_bundle(shared.repository, bundles["1.1.0"], first, channel="stable", share=70)  # type: ignore[arg-type]
        assert [(each.role, each.count) for each in done.missing] == [("releases", 1)]
        assert reader.target(RELEASE) is None
        signed, missing = sign_pending(shared.repository, first)  # type: ignore[arg-type]
        assert (signed, [each.role for each in missing]) == ([], ["releases"])
        signed, missing = sign_pending(shared.repository, second)  # type: ignore[arg-type]
        assert (signed, [each.role for each in missing]) == (["releases"], ["rollout", "snapshot", "timestamp"])
        assert reader.target(RELEASE) is None
        assert sign_pending(shared.repository, online)[1] == ()  # type: ignore[arg-type]
        assert reader.target(RELEASE) is not None
        assert Channel.from_bytes(reader.target("channels/stable.json") or b"").models["tiny"].offers[0].share == 70
        assert not (shared.path / PENDING).exists()
        assert clean(shared.repository)
        with pytest.raises(UsageError, match="nothing waits"):
            sign_pending(shared.repository, second)  # type: ignore[arg-type]

    def test_nothing_else_is_published_meanwhile_unless_it_is_dropped(
        self, shared: TestRepository, bundles: dict[str, Path]
    ) -> None:
        first = self.parts(shared)[0]
        publish_bundle(shared.repository, bundles["1.1.0"], first, channel="stable", share=WHOLE)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="waits for signatures"):
            shared.publish(bundles["1.0.0"])
        with pytest.raises(UsageError, match="waits for signatures"):
            rotate_key(shared.repository, shared.keys, "rollout", shared.keys.generate)
        assert discard_pending(shared.repository)
        assert not discard_pending(shared.repository)
        assert shared.publish(bundles["1.0.0"]).missing == ()

    def test_the_online_keys_work_meanwhile(self, shared: TestRepository, bundles: dict[str, Path]) -> None:
        first, second, _ = self.parts(shared)
        shared.publish(bundles["1.0.0"], share=10)
        publish_bundle(shared.repository, bundles["1.1.0"], first, channel="stable", share=5)  # type: ignore[arg-type]
        shared.rollout("tiny", "1.0.0", state=OfferState.HALTED)
        sign_pending(shared.repository, second)  # type: ignore[arg-type]
        sign_pending(shared.repository, shared.keys)
        state = shared.repository.state()
        assert sorted(state.targets("releases").targets) == ["releases/tiny/1.0.0.json", RELEASE]
        assert shared.rollout("tiny", "1.1.0").models["tiny"].offers[1].state is OfferState.HALTED

    def test_signatures_over_a_repository_that_went_on_are_refused(
        self, shared: TestRepository, bundles: dict[str, Path]
    ) -> None:
        first = self.parts(shared)[0]
        publish_bundle(shared.repository, bundles["1.1.0"], first, channel="stable", share=5)  # type: ignore[arg-type]
        waiting = (shared.path / PENDING).read_bytes()
        discard_pending(shared.repository)
        shared.publish(bundles["1.0.0"])
        (shared.path / PENDING).write_bytes(waiting)
        with pytest.raises(RepositoryError, match="has changed since"):
            sign_pending(shared.repository, shared.keys)

    def test_one_that_is_out_but_was_not_dropped_is_forgotten(
        self, shared: TestRepository, bundles: dict[str, Path]
    ) -> None:
        first = self.parts(shared)[0]
        publish_bundle(shared.repository, bundles["1.1.0"], first, channel="stable", share=5)  # type: ignore[arg-type]
        waiting = (shared.path / PENDING).read_bytes()
        sign_pending(shared.repository, shared.keys)
        (shared.path / PENDING).write_bytes(waiting)
        assert shared.publish(bundles["1.0.0"]).missing == ()
        assert not (shared.path / PENDING).exists()


class PowerCut(BaseException):
    """The machine is off."""


class CutFiles(Files):
    """Files that stop at one of their steps, and for good: a write that is cut leaves half of its bytes.

    Nothing is synced, which would take most of the time: the steps are counted all the same.
    """

    def __init__(self, root: Path, at: int) -> None:
        super().__init__(root)
        self.steps = itertools.count()
        self.at = at

    def step(self) -> None:
        if next(self.steps) >= self.at:
            raise PowerCut

    def put(self, path: Path, data: bytes | memoryview, mode: int) -> None:
        try:
            self.step()
        except PowerCut:
            if not path.exists():
                path.write_bytes(data[: len(data) // 2])
            raise
        path.write_bytes(data)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        super().rename(source, target)

    def sync(self, folder: Path) -> None:
        self.step()

    def unlink(self, path: Path) -> None:
        self.step()
        super().unlink(path)


def steps_of(published: TestRepository, bundle: Path, folder: Path) -> int:
    """How many steps publishing a bundle takes."""
    made = copy_of(published, folder)
    counted = CutFiles(made.path, at=1_000_000)
    TestRepository(Repository(made.path, files=counted), made.keys, made.role_keys).publish(bundle)
    return next(counted.steps)


def test_stopped_at_any_step_the_old_state_is_whole_and_the_next_publisher_ends_it(
    published: TestRepository, bundles: dict[str, Path], tmp_path: Path
) -> None:
    steps = steps_of(published, bundles["1.2.0"], tmp_path / "count")
    assert steps > 20
    before, contents = published.repository.state(), snapshot_of(published.path)
    finished = 0
    for at in range(steps):
        made = copy_of(published, tmp_path / f"cut{at}")
        stopped = TestRepository(Repository(made.path, files=CutFiles(made.path, at)), made.keys, made.role_keys)
        with contextlib.suppress(PowerCut):
            stopped.publish(bundles["1.2.0"])
        after = snapshot_of(made.path)
        changed = {path for path, data in contents.items() if after[path] != data}
        assert changed <= {"metadata/timestamp.json"}, f"step {at}"
        if changed:
            finished += 1
            assert clean(made.repository), f"step {at}"
        else:
            assert made.repository.state() == before
        if at % 4 == 0 or changed:  # the rest is the same for all
            made.publish(bundles["1.2.0"])
            assert clean(made.repository), f"step {at}"
            assert not [path for path in made.path.rglob("*.new") if path.is_file()], f"step {at}"
            assert Reader(made.path, tmp_path / f"r{at}", made.root_bytes).target("releases/tiny/1.2.0.json")
        shutil.rmtree(made.path)
    assert finished == 1  # the folder's sync after the timestamp's rename


def test_no_name_is_given_to_two_contents_by_a_publisher_that_follows_one_that_was_stopped(
    published: TestRepository, bundles: dict[str, Path], tmp_path: Path
) -> None:
    steps = steps_of(published, bundles["1.2.0"], tmp_path / "count")
    made = copy_of(published, tmp_path / "cut")
    cut = CutFiles(made.path, steps - 3)  # all but the timestamp is written
    with contextlib.suppress(PowerCut):
        TestRepository(Repository(made.path, files=cut), made.keys, made.role_keys).publish(bundles["1.2.0"])
    left = {path: data for path, data in snapshot_of(made.path).items() if not path.endswith(".new")}
    made.publish(bundles["1.2.0"], share=5)
    after = snapshot_of(made.path)
    differing = [path for path, data in left.items() if after[path] != data]
    assert differing == ["metadata/timestamp.json"]
    assert hashlib.sha256(after["metadata/timestamp.json"]) != hashlib.sha256(left["metadata/timestamp.json"])


def test_a_devices_part_of_a_bundle_cannot_be_published(repository: TestRepository, tmp_path: Path) -> None:
    part = leave_out(make_bundle(tmp_path, variants=CPU_VARIANTS), "encoder/cpu-fp32")
    before = snapshot_of(repository.path)
    with pytest.raises(UsageError, match=r"only a whole bundle can be published.*without encoder/cpu-fp32"):
        repository.publish(part)
    assert snapshot_of(repository.path) == before
