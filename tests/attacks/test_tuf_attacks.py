"""The attacks that the TUF specification names (section 1.5.2), each by a hostile repository against the real client.

After each the device must have what it had, and an honest repository must still be able to update it. Attacks on the
transport (endless data, slow retrieval) are in `test_tuf_transport.py`, hostile documents in `test_tuf_documents.py`.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import MetaFile, TargetFile

from device_agent.update.trust.floor import MAX_VERSION
from edgeonnx.errors import FetchError, UntrustedError
from edgeonnx.spec.release import release_target
from edgeonnx.spec.signing import SIGNED_AT
from tests.support.tuf_simulator import CHANNEL, RELEASE, START, Device, Simulator, Times

DAY = 86_400.0
STRANGER = CryptoSigner.generate_ed25519()


@pytest.fixture
def repository() -> Simulator:
    return Simulator()


@pytest.fixture
def device(tmp_path: Path, repository: Simulator) -> Device:
    return Device(tmp_path, repository)


def state(device: Device) -> dict[str, bytes]:
    """The metadata that the device trusts."""
    return {path.name: path.read_bytes() for path in sorted(device.metadata.glob("*.json"))}


def serve(device: Device, files: dict[str, bytes]) -> None:
    """Serve these files and no others from now on."""
    device.repository.files.clear()
    device.repository.files.update(files)


def refuses(device: Device, message: str, target: str | None = None) -> None:
    """The device refuses what is served, and says why."""
    with pytest.raises(UntrustedError, match=message):
        device.take(target)


# Arbitrary software installation.


def test_software_that_nobody_signed_is_not_installed(device: Device) -> None:
    device.refresh()
    path = next(path for path in device.repository.files if path.startswith("targets/releases/tiny/f"))
    device.repository.files[path] = b'{"release": 6}'
    refuses(device, "is not the file that was signed", RELEASE)
    device.repository.files[path] = b'{"release": 1} '
    with pytest.raises(FetchError):
        device.refresh().target(RELEASE)
    device.repository.files["targets/releases/evil/1.0.0.json"] = b"{}"
    assert device.refresh().target(release_target("evil", "1.0.0")) is None


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets", "releases", "rollout"])
def test_metadata_signed_by_a_stranger_is_refused(device: Device, role: str) -> None:
    device.refresh()
    before = state(device)
    device.repository.signers[role] = [STRANGER]
    device.repository.publish(role)
    for above in ("snapshot", "timestamp"):
        if role not in ("timestamp", above):
            device.repository.publish(above)
    target = CHANNEL if role == "rollout" else RELEASE
    refuses(device, f"{role} is not signed by enough", target)
    assert state(device).get(f"{role}.json") == before.get(f"{role}.json")


# Rollback.


def test_an_older_timestamp_is_refused(device: Device) -> None:
    old = dict(device.repository.files)
    device.repository.release("rollout")
    device.refresh()
    before = state(device)
    device.repository.files["metadata/timestamp.json"] = old["metadata/timestamp.json"]
    refuses(device, "timestamp is not of the right version")
    assert state(device) == before


def test_a_thief_of_the_timestamp_key_cannot_go_back_to_an_older_snapshot(device: Device) -> None:
    device.repository.release("rollout")
    device.refresh()
    device.repository.signed("timestamp").snapshot_meta = MetaFile(1)
    device.repository.publish("timestamp")
    refuses(device, "timestamp is not of the right version")


@pytest.mark.parametrize("role", ["targets", "releases", "rollout"])
def test_a_thief_of_the_snapshot_key_cannot_go_back_to_older_lists(device: Device, role: str) -> None:
    device.repository.release(role)
    device.refresh()
    device.repository.signed("snapshot").meta[f"{role}.json"] = MetaFile(1)
    device.repository.release()
    refuses(device, "snapshot is not of the right version")


def test_a_thief_of_the_snapshot_key_cannot_leave_a_role_out(device: Device) -> None:
    device.refresh()
    del device.repository.signed("snapshot").meta["rollout.json"]
    device.repository.release()
    refuses(device, "missing info for 'rollout.json'")


# Indefinite freeze.


@pytest.mark.parametrize("system", [START.timestamp(), 0.0], ids=["right clock", "1970"])
def test_a_frozen_repository_is_noticed_when_the_timestamp_expires(
    tmp_path: Path, repository: Simulator, system: float
) -> None:
    device = Device(tmp_path, repository, Times(system=system))
    device.refresh()
    for _ in range(8):  # 2.7 days, in processes that end
        device.times.pass_by(DAY / 3)
        device.refresh()
    device.times.pass_by(DAY / 2)
    refuses(device, "timestamp has expired.*before 2026-06-04T00:00:00Z.*holds back newer metadata")


def test_a_box_without_a_clock_cannot_be_frozen_by_power_cuts(tmp_path: Path, repository: Simulator) -> None:
    """It was on for more than three days in all, some hours at a time; the time of each boot counts."""
    device = Device(tmp_path, repository, Times(system=0.0))
    for _ in range(10):
        device.times.reboot(system=0.0)
        device.refresh()
        device.times.pass_by(7 * 3600)
        device.refresh()
    device.times.reboot(system=0.0)
    device.refresh()
    device.times.pass_by(2.5 * 3600)
    refuses(device, "timestamp has expired.*which verified metadata prove.*1970-01-01")


def test_a_box_in_1970_updates_and_learns_the_time(tmp_path: Path, repository: Simulator) -> None:
    device = Device(tmp_path, repository, Times(system=0.0))
    repository.now += timedelta(days=30)
    repository.release("rollout")
    assert device.refresh().target(CHANNEL) == b'{"channel": 1}'
    assert device.clock().bound() == repository.now.timestamp()
    assert device.clock().behind


def test_a_clock_in_the_future_is_told_from_a_repository_that_was_not_renewed(device: Device) -> None:
    device.refresh()
    device.times.system += 73 * 365 * DAY
    refuses(device, "has expired.*2099-.*on the system clock.*2026-06-01T00:00:00Z or later.*set it and try again")
    device.times.system = START.timestamp()
    device.refresh()


# Mix and match.


def test_lists_of_different_times_cannot_be_mixed(device: Device) -> None:
    device.refresh()
    old = dict(device.repository.files)
    device.repository.release("releases", "rollout")
    for role in ("snapshot", "releases", "rollout"):
        new = device.repository.files[f"metadata/2.{role}.json"]
        device.repository.files[f"metadata/2.{role}.json"] = old[f"metadata/1.{role}.json"]
        refuses(device, f"{role} is not of the right version", RELEASE if role == "releases" else CHANNEL)
        device.repository.files[f"metadata/2.{role}.json"] = new
    assert device.refresh().target(RELEASE) is not None


def test_a_snapshot_that_names_digests_binds_the_bytes(device: Device) -> None:
    """As above, for a repository whose snapshot lists digests: other bytes of the right version are refused, too."""
    repository = device.repository
    other = repository.publish("rollout", expires=START + timedelta(days=80))
    repository.signed("rollout").version -= 1
    data = repository.publish("rollout")
    listed = MetaFile(2, length=len(data))
    listed.hashes = TargetFile.from_data("x", data, ["sha256"]).hashes
    repository.signed("snapshot").meta["rollout.json"] = listed
    repository.release()
    repository.files["metadata/2.rollout.json"] = other
    refuses(device, "rollout is not the file that was signed", CHANNEL)


# Wrong keys.


def threshold_of_two(tmp_path: Path) -> Device:
    device = Device(tmp_path, Simulator(release_threshold=2))
    device.refresh()
    device.repository.add_target("releases", release_target("tiny", "2.0.0"), b"new")
    return device


def test_one_of_two_keys_is_not_enough(tmp_path: Path) -> None:
    device = threshold_of_two(tmp_path)
    both = device.repository.signers["releases"]
    device.repository.signers["releases"] = both[:1]
    device.repository.release("releases")
    refuses(device, "releases is not signed by enough.*1/2 keys", RELEASE)
    device.repository.signers["releases"] = both
    device.repository.release("releases")
    assert device.refresh().target(release_target("tiny", "2.0.0")) == b"new"


@pytest.mark.parametrize("how", ["the same signature twice", "the same key under another id"])
def test_one_key_does_not_count_twice(tmp_path: Path, how: str) -> None:
    device = threshold_of_two(tmp_path)
    repository = device.repository
    repository.signers["releases"] = repository.signers["releases"][:1]
    repository.release("releases")
    path = f"metadata/{repository.signed('releases').version}.releases.json"
    document = json.loads(repository.files[path])
    again = dict(document["signatures"][0])
    if how.endswith("id"):
        again["keyid"] = Simulator(release_threshold=2).signers["releases"][1].public_key.keyid
    document["signatures"].append(again)
    repository.files[path] = json.dumps(document).encode()
    refuses(device, "releases", RELEASE)


def test_a_root_that_the_old_keys_did_not_sign_is_refused(device: Device) -> None:
    device.refresh()
    repository = device.repository
    repository.rotate("root")
    repository.signers["root"] = repository.signers["root"][1:]
    repository.publish("root")
    refuses(device, "root is not signed by enough")
    assert device.versions()["root"] == 1


# Wrong software and extraneous dependencies: who may sign what.


def test_the_online_key_cannot_sign_a_release(device: Device) -> None:
    device.repository.add_target("rollout", release_target("evil", "1.0.0"), b"evil")
    device.repository.add_target("rollout", RELEASE, b"evil")
    device.repository.release("rollout")
    metadata = device.refresh()
    assert metadata.target(release_target("evil", "1.0.0")) is None
    assert metadata.target(RELEASE) == b'{"release": 1}'


def test_the_release_keys_cannot_change_a_channel(device: Device) -> None:
    device.repository.add_target("releases", CHANNEL, b"evil")
    device.repository.add_target("releases", "channels/evil.json", b"evil")
    device.repository.release("releases")
    metadata = device.refresh()
    assert metadata.target(CHANNEL) == b'{"channel": 1}'
    assert metadata.target("channels/evil.json") is None


@pytest.mark.parametrize(
    "path", ["releases/tiny.json", "releases/a/b/c.json", "other/tiny/1.0.0.json", "releases/../channels/x.json"]
)
def test_a_role_cannot_sign_outside_its_paths(device: Device, path: str) -> None:
    device.repository.add_target("releases", path, b"extra")
    device.repository.release("releases")
    assert device.refresh().target(path) is None


def test_a_thief_of_both_online_lists_cannot_delegate(device: Device) -> None:
    """Delegations of `rollout` reach no further than `rollout` itself."""
    repository = device.repository
    targets = repository.signed("targets").delegations
    repository.signed("rollout").delegations = type(targets).from_dict(targets.to_dict())
    repository.signed("rollout").delegations.roles["releases"].keyids = [STRANGER.public_key.keyid]
    repository.signed("rollout").delegations.keys[STRANGER.public_key.keyid] = STRANGER.public_key
    repository.release("rollout")
    assert device.refresh().target(RELEASE) == b'{"release": 1}'


# Key compromise, fast-forward, and the recovery from both.


def test_all_online_keys_together_cannot_bring_new_software(device: Device) -> None:
    """A thief of rollout, snapshot and timestamp can withhold and reorder what was released, and nothing else."""
    device.refresh()
    forged = json.loads(device.repository.sign("releases"))
    forged["signed"]["targets"][RELEASE]["length"] = 5
    device.repository.signed("releases").version += 1
    device.repository.serve("releases", json.dumps(forged).encode())
    device.repository.signed("snapshot").meta["releases.json"] = MetaFile(2)
    device.repository.release("rollout")
    refuses(device, "releases is not signed", RELEASE)


def fast_forward(repository: Simulator, until: datetime) -> None:
    """A thief of the three online keys says the largest versions and a time in the far future."""
    for role in ("rollout", "snapshot", "timestamp"):
        repository.signed(role).version = MAX_VERSION - 1
    repository.now = until
    repository.release("rollout")


def recover(repository: Simulator, now: datetime) -> None:
    """The owner replaces the stolen keys and goes back to small versions."""
    repository.now = now
    for role in ("rollout", "snapshot", "timestamp"):
        repository.signed(role).version = 4
    repository.rotate("timestamp")
    repository.rotate("snapshot")
    fresh = CryptoSigner.generate_ed25519()
    delegations = repository.signed("targets").delegations
    delegations.roles["rollout"].keyids = [fresh.public_key.keyid]
    delegations.keys[fresh.public_key.keyid] = fresh.public_key
    repository.signers["rollout"] = [fresh]
    repository.publish("root")
    repository.add_target("rollout", CHANNEL, b"after")
    repository.release("targets", "rollout")


@pytest.mark.parametrize("system", [START.timestamp(), 0.0], ids=["right clock", "1970"])
def test_a_fast_forward_is_recovered_from_by_new_keys(tmp_path: Path, repository: Simulator, system: float) -> None:
    device = Device(tmp_path, repository, Times(system=system))
    device.refresh()
    fast_forward(repository, START + timedelta(days=365 * 70))
    refuses(device, "targets has expired.*a stolen key made it up")
    assert device.versions()["timestamp"] == MAX_VERSION
    assert device.clock().bound() > START.timestamp() + 69 * 365 * DAY
    recover(repository, START + timedelta(days=1))
    assert device.refresh().target(CHANNEL) == b"after"
    assert device.versions()["timestamp"] == 5
    assert device.clock().bound() == START.timestamp() + DAY
    assert device.refresh().target(RELEASE) == b'{"release": 1}'


def test_what_stolen_keys_signed_is_refused_after_they_were_replaced(device: Device) -> None:
    device.refresh()
    recover(device.repository, START)
    device.refresh()
    honest = dict(device.repository.files)
    thief = Simulator()
    thief.signed("timestamp").version = 100
    thief.publish("timestamp")
    device.repository.files["metadata/timestamp.json"] = thief.files["metadata/timestamp.json"]
    refuses(device, "timestamp is not signed by enough")
    serve(device, honest)
    device.refresh()


def test_a_key_that_is_added_resets_nothing(device: Device) -> None:
    """Versions start anew only where the old signatures no longer count, or an added key would allow a rollback."""
    old = dict(device.repository.files)
    device.repository.release("rollout")
    device.refresh()
    root = device.repository.signed("root")
    root.add_key(STRANGER.public_key, "timestamp")
    device.repository.publish("root")
    (device.metadata / "timestamp.json").unlink()
    serve(device, {**device.repository.files, "metadata/timestamp.json": old["metadata/timestamp.json"]})
    refuses(device, "an older timestamp")


def test_a_power_cut_amid_the_recovery_does_not_stop_it(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is taken back before the memory of who proved it is."""
    device.refresh()
    fast_forward(device.repository, START + timedelta(days=365 * 70))
    refuses(device, "targets has expired")
    recover(device.repository, START + timedelta(days=1))

    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr("device_agent.update.trust.metadata.TrustedMetadata._keep", cut)
        with pytest.raises(KeyboardInterrupt):
            device.refresh()
    assert device.refresh().target(CHANNEL) == b"after"


