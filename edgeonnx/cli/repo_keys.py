"""`edgeonnx repo keys`: who may sign for a role."""

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003 - Typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from edgeonnx.cli.repo_options import (
    KEYS,
    JsonOption,
    KeysOption,
    Passphrase,
    PassphraseOption,
    RepoOption,
    UnencryptedOption,
    open_keys,
)
from edgeonnx.errors import KeyStoreError, UsageError

if TYPE_CHECKING:
    from edgeonnx.repository.signing.draft import Missing

RoleArgument = Annotated[
    str, typer.Argument(metavar="ROLE", help="root, targets, releases, rollout, snapshot or timestamp.")
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", metavar="ID", help="The old key, if the role has several: the beginning of its id."),
]


def generate(
    role: RoleArgument,
    keys: KeysOption = None,
    passphrase_file: PassphraseOption = None,
    unencrypted: UnencryptedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a key in your folder. It signs nothing until `keys add`, or `keys rotate`, puts it into a repository."""
    from edgeonnx.cli import show_repository as show
    from edgeonnx.cli.output import print_json
    from edgeonnx.repository.signing.keys import find_file
    from edgeonnx.repository.signing.roles import check_role

    check_role(role)
    store = open_keys(keys, Passphrase(file=passphrase_file, new=True, unencrypted=unencrypted))
    made = store.generate(role)
    file = find_file(store, made.keyid)
    print_json(show.key_facts(role, made.keyid, file)) if as_json else show.made_key(role, made.keyid, file)


def list_keys(repo: RepoOption, keys: KeysOption = None, as_json: JsonOption = False) -> None:
    """List the keys of each role, how many must sign, when signatures run out, and which keys are here."""
    from edgeonnx.cli import show_repository as show
    from edgeonnx.cli.output import print_json
    from edgeonnx.repository import Repository
    from edgeonnx.repository.listing import list_roles

    store = open_keys(keys, Passphrase(), repo) if keys or os.environ.get(KEYS) else None
    found = list_roles(Repository(repo).state(), store)
    print_json({"roles": [show.role_facts(each) for each in found]}) if as_json else show.roles(found)


def rotate(
    role: RoleArgument,
    repo: RepoOption,
    keys: KeysOption = None,
    key: KeyOption = None,
    passphrase_file: PassphraseOption = None,
    unencrypted: UnencryptedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put a new key in the place of an old one, and sign again what the old one signed.

    The new key is made in the folder that has the old one, else in the first folder that is named.
    """
    from edgeonnx.repository import Repository
    from edgeonnx.repository.listing import role_of
    from edgeonnx.repository.signing.ceremony import match_key, rotate_key
    from edgeonnx.repository.signing.keys import find_file

    secret = Passphrase(file=passphrase_file, new=True, unencrypted=unencrypted)
    store = open_keys(keys, secret, repo)
    repository = Repository(repo)
    old = match_key(role_of(repository.state(), role), role, key)
    file = find_file(store, old)
    home = store.folders[0] if file is None else file.path.parent
    missing = rotate_key(repository, store, role, lambda: store.generate(role, home), old)
    _changed(repo, role, missing, as_json=as_json)


def export(
    role: RoleArgument,
    keys: KeysOption = None,
    key: KeyOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where to [default: standard output].")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the public part of a key in your folder, for a colleague who adds it; no passphrase is needed."""
    from edgeonnx.cli.output import print_json
    from edgeonnx.repository.signing.roles import check_role

    check_role(role)
    files = [each for each in open_keys(keys, Passphrase()).files() if each.role == role]
    fitting = [each for each in files if key is None or each.key_id.startswith(key[: len(each.key_id)])]
    if len(fitting) != 1:
        raise UsageError(
            "say which key" if fitting else "no such key is here",
            where=role,
            expected=" or ".join(f"--key {each.key_id}" for each in files) or f"a key of the role {role}",
        )
    try:
        data = fitting[0].public_path.read_bytes()
    except OSError as error:
        raise KeyStoreError(
            "the public part cannot be read", where=str(fitting[0].public_path), found=error.strerror or str(error)
        ) from None
    if out is not None:
        _write_new(out, data)
    if as_json:
        print_json({"role": role, "key": fitting[0].key_id, "pem": data.decode("ascii", "replace")})
    elif out is None:
        typer.echo(data.decode("ascii", "replace"), nl=False)


def add(
    role: RoleArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The public part, as `keys export` writes it.")],
    repo: RepoOption,
    keys: KeysOption = None,
    passphrase_file: PassphraseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a further key sign for a role; `keys threshold` says how many must."""
    from edgeonnx.repository import Repository
    from edgeonnx.repository.signing.ceremony import add_key
    from edgeonnx.repository.signing.keys import read_public

    store = open_keys(keys, Passphrase(file=passphrase_file), repo)
    _changed(repo, role, add_key(Repository(repo), store, role, read_public(file)), as_json=as_json)


def remove(
    role: RoleArgument,
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, or its beginning.")],
    repo: RepoOption,
    keys: KeysOption = None,
    passphrase_file: PassphraseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a key sign for a role no more."""
    from edgeonnx.repository import Repository
    from edgeonnx.repository.signing.ceremony import remove_key

    store = open_keys(keys, Passphrase(file=passphrase_file), repo)
    _changed(repo, role, remove_key(Repository(repo), store, role, key), as_json=as_json)


def threshold(
    role: RoleArgument,
    count: Annotated[int, typer.Argument(metavar="N", help="How many of the role's keys must sign.")],
    repo: RepoOption,
    keys: KeysOption = None,
    passphrase_file: PassphraseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change how many of a role's keys must sign."""
    from edgeonnx.repository import Repository
    from edgeonnx.repository.signing.ceremony import change_threshold

    store = open_keys(keys, Passphrase(file=passphrase_file), repo)
    _changed(repo, role, change_threshold(Repository(repo), store, role, count), as_json=as_json)


def _write_new(file: Path, data: bytes) -> None:
    try:
        with file.open("xb") as out:
            out.write(data)
    except FileExistsError:
        raise UsageError("it exists already", where=str(file), hint="choose another --out") from None
    except OSError as error:
        raise UsageError("it cannot be written", where=str(file), found=error.strerror or str(error)) from None


def _changed(repo: Path, role: str, missing: tuple[Missing, ...], *, as_json: bool) -> None:
    """Print what a change of keys came to."""
    from edgeonnx.cli import show_repository as show
    from edgeonnx.cli.output import print_json
    from edgeonnx.repository import Repository
    from edgeonnx.repository.listing import list_roles

    found = [each for each in list_roles(Repository(repo).state(), None) if each.role == role]
    if as_json:
        print_json({"roles": [show.role_facts(each) for each in found], "missing": show.missing_facts(missing)})
    elif missing:
        show.waiting(missing, repo)
    else:
        show.roles(found)
