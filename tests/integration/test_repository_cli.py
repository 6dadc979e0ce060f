"""`repo`, `publish` and `rollout` from the command line: what they print and return, and what a client then finds."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeonnx.cli.main import app
from edgeonnx.repository import Files, Repository, files
from edgeonnx.repository.upkeep.verify import verify
from edgeonnx.spec.rollout import Channel
from tests.support.bundles import make_bundle
from tests.support.cli import ESCAPE, edgeonnx, environment
from tests.support.repository import Reader

PASSPHRASE = "correct horse battery"
RUNNER = CliRunner()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("cli-bundles")
    return {version: make_bundle(folder, version=version, seed=seed) for version, seed in (("1.0.0", 1), ("1.1.0", 2))}


class Place:
    """A folder with a repository and keys, and the command line in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repo, self.online, self.offline = folder / "repo", folder / "online", folder / "offline"

    def run(self, *arguments: object, keys: str | None = None, passphrase: str | None = PASSPHRASE) -> Result:
        """A command with some of the keys: `online`, `offline`, `all`, or None."""
        named = {"online": [self.online], "offline": [self.offline], "all": [self.online, self.offline], None: []}[keys]
        options = [part for folder in named for part in ("--keys", str(folder))]
        variables = {"EDGEONNX_PASSPHRASE": passphrase, "EDGEONNX_KEYS": None, "EDGEONNX_REPO": None}
        return RUNNER.invoke(app, [*map(str, arguments), *options], env=variables)

    def good(self, *arguments: object, keys: str | None = None) -> Result:
        """The same, which must succeed."""
        done = self.run(*arguments, keys=keys)
        assert done.exit_code == 0, done.output
        return done

    def facts(self, *arguments: object, keys: str | None = None) -> dict[str, object]:
        """The JSON document of a command that must succeed."""
        document = json.loads(self.good(*arguments, "--json", keys=keys).stdout)
        assert isinstance(document, dict)
        return document

    def fails(self, code: int, *arguments: object, keys: str | None = None, **further: object) -> str:
        """The error of a command that must fail so."""
        done = self.run(*arguments, keys=keys, **further)  # type: ignore[arg-type]
        assert done.exit_code == code, done.output
        assert done.stderr.startswith("error: ") or "\nerror: " in done.stderr
        assert "Traceback" not in done.output
        return done.stderr

    def client(self) -> Reader:
        """A client that is new."""
        root = (self.repo / "metadata" / "1.root.json").read_bytes()
        return Reader(self.repo, self.folder / "client", root)

    def channel(self) -> Channel:
        """What a client reads of the channel."""
        return Channel.from_bytes(self.client().target("channels/stable.json") or b"")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.good("repo", "init", made.repo, "--keys", made.online, "--offline-keys", made.offline)
    return made


def publish(place: Place, bundle: Path, share: str) -> tuple[object, ...]:
    return ("publish", bundle, "--repo", place.repo, "--channel", "stable", "--rollout", share)


def test_init_makes_the_keys_where_they_belong_and_says_what_to_do(place: Place) -> None:
    def made(folder: Path) -> list[str]:
        return sorted(path.name.rpartition("-")[0] for path in folder.glob("*.pem"))

    assert made(place.online) == ["rollout", "snapshot", "timestamp"]
    assert made(place.offline) == ["releases", "root", "targets"]
    listed = place.facts("repo", "keys", "list", "--repo", place.repo, keys="all")["roles"]
    assert isinstance(listed, list)
    assert [each["role"] for each in listed] == ["root", "targets", "releases", "rollout", "snapshot", "timestamp"]
    assert all(each["keys"][0]["private"] for each in listed)
    assert "there is a repository already" in place.fails(2, "repo", "init", place.repo, keys="online")


def test_init_uses_the_keys_that_are_there(place: Place, tmp_path: Path) -> None:
    before = sorted([*place.online.iterdir(), *place.offline.iterdir()])
    other = tmp_path / "other"
    place.good("repo", "init", other, "--keys", place.online, "--offline-keys", place.offline)
    assert sorted([*place.online.iterdir(), *place.offline.iterdir()]) == before
    assert verify(Repository(other)).faults == []


