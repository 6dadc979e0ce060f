"""Options that name key folders, and where the passphrase comes from."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeonnx.errors import KeyStoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeonnx.repository import FileKeys

PASSPHRASE = "EDGEONNX_PASSPHRASE"  # noqa: S105 - the variable's name
KEYS = "EDGEONNX_KEYS"

KeysOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--keys", "-k", metavar="KEYDIR", help=f"Folder with private keys; several times. [default: from {KEYS}]"
    ),
]
PassphraseOption = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file", metavar="FILE", help=f"File with the keys' passphrase. [default: {PASSPHRASE}, or ask]"
    ),
]
UnencryptedOption = Annotated[
    bool, typer.Option("--unencrypted", help="Make keys that are not encrypted: whoever has the file can sign.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; no progress.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]
RepoArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The repository's folder.")]
RepoOption = Annotated[
    Path, typer.Option("--repo", "-r", metavar="DIR", envvar="EDGEONNX_REPO", help="The repository's folder.")
]


@dataclass(frozen=True, kw_only=True)
class Passphrase:
    """Gives the passphrase of a key folder: from a file, from the environment, or from the person at the terminal.

    Attributes:
        file: The file, if one was named.
        new: Keys are to be made, so a person types it twice.
        unencrypted: Keys are made without one.
    """

    file: Path | None = None
    new: bool = False
    unencrypted: bool = False

    def __call__(self, folder: Path) -> bytes | None:
        """The passphrase; None if keys are to be made without one."""
        if self.unencrypted:
            return None
        if self.file is not None:
            return _read(self.file)
        if PASSPHRASE in os.environ:
            return os.environ[PASSPHRASE].encode()
        if not sys.stdin.isatty():
            raise KeyStoreError(
                "the keys need a passphrase",
                where=str(folder),
                hint=f"set {PASSPHRASE}, or name a file with --passphrase-file"
                + ("; --unencrypted makes keys without one" if self.new else ""),
            )
        text = typer.prompt(f"Passphrase of {folder}", hide_input=True, confirmation_prompt=self.new, err=True)
        return str(text).encode()


def _read(file: Path) -> bytes:
    """The first line of a passphrase file."""
    try:
        return file.read_bytes().split(b"\n", 1)[0].rstrip(b"\r")
    except OSError as error:
        raise KeyStoreError(
            "the passphrase file cannot be read", where=str(file), found=error.strerror or str(error)
        ) from None


def open_keys(
    keys: Sequence[Path] | None, passphrase: Passphrase, repository: Path | None = None, *, further: Sequence[Path] = ()
) -> FileKeys:
    """The private keys in the folders that were named, or that the environment names.

    Raises:
        UsageError: No folder is named, or one lies in the repository.
    """
    from edgeonnx.repository import FileKeys
    from edgeonnx.repository.signing.keys import check_folders

    named = os.environ.get(KEYS, "")
    folders = [*(keys or [Path(part) for part in named.split(os.pathsep) if part]), *further]
    if not folders:
        raise UsageError("no key folder is named", expected="--keys KEYDIR", hint=f"or set {KEYS}")
    if repository is not None:
        check_folders(repository, folders)
    return FileKeys(folders, passphrase)
