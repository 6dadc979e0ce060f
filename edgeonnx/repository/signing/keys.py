"""Signing keys in folders of people: Ed25519, as PKCS#8 in PEM, encrypted under a passphrase.

    KEYDIR/releases-3f2a91c4d0e1b2c3.pem     the private key, mode 0600
    KEYDIR/releases-3f2a91c4d0e1b2c3.pub     the public one (SubjectPublicKeyInfo in PEM), for a colleague to add

The number in a name is the beginning of the TUF key id. So the key that metadata asks for is found by its name, and
only that one is decrypted; the role in the name is for people.
"""

from __future__ import annotations

import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgeonnx.errors import KeyStoreError, UsageError, first_line
from edgeonnx.repository.files import Files
from edgeonnx.repository.signing.roles import OFFLINE, check_role

with warnings.catch_warnings():  # cryptography announces the end of key types that are not used here
    warnings.simplefilter("ignore")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
        load_pem_public_key,
    )
    from securesystemslib.exceptions import Error as SigningError
    from securesystemslib.signer import CryptoSigner, Key, SSlibKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from securesystemslib.signer import Signer

ID_LENGTH = 16
"""Characters of a key's id that are in its file's name: 64 bits, more than enough to tell a person's keys apart."""
MIN_PASSPHRASE = 12
"""Characters that a passphrase must have: PKCS#8's key derivation, as written here, takes 2,048 rounds only, so that a
short one could be guessed by whoever has the file."""


class KeyStore(Protocol):
    """Where private keys come from."""

    def signer(self, key: Key) -> Signer | None:
        """What signs with the private part of a key, or None if it is not here.

        Raises:
            KeyStoreError: It is here and cannot be used.
        """


@dataclass(frozen=True, kw_only=True)
class KeyFile:
    """One private key in a folder.

    Attributes:
        path: Its file.
        role: The role that it was made for, from the name.
        key_id: The beginning of its id, from the name.
    """

    path: Path
    role: str
    key_id: str

    @property
    def public_path(self) -> Path:
        """The file of the public part."""
        return self.path.with_suffix(".pub")


class FileKeys:
    """Private keys in one or more folders.

    Args:
        folders: The folders; those that do not exist are empty.
        passphrase: Called with a folder, at most once for each, when a key there is encrypted or is made; None makes
            keys that are not encrypted, and must be asked for by the user.
    """

    def __init__(self, folders: Sequence[Path], passphrase: Callable[[Path], bytes | None]) -> None:
        self.folders = tuple(folders)
        self._passphrase = passphrase
        self._known: dict[Path, bytes | None] = {}
        self._signers: dict[str, CryptoSigner] = {}

    def signer(self, key: Key) -> Signer | None:
        """What signs with a key, from the first folder that has it; None if none has."""
        if key.keyid not in self._signers:
            found = find_file(self, key.keyid)
            if found is None or not isinstance(key, SSlibKey):
                return None
            self._signers[key.keyid] = self._load(found, key)
        return self._signers[key.keyid]

    def unlock(self) -> None:
        """Ask for the passphrases of all folders with encrypted keys now, before a live display has the terminal."""
        for file in self.files():
            if b"ENCRYPTED" in self._read(file):
                self._passphrase_of(file.path.parent)

    def files(self) -> Iterable[KeyFile]:
        """All private keys, in the order of the folders and of their names."""
        for folder in self.folders:
            for path in sorted(folder.glob(f"*-{'[0-9a-f]' * ID_LENGTH}.pem")):
                role, _, key_id = path.stem.rpartition("-")
                yield KeyFile(path=path, role=role, key_id=key_id)

    def generate(self, role: str, folder: Path | None = None) -> SSlibKey:
        """Make a key for a role in a folder (the first one, if none is named).

        Returns:
            The public part.

        Raises:
            KeyStoreError: The folder cannot be written.
        """
        place = folder or self.folders[0]
        private = Ed25519PrivateKey.generate()
        signer = CryptoSigner(private)
        passphrase = check_passphrase(self._passphrase_of(place))
        encryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
        pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        stem = f"{check_role(role)}-{signer.public_key.keyid[:ID_LENGTH]}"
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            files = Files(place)
            files.write(f"{stem}.pub", public_pem(signer.public_key))
            files.write(f"{stem}.pem", pem, 0o600)
        except OSError as error:
            raise KeyStoreError(
                "the key folder cannot be written", where=str(place), found=error.strerror or str(error)
            ) from None
        self._signers[signer.public_key.keyid] = signer
        return signer.public_key

    def _passphrase_of(self, folder: Path) -> bytes | None:
        if folder not in self._known:
            self._known[folder] = self._passphrase(folder)
        return self._known[folder]

    def _load(self, file: KeyFile, key: SSlibKey) -> CryptoSigner:
        pem = self._read(file)
        passphrase = self._passphrase_of(file.path.parent) if b"ENCRYPTED" in pem else None
        try:
            private = load_pem_private_key(pem, passphrase)
            return CryptoSigner(private, key)
        except (ValueError, TypeError, UnsupportedAlgorithm, SigningError) as error:
            raise KeyStoreError(
                "the private key cannot be used",
                where=str(file.path),
                expected=f"the {file.role} key {key.keyid[:ID_LENGTH]}, under the passphrase that was given",
                found=first_line(error),
                hint="check EDGEONNX_PASSPHRASE or --passphrase-file",
            ) from None

    def _read(self, file: KeyFile) -> bytes:
        """A private key's file, which must be for its owner alone."""
        where = str(file.path)
        try:
            mode = stat.S_IMODE(file.path.stat().st_mode)
            pem = file.path.read_bytes()
        except OSError as error:
            raise KeyStoreError("the key cannot be read", where=where, found=error.strerror or str(error)) from None
        if mode & 0o077:
            raise KeyStoreError(
                "others can read the private key",
                where=where,
                expected="mode 0600",
                found=f"mode {mode:04o}",
                hint=f"chmod 600 {where}; if others may have read it, replace it with `edgeonnx repo keys rotate`",
            )
        return pem