def test_init_takes_periods_and_a_threshold(tmp_path: Path) -> None:
    place = Place(tmp_path)
    init = ("repo", "init", place.repo, "--threshold", "2", "--expires")
    assert "is no period" in place.fails(2, *init, "timestamp=never", keys="online")
    assert "no such role" in place.fails(2, *init, "stamp=1", keys="online")
    assert not place.repo.exists()
    found = place.facts(*init, "timestamp=0.5", "--unencrypted", keys="online")["roles"]
    assert isinstance(found, list)
    assert found[2]["threshold"] == len(found[2]["keys"]) == 2
    assert "BEGIN PRIVATE KEY" in next(place.online.glob("timestamp-*.pem")).read_text()
    expires = {each["role"]: each["expires"] for each in found}
    assert expires["timestamp"] < expires["snapshot"]


def test_a_bundle_that_does_not_give_its_golden_answers_is_not_published(place: Place, tmp_path: Path) -> None:
    wrong = make_bundle(tmp_path / "wrong", bias=0.5)
    assert "the golden set is not reproduced" in place.fails(6, *publish(place, wrong, "100%"), keys="all")
    assert place.client().target("releases/tiny/1.0.0.json") is None
    place.good(*publish(place, wrong, "100%"), "--skip-golden", keys="all")
    assert place.client().target("releases/tiny/1.0.0.json") is not None


def test_a_release_is_published_grows_is_halted_and_withdrawn(place: Place, bundles: dict[str, Path]) -> None:
    done = place.facts(*publish(place, bundles["1.0.0"], "100%"), keys="all")
    assert (done["new"], done["missing"]) == (True, [])
    shown = place.good(*publish(place, bundles["1.1.0"], "0.25%"), keys="all")
    assert "tiny 1.1.0" in shown.stdout
    assert "0.25%" in shown.stdout
    assert place.client().target("releases/tiny/1.1.0.json") is not None

    def rollout(*change: str, keys: str | None = "online") -> tuple[str, int, str]:
        place.good("rollout", "--repo", place.repo, "--channel", "stable", *change, keys=keys)
        offer = place.channel().models["tiny"].offers[0]
        return offer.version, offer.share, offer.state.value

    assert rollout("--show", keys=None) == ("1.1.0", 2_500, "open")
    assert rollout("--to", "50%") == ("1.1.0", 500_000, "open")
    assert rollout("--halt") == ("1.1.0", 500_000, "halted")
    assert rollout("--resume", "--to", "60%") == ("1.1.0", 600_000, "open")
    assert rollout("--withdraw", "--version", "1.1.0", "--model", "tiny") == ("1.1.0", 600_000, "withdrawn")
    assert rollout("--to", "1%", "--force") == ("1.1.0", 10_000, "withdrawn")
    rollout("--minimum-version", "1.0.0")
    assert place.channel().models["tiny"].minimum_version == "1.0.0"