@pytest.mark.parametrize("version", [MAX_VERSION + 1, 10**30, 0, -1, True, 1.5, "2", None], ids=str)
def test_versions_that_no_one_can_follow_are_refused(device: Device, version: object) -> None:
    device.refresh()

    def change(signed: dict[str, Any]) -> None:
        signed["version"] = version

    document = json.loads(device.repository.sign("timestamp"))
    change(document["signed"])
    data = json.dumps(document).encode() if version == 1.5 else device.repository.resign("timestamp", change)
    device.repository.files["metadata/timestamp.json"] = data
    refuses(device, "not metadata.*version")
    assert device.versions()["timestamp"] == 1


@pytest.mark.parametrize("text", ["2099-01-01T00:00:00Z", "soon", "", "-1", 5, None, ["2026-06-02T00:00:00Z"]], ids=str)
def test_a_time_that_cannot_be_is_ignored(device: Device, text: object) -> None:
    def change(signed: dict[str, Any]) -> None:
        signed["version"] += 1
        signed[SIGNED_AT] = text

    device.repository.files["metadata/timestamp.json"] = device.repository.resign("timestamp", change)
    device.refresh()
    assert device.versions()["timestamp"] == 2
    assert device.clock().bound() == START.timestamp()


# Malicious mirrors.


def test_a_mirror_that_gives_nothing_is_an_error_and_another_one_helps(device: Device) -> None:
    device.refresh()
    device.repository.release("rollout")
    honest = dict(device.repository.files)
    serve(device, {})
    with pytest.raises(FetchError, match="no timestamp"):
        device.refresh()
    serve(device, honest)
    assert device.refresh().target(RELEASE) == b'{"release": 1}'


def test_without_consistent_snapshots_the_same_checks_hold(tmp_path: Path) -> None:
    """A root may turn them off; versions, lists and digests bind all the same."""
    repository = Simulator()
    repository.signed("root").consistent_snapshot = False
    repository.publish("root", bump=False)
    plain = {
        f"metadata/{role}.json": data
        for role in ("snapshot", "targets", "releases", "rollout")
        for data in [repository.files[f"metadata/1.{role}.json"]]
    }
    repository.files.update(plain)
    device = Device(tmp_path, repository)
    assert device.refresh().target(RELEASE) == b'{"release": 1}'
    repository.files[f"targets/{CHANNEL}"] = b'{"channel": 9}'
    refuses(device, "not the file that was signed", CHANNEL)
