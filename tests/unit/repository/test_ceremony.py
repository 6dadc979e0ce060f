"""Changes of keys, as a client that trusts the old ones sees them."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest
from tuf.api.exceptions import RepositoryError as TufError

from edgeonnx.errors import KeyStoreError, UsageError
from edgeonnx.repository import Files, Repository
from edgeonnx.repository.listing import list_roles, role_of
from edgeonnx.repository.signing.ceremony import (
    add_key,
    change_threshold,
    describe_pending,
    remove_key,
    rotate_key,
    sign_pending,
)
from edgeonnx.repository.signing.roles import ROLES
from edgeonnx.repository.upkeep.verify import verify
from tests.support.repository import Reader, TestRepository
from tests.unit.repository.conftest import copy_of

RELEASE = "releases/tiny/1.1.0.json"


@pytest.fixture
def reader(repository: TestRepository, tmp_path: Path) -> Reader:
    """A client that has seen the repository before its keys change."""
    client = Reader(repository.path, tmp_path / "reader", repository.root_bytes)
    client.refresh()
    return client


def clean(made: TestRepository) -> bool:
    return verify(made.repository).faults == []


def rotate(made: TestRepository, role: str) -> None:
    key = made.keys.generate()
    assert rotate_key(made.repository, made.keys, role, lambda: key) == ()
    made.role_keys[role] = [key]


@pytest.mark.parametrize("role", ROLES)
def test_a_rotated_key_signs_and_the_old_one_no_more(
    repository: TestRepository, reader: Reader, bundles: dict[str, Path], role: str
) -> None:
    old = repository.role_keys[role][0]
    rotate(repository, role)
    new = repository.role_keys[role][0]
    state = repository.repository.state()
    assert role_of(state, role).keyids == [new.keyid]
    assert new.keyid in state.metadata[role].signatures
    assert reader.target(RELEASE) is not None
    assert clean(repository)
    del repository.keys.signers[old.keyid]
    repository.publish(bundles["second"])
    assert reader.target("releases/second/2.0.0.json") is not None
    assert clean(repository)


@pytest.mark.parametrize("role", [role for role in ROLES if role != "root"])
def test_a_lost_key_can_be_replaced(repository: TestRepository, reader: Reader, role: str) -> None:
    del repository.keys.signers[repository.role_keys[role][0].keyid]
    rotate(repository, role)
    assert reader.target(RELEASE) is not None
    assert clean(repository)


def test_a_lost_root_key_cannot(repository: TestRepository) -> None:
    del repository.keys.signers[repository.role_keys["root"][0].keyid]
    missing = rotate_key(repository.repository, repository.keys, "root", repository.keys.generate)
    assert [(each.role, each.count) for each in missing] == [("root", 1)]
    assert repository.repository.state().root.version == 1


def test_roots_are_followed_one_by_one(repository: TestRepository, reader: Reader, tmp_path: Path) -> None:
    for role in ("root", "timestamp", "root", "targets", "root"):
        rotate(repository, role)
    assert repository.repository.state().root.version == 6
    assert reader.refresh() is not None
    newest = Reader(repository.path, tmp_path / "new", repository.newest_root_bytes)
    assert newest.target(RELEASE) is not None


def test_a_colleague_joins_both_must_sign_and_one_leaves(repository: TestRepository, bundles: dict[str, Path]) -> None:
    colleague = repository.keys.generate()
    mine = repository.role_keys["releases"][0]
    alone = [key for keys in repository.role_keys.values() for key in keys]
    here, there = repository.keys.only(*alone), repository.keys.only(colleague)
    change = repository.repository
    assert add_key(change, here, "releases", colleague) == ()
    with pytest.raises(UsageError, match="has this key already"):
        add_key(change, here, "releases", colleague)
    assert [each.role for each in change_threshold(change, here, "releases", 2)] == ["releases"]
    assert role_of(change.state(), "releases").threshold == 1
    sign_pending(change, there)
    assert sign_pending(change, here)[1] == ()
    assert role_of(change.state(), "releases").threshold == 2
    assert clean(repository)
    with pytest.raises(UsageError, match="cannot be reached"):
        remove_key(change, repository.keys, "releases", mine.keyid[:8])
    assert change_threshold(change, repository.keys, "releases", 1) == ()
    assert remove_key(change, there_and_online(repository, colleague), "releases", mine.keyid[:8]) == ()
    assert role_of(change.state(), "releases").keyids == [colleague.keyid]
    assert repository.publish(bundles["second"]).missing == ()
    assert clean(repository)


def test_two_people_change_the_root(repository: TestRepository, reader: Reader) -> None:
    change, second, third = repository.repository, repository.keys.generate(), repository.keys.generate()
    here = repository.keys.only(*(key for keys in repository.role_keys.values() for key in keys))
    assert add_key(change, here, "root", second) == ()
    assert [each.role for each in change_threshold(change, here, "root", 2)] == ["root"]
    assert describe_pending(change)[0] == "root: 2 of 2 keys must sign, not 1"
    assert change.state().root.version == 2
    sign_pending(change, repository.keys.only(second))
    assert sign_pending(change, here)[1] == ()
    assert change.state().root.version == 3
    missing = add_key(change, here, "timestamp", third)
    assert [(each.role, each.count, each.key_ids) for each in missing] == [("root", 1, (second.keyid,))]
    assert describe_pending(change)[0] == f"timestamp: the key {third.keyid[:16]} may sign"
    assert sign_pending(change, repository.keys)[1] == ()
    assert describe_pending(change) == []
    assert reader.target(RELEASE) is not None
    assert clean(repository)


def there_and_online(made: TestRepository, colleague: object) -> object:
    """All keys but the first one of `releases`."""
    others = [key for role, keys in made.role_keys.items() if role != "releases" for key in keys]
    return made.keys.only(colleague, *others)  # type: ignore[arg-type]


@pytest.mark.parametrize(("role", "count"), [("releases", 0), ("root", 2), ("timestamp", 2)])
def test_a_threshold_that_cannot_be_reached_is_refused(repository: TestRepository, role: str, count: int) -> None:
    with pytest.raises(UsageError, match="cannot be reached"):
        change_threshold(repository.repository, repository.keys, role, count)


def test_which_key_must_be_said_where_there_are_several(repository: TestRepository) -> None:
    change = repository.repository
    add_key(change, repository.keys, "rollout", repository.keys.generate())
    with pytest.raises(UsageError, match="say which key"):
        rotate_key(change, repository.keys, "rollout", repository.keys.generate)
    with pytest.raises(UsageError, match="has no such key"):
        remove_key(change, repository.keys, "rollout", "zzzz")
    with pytest.raises(UsageError, match="no such role"):
        remove_key(change, repository.keys, "rollouts", "zzzz")


def test_an_online_key_that_is_missing_leaves_the_change_waiting(repository: TestRepository) -> None:
    offline = repository.keys.only(*(repository.role_keys[role][0] for role in ("root", "targets", "releases")))
    missing = rotate_key(repository.repository, offline, "releases", repository.keys.generate)
    assert [each.role for each in missing] == ["releases"]  # the new key is not with the offline ones
    signed, missing = sign_pending(repository.repository, repository.keys)
    assert (signed, missing) == (["releases"], ())


def test_a_rollout_without_its_key_is_refused_and_changes_nothing(repository: TestRepository) -> None:
    del repository.keys.signers[repository.role_keys["snapshot"][0].keyid]
    before = repository.repository.state()
    with pytest.raises(KeyStoreError, match="signatures are missing") as caught:
        repository.rollout("tiny", "1.1.0", share=500_000)
    assert caught.value.details == (f"snapshot: 1 more signature, by {repository.role_keys['snapshot'][0].keyid[:16]}",)
    assert repository.repository.state() == before


def test_the_roles_are_listed_with_their_keys(repository: TestRepository) -> None:
    found = {each.role: each for each in list_roles(repository.repository.state(), None)}
    assert list(found) == list(ROLES)
    assert found["releases"].keys == {repository.role_keys["releases"][0].keyid: None}
    assert (found["root"].version, found["root"].threshold) == (1, 1)


class StoppedFiles(Files):
    """Files that end with the n-th rename."""

    def __init__(self, root: Path, at: int) -> None:
        super().__init__(root)
        self.left = at

    def rename(self, source: Path, target: Path) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        super().rename(source, target)


@pytest.mark.parametrize("role", ["root", "targets", "timestamp", "rollout"])
def test_stopped_at_any_file_no_client_is_left_without_a_key(
    published: TestRepository, tmp_path: Path, role: str
) -> None:
    for at in itertools.count():
        made = copy_of(published, tmp_path / f"r{at}")
        seen = Reader(made.path, tmp_path / f"seen{at}", made.root_bytes)
        seen.refresh()
        key = made.keys.generate()
        stopped = Repository(made.path, files=StoppedFiles(made.path, at))
        done = False
        with contextlib.suppress(KeyboardInterrupt):
            rotate_key(stopped, made.keys, role, lambda key=key: key)
            done = True
        assert seen.target(RELEASE) is not None
        if done:
            assert at > 1
            return
        with contextlib.suppress(UsageError):  # the role has it already if the change is out
            add_key(made.repository, made.keys, role, key)
        assert clean(made)
        assert seen.target(RELEASE) is not None


def test_where_the_old_key_is_lost_the_root_goes_first(repository: TestRepository, tmp_path: Path) -> None:
    del repository.keys.signers[repository.role_keys["timestamp"][0].keyid]
    key = repository.keys.generate()
    stopped = Repository(repository.path, files=StoppedFiles(repository.path, 1))
    with contextlib.suppress(KeyboardInterrupt):
        rotate_key(stopped, repository.keys, "timestamp", lambda: key)
    assert repository.repository.state().root.version == 2
    with pytest.raises(TufError):
        Reader(repository.path, tmp_path / "a", repository.root_bytes).refresh()
    repository.rollout("tiny", "1.1.0", share=200_000)  # the next change signs what lacks the new key
    assert Reader(repository.path, tmp_path / "b", repository.root_bytes).target(RELEASE) is not None