def test_what_makes_no_sense_is_refused_with_a_reason(
    place: Place, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.good(*publish(place, bundles["1.0.0"], "50%"), keys="all")
    roll = ("rollout", "--repo", place.repo, "--channel")
    assert "would shrink" in place.fails(2, *roll, "stable", "--to", "10%", keys="online")
    assert "no such channel" in place.fails(2, *roll, "beta", "--halt", keys="online")
    assert "channel's name cannot be used" in place.fails(2, *roll, "../stable", "--halt", keys="online")
    assert "channel's name cannot be used" in place.fails(2, *roll, "../stable", "--show")
    assert "only one of them" in place.fails(2, *roll, "stable", "--halt", "--resume", keys="online")
    assert "say what is to change" in place.fails(2, *roll, "stable", keys="online")
    assert "--show changes nothing" in place.fails(2, *roll, "stable", "--show", "--halt")
    assert "no share" in place.fails(2, *roll, "stable", "--to", "half", keys="online")
    assert "no such release" in place.fails(2, *roll, "stable", "--version", "9", "--to", "60%", keys="online")
    assert "does not offer" in place.fails(2, *roll, "stable", "--model", "m", "--to", "60%", keys="online")
    assert "no key folder is named" in place.fails(2, *roll, "stable", "--halt")
    assert "would be uploaded" in place.fails(2, *publish(place, bundles["1.1.0"], "1%"), "--keys", place.repo / "k")
    assert "no key of the role releases" in place.fails(9, *publish(place, bundles["1.1.0"], "1%"), keys="online")
    wrong = place.fails(9, *roll, "stable", "--halt", keys="online", passphrase="wrong horse battery")
    assert "private key cannot be used" in wrong
    assert "need a passphrase" in place.fails(9, *roll, "stable", "--halt", keys="online", passphrase=None)
    assert "is not a bundle" in place.fails(5, *publish(place, place.repo, "1%"), keys="all")
    assert "is no repository" in place.fails(9, "repo", "verify", place.online)
    monkeypatch.setattr(files, "WAIT_SECONDS", 0.0)
    with Files(place.repo).lock():
        assert "another process" in place.fails(9, *roll, "stable", "--halt", keys="online")
    assert verify(Repository(place.repo)).faults == []


def test_errors_are_json_where_it_is_asked_for(place: Place) -> None:
    done = place.run("repo", "verify", place.online, "--json")
    assert done.exit_code == 9
    assert json.loads(done.stdout)["error"] == "RepositoryError"


def test_the_passphrase_may_come_from_a_file(place: Place) -> None:
    file = place.folder / "passphrase"
    file.write_text(PASSPHRASE + "\n")
    done = place.run(
        "repo", "refresh", place.repo, "--passphrase-file", file, "--json", keys="online", passphrase="not this one"
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["renewed"] == ["timestamp"]
    assert "cannot be read" in place.fails(9, "repo", "refresh", place.repo, "--passphrase-file", "no", keys="online")


def test_two_people_sign_a_release(place: Place, bundles: dict[str, Path]) -> None:
    colleague = ("--keys", place.folder / "colleague")
    made = place.facts("repo", "keys", "generate", "releases", *colleague)
    public = place.folder / "colleague.pub"
    place.good("repo", "keys", "export", "releases", "--out", public, *colleague)
    assert place.good("repo", "keys", "export", "releases", *colleague).stdout == public.read_text()
    assert "it exists already" in place.fails(2, "repo", "keys", "export", "releases", "--out", public, *colleague)
    assert "no such key is here" in place.fails(2, "repo", "keys", "export", "root", *colleague)
    place.good("repo", "keys", "add", "releases", public, "--repo", place.repo, keys="all")
    waits = place.good("repo", "keys", "threshold", "releases", "2", "--repo", place.repo, keys="all")
    assert "not out yet" in waits.stdout
    assert "releases: 2 of 2 keys must sign, not 1" in place.good("repo", "sign", place.repo, "--show").stdout
    place.good("repo", "sign", place.repo, *colleague, "--keys", place.online)
    waits = place.good(*publish(place, bundles["1.0.0"], "100%"), keys="all")
    assert f"releases: 1 more signature, by {str(made['key'])[:16]}" in waits.stdout
    assert place.client().target("releases/tiny/1.0.0.json") is None
    digest = hashlib.sha256((bundles["1.0.0"] / "contents.json").read_bytes()).hexdigest()
    shown = place.good("repo", "sign", place.repo, "--show").stdout.splitlines()
    assert shown[0] == f"releases: tiny 1.0.0 is new, the bundle sha256:{digest}"
    assert shown[-1] == "channel stable: offers tiny 1.0.0 to 100%"
    assert "nothing was signed" in place.good("repo", "sign", place.repo, keys="offline").stdout
    signed = place.facts("repo", "sign", place.repo, *colleague)
    assert signed["signed"] == ["releases"]
    assert "complete, and out" in place.good("repo", "sign", place.repo, keys="online").stdout
    assert place.client().target("releases/tiny/1.0.0.json") is not None
    place.good(*publish(place, bundles["1.1.0"], "100%"), keys="all")
    assert place.facts("repo", "sign", place.repo, "--discard") == {"discarded": True}
    place.good("repo", "keys", "threshold", "releases", "1", "--repo", place.repo, *colleague, keys="all")
    place.good("repo", "keys", "remove", "releases", str(made["key"])[:8], "--repo", place.repo, keys="all")
    assert verify(Repository(place.repo)).faults == []


def test_keys_are_rotated_and_the_new_one_lies_where_the_old_one_did(place: Place, bundles: dict[str, Path]) -> None:
    place.good(*publish(place, bundles["1.0.0"], "100%"), keys="all")
    client = place.client()
    client.refresh()
    for role, folder in (("releases", place.offline), ("timestamp", place.online), ("root", place.offline)):
        before = set(folder.glob(f"{role}-*.pem"))
        place.good("repo", "keys", "rotate", role, "--repo", place.repo, keys="all")
        assert len(set(folder.glob(f"{role}-*.pem")) - before) == 1
        for old in before:
            old.unlink()
    place.good(*publish(place, bundles["1.1.0"], "100%"), keys="all")
    assert client.target("releases/tiny/1.1.0.json") is not None
    assert "repository is good" in place.good("repo", "verify", place.repo).stdout


def test_verify_names_what_is_damaged(place: Place, bundles: dict[str, Path]) -> None:
    place.good(*publish(place, bundles["1.0.0"], "100%"), keys="all")
    assert place.facts("repo", "verify", place.repo)["faults"] == []
    blob = next((place.repo / "blobs").rglob("*.zst"))
    blob.write_bytes(b"x" * 64)
    assert f"blobs/sha256/{blob.stem[:2]}/{blob.name}: " in place.fails(9, "repo", "verify", place.repo)
    done = place.run("repo", "verify", place.repo, "--json")
    assert done.exit_code == 9
    assert any(blob.name in fault for fault in json.loads(done.stdout)["faults"])
    place.good(*publish(place, bundles["1.0.0"], "100%"), keys="all")
    assert place.facts("repo", "verify", place.repo)["faults"] == []


def test_old_releases_are_retired_and_collected(place: Place, bundles: dict[str, Path]) -> None:
    place.good(*publish(place, bundles["1.0.0"], "100%"), keys="all")
    place.good(*publish(place, bundles["1.1.0"], "1%"), keys="all")
    retire = ("repo", "retire", place.repo, "tiny", "1.0.0")
    assert "may still take" in place.fails(2, *retire, keys="all")
    place.good("rollout", "--repo", place.repo, "--channel", "stable", "--to", "100%", keys="online")
    assert "is retired" in place.good(*retire, keys="all").stdout
    would = place.facts("repo", "gc", place.repo, "--keep", "0", "--dry-run")
    assert "would be removed" in place.good("repo", "gc", place.repo, "--keep", "0", "--dry-run").stdout
    done = place.facts("repo", "gc", place.repo, "--keep", "0")
    assert done["removed"] == would["removed"]
    assert place.facts("repo", "verify", place.repo)["faults"] == []


def test_a_stick_and_a_bucket(place: Place, bundles: dict[str, Path]) -> None:
    place.good(*publish(place, bundles["1.0.0"], "100%"), keys="all")
    stick = place.folder / "stick.tar"
    done = place.facts("repo", "export", place.repo, "--release", "tiny", "1.0.0", "--out", stick)
    assert stick.is_file()
    assert "metadata/timestamp.json" in str(done["files"])
    order = place.folder / "order"
    order.write_text(place.good("repo", "upload-order", place.repo).stdout)
    assert order.read_text().splitlines()[-1] == "metadata/timestamp.json\tno-cache"
    place.good("rollout", "--repo", place.repo, "--channel", "stable", "--halt", keys="online")
    further = place.good("repo", "upload-order", place.repo, "--since", order).stdout.splitlines()
    assert [line.split("/")[0] for line in further] == ["targets", "metadata", "metadata", "metadata"]
    assert "cannot be read" in place.fails(2, "repo", "upload-order", place.repo, "--since", place.folder / "no")


def test_piped_output_is_plain_and_each_file_is_one_line(place: Place, bundles: dict[str, Path]) -> None:
    """In a process of its own, as a script sees it."""
    place.good(*publish(place, bundles["1.0.0"], "100%"), keys="all")
    done = edgeonnx("repo", "upload-order", str(place.repo))
    assert (done.returncode, done.stderr) == (0, "")
    assert all(len(line.split("\t")) == 2 for line in done.stdout.splitlines())
    assert ESCAPE not in done.stdout


def test_the_command_line_starts_without_the_libraries_of_repositories() -> None:
    code = (
        "import sys, edgeonnx.cli.main; "
        "print(*[name for name in ('tuf', 'securesystemslib', 'cryptography', 'zstandard') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment(), timeout=60
    )
    assert done.stdout == "\n"
