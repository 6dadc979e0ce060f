from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from device_agent.slots.states import AttemptState
from device_agent.update.byhand import pinned, rolled_back
from device_agent.update.install.trial import Kind, Verdict
from device_agent.update.policy import Action
from edgeonnx.bundle import open_bundle
from edgeonnx.errors import (
    BlobError,
    CandidateError,
    EdgeOnnxError,
    FetchError,
    NoSpaceError,
    StateError,
    UntrustedError,
)
from edgeonnx.spec.release import blob_path
from edgeonnx.spec.rollout import OfferState
from tests.support.device import NOW, QuickDisk, TestDevice
from tests.support.repository import TestRepository

Offer = Callable[[str], str]


def test_a_first_release_is_proven_and_nothing_is_active_before_it_serves(device: TestDevice) -> None:
    outcome = device.update()
    assert outcome.error is None
    assert outcome.state.attempt is not None
    assert outcome.state.attempt.state is AttemptState.PROVEN
    assert outcome.state.active is None
    device.commit()
    device.check_active("1.0.0")


def test_a_second_run_finds_nothing_to_do_and_writes_no_state(device: TestDevice) -> None:
    before = device.install()
    outcome = device.update()
    assert outcome.decision.action is Action.KEEP
    assert device.state() == before


def test_only_the_variant_of_this_machine_is_fetched(device: TestDevice, repository: TestRepository) -> None:
    device.install()
    active = device.state().active
    assert active is not None
    slot = device.store.slot("tiny", active.contents)
    assert open_bundle(slot).absent == {"encoder/cpu-fp32", "encoder/cpu-int8-7bit"}
    graphs = [path.parent.name for path in slot.rglob("model.onnx")]
    assert graphs == ["cpu-int8"]
    # The tensor that only the variant with 7 bits has outside its graph is not here.
    assert len(list(slot.glob("shared_assets/*/" + "[0-9a-f]" * 64))) == 1


def test_all_variants_are_fetched_where_the_settings_say_so(device: TestDevice) -> None:
    device.set(variants="all")
    device.install()
    active = device.state().active
    assert active is not None
    slot = device.store.slot("tiny", active.contents)
    assert open_bundle(slot).absent == frozenset()
    assert len(list(slot.rglob("model.onnx"))) == 3


def test_what_both_versions_have_is_not_fetched_again(device: TestDevice, offer: Offer) -> None:
    first = device.install().active
    assert first is not None
    slot = device.store.slot("tiny", first.contents)
    tokenizer = next(slot.rglob("tokenizer.json")).stat().st_ino
    first_bytes = device.received
    offer("1.1.0")
    device.install()
    active = device.state().active
    assert active is not None
    assert next(device.store.slot("tiny", active.contents).rglob("tokenizer.json")).stat().st_ino == tokenizer
    assert device.received < first_bytes


def test_an_update_leaves_the_active_slot_alone(device: TestDevice, offer: Offer) -> None:
    device.install()
    offer("1.1.0")
    device.update()
    device.check_active("1.0.0")
    device.commit()
    device.check_active("1.1.0")
    previous = device.state().previous
    assert previous is not None
    assert device.store.slot_fault("tiny", previous.contents, hashed=True) is None


def test_slots_that_nobody_needs_are_removed(device: TestDevice, offer: Offer) -> None:
    device.install()
    for version in ("1.1.0", "1.2.0"):
        offer(version)
        device.install()
    device.update()
    state = device.state()
    assert state.active is not None
    assert state.previous is not None
    slots = {path.name for path in device.store.slots("tiny").iterdir()}
    assert slots == {state.active.contents, state.previous.contents}
    assert list(device.store.incoming.iterdir()) == []


def test_a_candidate_that_is_wrong_is_refused_and_never_taken_again(device: TestDevice, offer: Offer) -> None:
    device.install()
    offer("1.1.0")
    device.prove = lambda *_: Verdict(kind=Kind.REJECTED, reason="the golden set is not reproduced")
    outcome = device.update()
    assert isinstance(outcome.error, CandidateError)
    assert "golden set" in str(outcome.error)
    device.check_active("1.0.0")
    again = device.update()
    assert again.decision.action is Action.KEEP
    assert again.error is None
    assert "failed on this device" in str(again.state.blocked) or again.state.blocked[0].version == "1.1.0"


def test_a_candidate_that_crashes_is_tried_as_often_as_allowed(device: TestDevice) -> None:
    tries: list[int] = []

    def crash(*_: object) -> Verdict:
        attempt = device.state().attempt
        assert attempt is not None
        tries.append(attempt.tries_left)
        return Verdict(kind=Kind.CRASHED, reason="ended by SIGSEGV")

    device.prove = crash
    outcome = device.update()
    assert tries == [2, 1, 0]  # each try is written down before the load
    assert outcome.state.attempt is not None
    assert outcome.state.attempt.state is AttemptState.REJECTED
    assert outcome.state.attempt.reason == "ended by SIGSEGV"


