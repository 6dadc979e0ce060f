"""Every kind of damage is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from edgeonnx.blobs.codec import compress
from edgeonnx.errors import EdgeOnnxError, RepositoryError, UntrustedError
from edgeonnx.repository import Repository
from edgeonnx.repository.publish import add_target
from edgeonnx.repository.signing.roles import utc_now
from edgeonnx.repository.upkeep.verify import unnamed_files, verify
from edgeonnx.spec.release import Release, blob_path, delta_path
from tests.support.repository import TestRepository


def first_release(made: TestRepository) -> Release:
    return verify(made.repository).releases[-1]


def change_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def lose_blob(made: TestRepository) -> str:
    path = blob_path(first_release(made).contents)
    (made.path / path).unlink()
    return "contents.json"


def change_blob(made: TestRepository) -> str:
    path = min((made.path / "blobs").rglob("*.zst"))
    change_byte(path)
    return path.name


def exchange_blob(made: TestRepository) -> str:
    path = sorted((made.path / "blobs").rglob("*.zst"))[1]
    path.write_bytes(compress(b"another content"))
    return path.name


def cut_delta(made: TestRepository) -> str:
    path = delta_path(first_release(made).deltas[0])
    (made.path / path).write_bytes((made.path / path).read_bytes()[:-1])
    return path


def change_delta(made: TestRepository) -> str:
    path = delta_path(first_release(made).deltas[0])
    change_byte(made.path / path)
    return path


def change_target(made: TestRepository) -> str:
    file = min((made.path / "targets" / "releases").rglob("*.json"))
    change_byte(file)
    return file.name


def change_root(made: TestRepository) -> str:
    file = made.path / "metadata" / "1.root.json"
    document = json.loads(file.read_bytes())
    document["signed"]["expires"] = "2036-01-01T00:00:00Z"
    file.write_text(json.dumps(document))
    return "1.root.json"


def leave_a_key(made: TestRepository) -> str:
    (made.path / "rollout.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    return "rollout.pem: a private key"


def sign_other_paths(made: TestRepository) -> str:
    with made.repository.changing() as draft:
        add_target(draft, "rollout", "releases/tiny/9.0.0.json", b"{}")
        draft.commit(made.keys)
    return "not delegated"


def offer_what_is_not_signed(made: TestRepository) -> str:
    with made.repository.changing() as draft:
        del draft.edit_targets("releases").targets["releases/tiny/1.0.0.json"]
        draft.commit(made.keys)
    return "channel stable: tiny 1.0.0: no such release is signed"


def exchange_releases(made: TestRepository) -> str:
    with made.repository.changing() as draft:
        targets = draft.edit_targets("releases")
        other = first_release(made).to_bytes()
        add_target(draft, "releases", "releases/tiny/1.0.0.json", other)
        assert targets.targets
        draft.commit(made.keys)
    return "is another release"


def sign_in_the_future(made: TestRepository) -> str:
    ahead = Repository(made.path, now=lambda: utc_now() + timedelta(days=1))
    TestRepository(ahead, made.keys, made.role_keys).rollout("tiny", "1.1.0", share=200_000)
    return "signed in the future"


@pytest.mark.parametrize(
    "damage",
    [
        lose_blob,
        change_blob,
        exchange_blob,
        cut_delta,
        change_delta,
        change_target,
        change_root,
        leave_a_key,
        sign_other_paths,
        offer_what_is_not_signed,
        exchange_releases,
        sign_in_the_future,
    ],
)
def test_damage_is_named(repository: TestRepository, damage: Callable[[TestRepository], str]) -> None:
    assert verify(repository.repository).faults == []
    expected = damage(repository)
    faults = verify(repository.repository).faults
    assert any(expected in fault for fault in faults), faults


@pytest.mark.parametrize("name", ["timestamp.json", "{}.snapshot.json", "1.targets.json"])
def test_metadata_that_leads_nowhere_ends_it(repository: TestRepository, name: str) -> None:
    file = repository.path / "metadata" / name.format(repository.repository.state().snapshot.version)
    file.write_bytes(b"<html>")
    with pytest.raises(UntrustedError):
        verify(repository.repository)
    file.unlink()
    with pytest.raises(RepositoryError):
        verify(repository.repository)


def test_all_of_it_is_counted(repository: TestRepository) -> None:
    found = verify(repository.repository)
    assert [f"{each.name} {each.version}" for each in found.releases] == ["tiny 1.0.0", "tiny 1.1.0"]
    assert [each.name for each in found.channels] == ["stable"]
    assert found.blobs == len(list((repository.path / "blobs").rglob("*.zst")))
    assert found.deltas == len(found.releases[1].deltas) > 0
    left = unnamed_files(repository.repository.files, found)
    assert "metadata/1.snapshot.json" in left
    assert not [path for path in left if path.startswith(("blobs/", "deltas/"))]


def test_progress_is_told(repository: TestRepository) -> None:
    seen: list[tuple[int, int]] = []
    found = verify(repository.repository, lambda done, total: seen.append((done, total)))
    total = found.blobs + found.deltas
    assert seen == [(done, total) for done in range(1, total + 1)]


def test_nothing_is_written(repository: TestRepository) -> None:
    before = sorted(repository.path.rglob("*"))
    verify(repository.repository)
    assert sorted(repository.path.rglob("*")) == before


def test_what_is_no_repository_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(EdgeOnnxError, match="is no repository"):
        verify(Repository(tmp_path))
