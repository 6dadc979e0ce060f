"""Private keys in folders."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import Key

from edgeonnx.errors import KeyStoreError, UsageError
from edgeonnx.repository.signing.keys import FileKeys, check_folders, find_file, keys_for, read_public

PASSPHRASE = b"correct horse battery"


def store(*folders: Path, passphrase: bytes | None = PASSPHRASE) -> FileKeys:
    return FileKeys(folders, lambda _: passphrase)


def signs(keys: FileKeys, key: Key) -> bool:
    signer = keys.signer(key)
    if signer is None:
        return False
    signature = signer.sign(b"payload")
    key.verify_signature(signature, b"payload")
    with pytest.raises(UnverifiedSignatureError):
        key.verify_signature(signature, b"other")
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def key(folder: Path) -> Key:
    return store(folder).generate("releases")


def test_a_key_is_encrypted_and_for_its_owner_alone(folder: Path, key: Key) -> None:
    private, public = sorted(folder.iterdir())
    assert private.name == f"releases-{key.keyid[:16]}.pem"
    assert private.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    assert read_public(public) == key


def test_a_key_is_found_by_its_id_in_any_of_the_folders(folder: Path, key: Key, tmp_path: Path) -> None:
    assert signs(store(tmp_path / "empty", folder), key)
    assert store(tmp_path / "empty").signer(key) is None


def test_the_passphrase_is_asked_for_once_and_only_where_a_key_is_used(folder: Path, key: Key, tmp_path: Path) -> None:
    asked = []
    other = store(tmp_path / "other").generate("releases")

    def ask(place: Path) -> bytes:
        asked.append(place)
        return PASSPHRASE

    keys = FileKeys([folder, tmp_path / "other"], ask)
    assert signs(keys, key)
    assert signs(keys, key)
    assert asked == [folder]
    assert signs(keys, other)
    assert asked == [folder, tmp_path / "other"]
    asked.clear()
    FileKeys([folder, tmp_path / "none"], ask).unlock()
    assert asked == [folder]


@pytest.mark.parametrize("passphrase", [b"wrong horse battery", None], ids=["wrong", "none"])
def test_a_wrong_passphrase_is_said_to_be_wrong(folder: Path, key: Key, passphrase: bytes | None) -> None:
    with pytest.raises(KeyStoreError, match="private key cannot be used") as caught:
        store(folder, passphrase=passphrase).signer(key)
    assert caught.value.where == str(folder / f"releases-{key.keyid[:16]}.pem")


def test_a_key_that_others_can_read_is_refused(folder: Path, key: Key) -> None:
    (folder / f"releases-{key.keyid[:16]}.pem").chmod(0o640)
    with pytest.raises(KeyStoreError, match="others can read"):
        store(folder).signer(key)


def test_another_key_under_its_name_is_refused(folder: Path, key: Key) -> None:
    other = store(folder).generate("releases")
    found = find_file(store(folder), other.keyid)
    assert found is not None
    found.path.replace(folder / f"releases-{key.keyid[:16]}.pem")
    with pytest.raises(KeyStoreError, match="private key cannot be used"):
        store(folder).signer(key)


def test_a_key_without_a_passphrase_must_be_asked_for(folder: Path) -> None:
    with pytest.raises(KeyStoreError, match="too short"):
        store(folder, passphrase=b"short").generate("releases")
    assert not folder.exists()
    key = store(folder, passphrase=None).generate("releases")
    assert signs(store(folder, passphrase=None), key)


def test_as_many_keys_are_made_as_are_missing(folder: Path, key: Key) -> None:
    keys = store(folder)
    made = keys_for(keys, "releases", 2, folder)
    assert made[0].keyid == key.keyid
    assert len({each.keyid for each in made}) == 2
    again = keys_for(store(folder), "releases", 2, folder)
    assert {each.keyid for each in again} == {each.keyid for each in made}


def test_openssl_reads_and_writes_such_keys(folder: Path, key: Key, tmp_path: Path) -> None:
    private = folder / f"releases-{key.keyid[:16]}.pem"
    command = ["openssl", "pkey", "-in", str(private), "-passin", "env:P", "-pubout"]
    done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "P": PASSPHRASE.decode()})
    assert done.stdout == private.with_suffix(".pub").read_bytes()
    # One that is encrypted better than this library can: the derivation of its key takes memory.
    strong = tmp_path / "strong.pem"
    command = ["openssl", "pkcs8", "-topk8", "-scrypt", "-in", str(private), "-passin", "env:P", "-passout", "env:P"]
    subprocess.run([*command, "-out", str(strong)], check=True, env={**os.environ, "P": PASSPHRASE.decode()})
    strong.replace(private)
    assert signs(store(folder), key)


@pytest.mark.parametrize("data", [b"", b"junk", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_what_is_no_public_key_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "k.pub").write_bytes(data)
    with pytest.raises(KeyStoreError, match="is no public key"):
        read_public(tmp_path / "k.pub")


def test_a_key_folder_in_the_repository_is_refused_also_behind_a_link(tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    (repository / "keys").mkdir(parents=True)
    (tmp_path / "link").symlink_to(repository / "keys")
    for folder in (repository, repository / "keys", tmp_path / "link", repository / "not" / "yet"):
        with pytest.raises(UsageError, match="would be uploaded"):
            check_folders(repository, [folder])
    check_folders(repository, [tmp_path / "repo-keys"])