def test_a_candidate_that_took_the_machine_down_has_used_up_a_try(device: TestDevice) -> None:
    class PowerCut(BaseException):
        pass

    def cut(*_: object) -> Verdict:
        raise PowerCut

    device.prove = cut
    for left in (2, 1, 0):
        with pytest.raises(PowerCut):
            device.update()
        attempt = device.state().attempt
        assert attempt is not None
        assert attempt.tries_left == left
    outcome = device.update()
    assert isinstance(outcome.error, CandidateError)
    assert outcome.state.is_blocked(outcome.state.blocked[0].contents)


def test_a_machine_that_lacks_something_is_not_the_release_s_fault(device: TestDevice) -> None:
    device.prove = lambda *_: Verdict(kind=Kind.POSTPONED, reason="there is too little memory")
    outcome = device.update()
    assert isinstance(outcome.error, StateError)
    assert outcome.state.blocked == ()
    assert outcome.state.attempt is not None
    assert outcome.state.attempt.tries_left == 3
    device.prove = lambda *_: Verdict(kind=Kind.PROVEN)
    assert device.update().error is None


def test_a_machine_that_ran_low_on_memory_tries_again_in_the_next_run(device: TestDevice) -> None:
    device.prove = lambda *_: Verdict(kind=Kind.STARVED, reason="the machine had little memory left")
    for left in (2, 1, 0):
        outcome = device.update()
        assert isinstance(outcome.error, StateError)
        attempt = outcome.state.running
        assert attempt is not None
        assert attempt.tries_left == left
    assert isinstance(device.update().error, CandidateError)


def test_a_machine_for_which_no_variant_fits_waits(device: TestDevice) -> None:
    device.choose = lambda *_: Verdict(kind=Kind.POSTPONED, reason="no variant of the bundle fits this device")
    outcome = device.update()
    assert isinstance(outcome.error, StateError)
    assert outcome.state.blocked == ()
    assert outcome.state.attempt is not None
    assert outcome.state.attempt.state is AttemptState.DOWNLOADING


@pytest.mark.parametrize("reached", ["downloading", "proven"])
def test_an_attempt_whose_offer_was_withdrawn_is_abandoned(
    device: TestDevice, repository: TestRepository, offer: Offer, reached: str
) -> None:
    device.install()
    offer("1.1.0")
    if reached == "downloading":
        device.choose = lambda *_: Verdict(kind=Kind.POSTPONED, reason="later")
    device.update()
    attempt = device.state().attempt
    assert attempt is not None
    assert attempt.state.value == reached
    repository.rollout("tiny", "1.1.0", state=OfferState.WITHDRAWN)
    outcome = device.update()
    assert outcome.state.attempt is not None
    assert outcome.state.attempt.state is AttemptState.ABANDONED
    assert outcome.state.attempt.reason == "withdrawn"
    device.check_active("1.0.0")


def test_a_newer_offer_takes_the_place_of_a_proven_one(device: TestDevice, offer: Offer) -> None:
    device.update()
    offer("1.1.0")
    outcome = device.update()
    assert outcome.state.attempt is not None
    assert outcome.state.attempt.release.version == "1.1.0"
    device.commit()
    device.check_active("1.1.0")


def test_a_release_on_probation_is_not_disturbed(device: TestDevice, offer: Offer) -> None:
    device.update()
    device.go(AttemptState.PROBATION)
    offer("1.1.0")
    before = device.state()
    outcome = device.update()
    assert outcome.state == before
    assert outcome.decision.action is Action.INSTALL


def test_a_withdrawn_release_gives_way_to_the_previous_one_without_a_download(
    device: TestDevice, repository: TestRepository, offer: Offer
) -> None:
    device.install()
    offer("1.1.0")
    device.install()
    repository.rollout("tiny", "1.1.0", state=OfferState.WITHDRAWN)
    device.set(metered=True)
    outcome = device.update()
    assert outcome.decision.action is Action.INSTALL
    assert "because 1.1.0 was withdrawn" in outcome.decision.reason
    assert device.asked == [path for path in device.asked if path.startswith(("metadata/", "targets/"))]
    device.commit()
    device.check_active("1.0.0")


def test_without_any_offer_a_withdrawn_release_serves_on(device: TestDevice, repository: TestRepository) -> None:
    device.install()
    repository.rollout("tiny", "1.0.0", state=OfferState.WITHDRAWN)
    outcome = device.update()
    assert outcome.decision.action is Action.KEEP
    assert "serves on" in outcome.decision.reason
    device.check_active("1.0.0")


