"""What `device_agent.update.trust.verifier` extends in python-tuf: private names, which a later release may change.

Each test says what breaks if it fails. Then look at the release's notes, adapt the verifier, and move the bound in
pyproject.toml.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import tomllib
from pathlib import Path

import pytest
from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet
from tuf.ngclient.fetcher import FetcherInterface
from tuf.ngclient.updater import Updater

from device_agent.update.trust.verifier import Fetcher, Verifier

ROOT = Path(__file__).parents[2]
EXTENDED = {
    "_load_root": ["self"],
    "_load_timestamp": ["self"],
    "_load_snapshot": ["self"],
    "_load_targets": ["self", "role", "parent_role"],
    "_persist_metadata": ["self", "rolename", "data"],
    "_persist_root": ["self", "version", "data"],
    "_persist_file": ["self", "filename", "data"],
    "_update_root_symlink": ["self"],
}
CALLED = {"_load_local_metadata": ["self", "rolename"], "_generate_target_file_path": ["self", "targetinfo"]}


def calls(function: object) -> set[str]:
    """Names of the methods that a function calls on `self`, and on others."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))  # type: ignore[arg-type]
    return {
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }


@pytest.mark.parametrize("name", sorted(EXTENDED | CALLED))
def test_the_methods_that_are_extended_or_called_have_their_signatures(name: str) -> None:
    method = getattr(Updater, name, None)
    assert method is not None, f"tuf.ngclient.Updater has no {name} any more"
    assert list(inspect.signature(method).parameters) == (EXTENDED | CALLED)[name]


def test_the_verifier_extends_exactly_these() -> None:
    own = {name for name in vars(Verifier) if name in vars(Updater) and not name.startswith("__")}
    assert own == set(EXTENDED)


def test_every_write_of_the_client_goes_through_what_is_extended() -> None:
    """A new place that writes would not be durable, and `open` in write mode would bypass the disk."""
    writers = {
        name
        for name, function in vars(Updater).items()
        if inspect.isfunction(function) and calls(function) & {"replace", "symlink", "link", "remove", "mkdir", "write"}
    }
    assert writers == {"_persist_file", "_persist_root", "_update_root_symlink", "download_target"}
    assert "download_target" not in inspect.getsource(Verifier)


def test_what_is_accepted_is_checked_before_it_is_written() -> None:
    """`_persist_metadata` is where the floor refuses: it must come after the verification and be what writes."""
    for name in ("_load_timestamp", "_load_snapshot", "_load_targets"):
        source = inspect.getsource(getattr(Updater, name))
        assert source.rindex("_trusted_set.update_") < source.rindex("self._persist_metadata("), name


def test_a_refresh_loads_the_roles_in_order_through_what_is_extended() -> None:
    source = inspect.getsource(Updater.refresh)
    order = ["self._load_root()", "self._load_timestamp()", "self._load_snapshot()", "self._load_targets("]
    assert [source.index(name) for name in order] == sorted(source.index(name) for name in order)


def test_the_time_of_reference_is_an_attribute_that_nothing_sets_later() -> None:
    """The verifier sets it after the constructor, which must not have checked an expiry by then."""
    source = inspect.getsource(TrustedMetadataSet)
    assert source.count("self.reference_time = ") == 1
    assert "self.reference_time = " in inspect.getsource(TrustedMetadataSet.__init__)
    assert "is_expired" not in inspect.getsource(TrustedMetadataSet._load_trusted_root)
    assert "is_expired()" not in source


def test_metadata_is_fetched_by_download_bytes_alone() -> None:
    assert calls(Updater._download_metadata) >= {"download_bytes"}
    assert list(inspect.signature(FetcherInterface.download_bytes).parameters) == ["self", "url", "max_length"]
    assert list(inspect.signature(Fetcher.download_bytes).parameters) == ["self", "url", "max_length"]


def test_roles_are_verified_for_each_delegator() -> None:
    """From 7.0.1 on; before, a role that was loaded for one delegator was taken for all."""
    assert list(inspect.signature(TrustedMetadataSet.contains).parameters) == ["self", "role", "delegator"]


def test_the_releases_that_are_accepted_are_bounded() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in ("agent", "agent-gpu"):
        assert [each for each in extras[extra] if each.startswith("tuf")] == ["tuf>=7.0.1,<8"], extra