def check_passphrase(passphrase: bytes | None) -> bytes | None:
    """Return the passphrase if it is long enough; None stands for a key that is not encrypted.

    Raises:
        KeyStoreError: It is too short.
    """
    if passphrase is not None and len(passphrase) < MIN_PASSPHRASE:
        raise KeyStoreError(
            "the passphrase is too short",
            expected=f"at least {MIN_PASSPHRASE} characters",
            found=f"{len(passphrase)}",
            hint="use several words; --unencrypted makes keys without one",
        )
    return passphrase


def public_pem(key: SSlibKey) -> bytes:
    """The public part of a key as SubjectPublicKeyInfo in PEM."""
    raw = bytes.fromhex(key.keyval["public"])
    return Ed25519PublicKey.from_public_bytes(raw).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def read_public(path: Path) -> SSlibKey:
    """A public key from a PEM file: one that `generate` or openssl wrote.

    Raises:
        KeyStoreError: It is none, or of a kind that metadata cannot use.
    """
    try:
        return SSlibKey.from_crypto(load_pem_public_key(path.read_bytes()))
    except OSError as error:
        raise KeyStoreError("the key cannot be read", where=str(path), found=error.strerror or str(error)) from None
    except (ValueError, UnsupportedAlgorithm, SigningError) as error:
        raise KeyStoreError(
            "is no public key",
            where=str(path),
            expected="the .pub file of `edgeonnx repo keys generate`, or another public key in PEM",
            found=first_line(error),
        ) from None


def check_folders(repository: Path, folders: Iterable[Path]) -> None:
    """Refuse key folders inside the repository: the repository is copied to a web server.

    Raises:
        UsageError: One is.
    """
    root = Path(os.path.realpath(repository))
    for folder in folders:
        if Path(os.path.realpath(folder)).is_relative_to(root):
            raise UsageError(
                "the key folder lies in the repository, and would be uploaded with it",
                where=str(folder),
                expected=f"a folder outside {root}",
            )


def home_of(role: str, offline: Path, online: Path) -> Path:
    """The folder for a new key of a role."""
    return offline if role in OFFLINE else online


def find_file(keys: FileKeys, key_id: str) -> KeyFile | None:
    """The file of a key, or None if it is not in these folders."""
    return next((each for each in keys.files() if each.key_id == key_id[:ID_LENGTH]), None)


def keys_for(keys: FileKeys, role: str, count: int, home: Path) -> list[Key]:
    """The public parts of all keys of a role in these folders; as many are made as are missing.

    Args:
        keys: The folders.
        role: The role.
        count: How many are needed.
        home: The folder for those that are made.
    """
    found: list[Key] = [read_public(file.public_path) for file in keys.files() if file.role == role]
    return found + [keys.generate(role, home) for _ in range(count - len(found))]