def test_a_blob_that_is_missing_is_told_and_the_next_run_goes_on(
    device: TestDevice, repository: TestRepository, offer: Offer
) -> None:
    device.install()
    offer("1.1.0")
    blob = repository.path / blob_path(_graph_digest(repository, "1.1.0"))
    data = blob.read_bytes()
    blob.unlink()
    outcome = device.update()
    assert isinstance(outcome.error, FetchError)
    assert outcome.state.blocked == ()
    device.check_active("1.0.0")
    blob.write_bytes(data)
    assert device.update().error is None


def test_a_blob_with_other_bytes_is_no_reason_to_block_the_release(
    device: TestDevice, repository: TestRepository, offer: Offer
) -> None:
    device.install()
    offer("1.1.0")
    blob = repository.path / blob_path(_graph_digest(repository, "1.1.0"))
    data = blob.read_bytes()
    other = repository.path / blob_path(_graph_digest(repository, "1.0.0"))
    blob.write_bytes(other.read_bytes())
    outcome = device.update()
    assert isinstance(outcome.error, BlobError)
    assert outcome.error.where == blob_path(_graph_digest(repository, "1.1.0"))
    assert outcome.state.blocked == ()
    device.check_active("1.0.0")
    blob.write_bytes(data)
    assert device.update().error is None


def test_an_unknown_channel_says_what_to_do(repository: TestRepository, device: TestDevice) -> None:
    from device_agent.update.enrollment import read_enrollment, write_enrollment

    write_enrollment(device.store, replace(read_enrollment(device.store), channel="gone"))
    with pytest.raises(UntrustedError, match=r"no such channel.*enroll --channel"):
        device.update()


def test_a_full_disk_is_told_before_anything_is_fetched(device: TestDevice, offer: Offer) -> None:
    device.install()
    offer("1.1.0")
    status = os.statvfs(device.store.root)
    device.set(disk_reserve_bytes=status.f_bavail * status.f_frsize + (1 << 40))
    outcome = device.update()
    assert isinstance(outcome.error, NoSpaceError)
    assert "in reserve" in str(outcome.error)
    device.check_active("1.0.0")
    device.set(disk_reserve_bytes=0)
    assert device.update().error is None


def test_a_dry_run_says_how_much_would_be_fetched_and_changes_nothing(device: TestDevice, offer: Offer) -> None:
    device.install()
    offer("1.1.0")
    before = device.state()
    outcome = device.update(dry=True)
    graphs = blob_path(_graph_digest(device.repository, "1.1.0"))
    assert graphs not in device.asked
    assert outcome.decision.action is Action.INSTALL
    assert outcome.fetch_bytes is not None
    assert 0 < outcome.fetch_bytes < 20_000
    assert device.state() == before
    device.update()
    blobs = [device.repository.path / path for path in device.asked if path.startswith(("blobs/", "deltas/"))]
    assert 0 < sum(path.stat().st_size for path in blobs) <= outcome.fetch_bytes


def test_a_metered_link_fetches_nothing_but_metadata(device: TestDevice) -> None:
    device.set(metered=True)
    outcome = device.update()
    assert outcome.decision.action is Action.WAIT
    assert all(path.startswith(("metadata/", "targets/")) for path in device.asked)


def test_a_file_that_somebody_removed_from_the_active_slot_is_fetched_again(device: TestDevice) -> None:
    before = device.install()
    assert before.active is not None
    slot = device.store.slot("tiny", before.active.contents)
    (slot / "encoder" / "cpu-int8" / "model.onnx").unlink()
    outcome = device.update()
    assert outcome.decision.action is Action.KEEP
    device.check_active("1.0.0")
    assert device.state().sequence == before.sequence + 1  # so that the serving process notices


def test_a_slot_whose_bytes_rotted_is_mended_when_it_is_installed_again(device: TestDevice) -> None:
    before = device.install()
    assert before.active is not None
    graph = device.store.slot("tiny", before.active.contents) / "encoder" / "cpu-int8" / "model.onnx"
    graph.chmod(0o644)
    data = bytearray(graph.read_bytes())
    data[100] ^= 1
    graph.write_bytes(data)
    # What the serving process writes where a bundle does not load because it is damaged.
    device.store.write_state(replace(before, active=None))
    device.install()
    device.check_active("1.0.0")


def test_a_variant_that_is_needed_later_completes_the_active_slot(device: TestDevice) -> None:
    before = device.install()
    assert before.active is not None
    slot = device.store.slot("tiny", before.active.contents)
    graph = slot / "encoder" / "cpu-int8" / "model.onnx"
    inode = graph.stat().st_ino
    device.choose = lambda *_: Verdict(kind=Kind.PROVEN, variants=("encoder/cpu-fp32",))
    device.update()
    assert open_bundle(slot).absent == {"encoder/cpu-fp32", "encoder/cpu-int8-7bit"}  # nothing has changed here
    device.config = replace(device.config, runtime=replace(device.config.runtime, variant="cpu-fp32"))
    outcome = device.update()
    assert outcome.error is None
    assert open_bundle(slot).absent == {"encoder/cpu-int8-7bit"}
    assert graph.stat().st_ino == inode  # what serves is not touched
    device.check_active("1.0.0")
    after = device.state()
    device.update()
    assert device.state() == after


class FailingDisk(QuickDisk):
    """A disk that fails at one of its operations, and at all that follow."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "Input/output error")

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        if flags & os.O_CREAT:
            self._count()
        return super().open(path, flags, mode)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self._count()
        return super().write(descriptor, data)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._count()
        super().link(source, target)

    def mkdir(self, path: Path, mode: int = 0o700) -> None:
        self._count()
        super().mkdir(path, mode)

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)


def test_the_active_slot_can_be_opened_at_each_moment_while_it_is_completed(device: TestDevice) -> None:
    device.install()
    device.config = replace(device.config, runtime=replace(device.config.runtime, variant="cpu-fp32"))
    device.choose = lambda *_: Verdict(kind=Kind.PROVEN, variants=("encoder/cpu-fp32",))
    contents = device.state().active
    assert contents is not None
    slot = device.store.slot("tiny", contents.contents)
    moments = 0
    while "encoder/cpu-fp32" in open_bundle(slot).absent:
        with contextlib.suppress(EdgeOnnxError):
            device.store.disk = FailingDisk(moments)
            device.update()
        device.store.disk = QuickDisk()
        device.check_active("1.0.0")
        moments += 1
    assert moments > 10


def test_an_attempt_that_another_process_changed_is_left_to_it(device: TestDevice) -> None:
    def roll_back(*_: object) -> Verdict:
        device.go(AttemptState.ABANDONED)
        return Verdict(kind=Kind.PROVEN)

    device.prove = roll_back
    outcome = device.update()
    assert isinstance(outcome.error, StateError)
    assert "another process" in str(outcome.error)
    assert outcome.state.attempt is not None
    assert outcome.state.attempt.state is AttemptState.ABANDONED


def test_a_pin_that_is_set_meanwhile_is_not_lost(device: TestDevice) -> None:
    def pin(*_: object) -> Verdict:
        device.store.write_state(pinned(device.state(), "1.0.0"))
        return Verdict(kind=Kind.PROVEN)

    device.prove = pin
    outcome = device.update()
    assert outcome.error is None
    assert device.state().pin == "1.0.0"


def test_what_was_rolled_back_by_hand_is_not_taken_again(device: TestDevice, offer: Offer) -> None:
    device.install()
    offer("1.1.0")
    device.install()
    device.store.write_state(rolled_back(device.state(), now=NOW, reason="by hand"))
    outcome = device.update()
    assert outcome.decision.action is Action.KEEP
    device.check_active("1.0.0")


def test_each_state_is_reported_once(device: TestDevice) -> None:
    device.set(report_url="http://collector.test/")
    device.update()
    device.commit()
    device.update()
    device.update()
    states = [json.loads(body)["state"] for body in device.sent]
    assert states == ["downloading", "staged", "candidate", "proven", "committed"]


def test_one_model_s_failure_does_not_keep_another_from_its_update(
    device: TestDevice, repository: TestRepository, tmp_path: Path
) -> None:
    from device_agent.update.updater import Updater
    from tests.support.bundles import make_bundle

    repository.publish(make_bundle(tmp_path, name="another", version="2.0.0", seed=9))
    blob = repository.path / blob_path(_graph_digest(repository, "1.0.0"))
    blob.unlink()
    outcomes = {outcome.model: outcome for outcome in Updater(device.parts()).run()}
    assert isinstance(outcomes["tiny"].error, FetchError)
    assert outcomes["another"].error is None
    assert outcomes["another"].state.attempt is not None
    assert outcomes["another"].state.attempt.state is AttemptState.PROVEN


def _graph_digest(repository: TestRepository, version: str) -> str:
    """Digest of the graph of the variant that the test's machine runs."""
    from edgeonnx.blobs.codec import decompressed
    from edgeonnx.spec.contents import Contents

    releases = sorted((repository.path / "targets" / "releases" / "tiny").glob(f"*.{version}.json"))
    release = json.loads(releases[-1].read_bytes())
    blob = (repository.path / blob_path(release["contents"])).read_bytes()
    listed = Contents.from_bytes(b"".join(decompressed([blob], size=release["contents_size"])))
    return next(entry.sha256 for entry in listed.files if entry.path == "encoder/cpu-int8/model.onnx")
