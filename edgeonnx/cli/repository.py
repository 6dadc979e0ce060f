"""`edgeonnx repo`: a repository of releases, made, kept valid, looked at, carried elsewhere."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path  # noqa: TC003 - Typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from edgeonnx.cli import publishing, repo_keys
from edgeonnx.cli.repo_options import (
    JsonOption,
    KeysOption,
    Passphrase,
    PassphraseOption,
    QuietOption,
    RepoArgument,
    UnencryptedOption,
    open_keys,
)
from edgeonnx.errors import UntrustedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Verb = Callable[..., None]

HELP = "A repository of releases: static files that devices verify by its keys."
KEYS_HELP = "The repository's keys: who may sign for which role."


def register(app: typer.Typer, reported: Callable[[Verb], Verb]) -> None:
    """Add the verbs to the command line.

    Args:
        app: The command line.
        reported: Turns our errors into messages and exit codes.
    """
    repo = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    keys = typer.Typer(help=KEYS_HELP, no_args_is_help=True, rich_markup_mode=None)
    verbs: dict[str, Verb] = {"publish": publishing.publish, "rollout": publishing.rollout}
    repo_verbs: dict[str, Verb] = {
        "init": init,
        "sign": sign,
        "refresh": refresh,
        "verify": verify,
        "retire": retire,
        "gc": gc,
        "export": export,
        "upload-order": upload_order,
    }
    key_verbs: dict[str, Verb] = {
        "generate": repo_keys.generate,
        "list": repo_keys.list_keys,
        "export": repo_keys.export,
        "add": repo_keys.add,
        "remove": repo_keys.remove,
        "rotate": repo_keys.rotate,
        "threshold": repo_keys.threshold,
    }
    for place, found in ((app, verbs), (repo, repo_verbs), (keys, key_verbs)):
        for name, verb in found.items():
            place.command(name)(reported(verb))
    repo.add_typer(keys, name="keys")
    app.add_typer(repo, name="repo")


def init(
    repo: RepoArgument,
    keys: KeysOption = None,
    offline_keys: Annotated[
        Path | None,
        typer.Option(
            "--offline-keys", metavar="KEYDIR", help="Folder for root, targets and releases. [default: that of --keys]"
        ),
    ] = None,
    threshold: Annotated[
        int, typer.Option("--threshold", min=1, help="How many keys must sign a release; as many are made.")
    ] = 1,
    expires: Annotated[
        list[str] | None,
        typer.Option(
            "--expires",
            metavar="ROLE=DAYS",
            help="How long a role's signatures hold; several times. [default: root, targets, releases 365, rollout 90, "
            "snapshot 14, timestamp 3]",
        ),
    ] = None,
    passphrase_file: PassphraseOption = None,
    unencrypted: UnencryptedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a repository: the keys that are missing, and the first signed metadata.

    Devices are enrolled with metadata/1.root.json, which must reach them over a way that you trust.
    """
    from edgeonnx.cli import show_repository as show
    from edgeonnx.cli.output import print_json
    from edgeonnx.repository import Files, Settings, create_repository
    from edgeonnx.repository.create import check_new
    from edgeonnx.repository.listing import list_roles
    from edgeonnx.repository.signing.keys import home_of, keys_for
    from edgeonnx.repository.signing.roles import EXPIRES, RELEASES, ROLES

    settings = Settings(expires={**EXPIRES, **_periods(expires or [])})
    files = Files(repo)
    check_new(files)
    further = [] if offline_keys is None else [offline_keys]
    store = open_keys(keys, Passphrase(file=passphrase_file, new=True, unencrypted=unencrypted), repo, further=further)
    counts = {role: threshold if role == RELEASES else 1 for role in ROLES}
    role_keys = {
        role: keys_for(store, role, count, home_of(role, offline_keys or store.folders[0], store.folders[0]))
        for role, count in counts.items()
    }
    state = create_repository(files, role_keys, store, thresholds=counts, settings=settings)
    found = list_roles(state, store)
    root = repo / "metadata" / "1.root.json"
    if as_json:
        print_json({"repository": str(repo), "root": str(root), "roles": [show.role_facts(each) for each in found]})
    else:
        show.made_repository(repo, root, found)


def _periods(texts: Sequence[str]) -> dict[str, timedelta]:
    """`ROLE=DAYS`, several times."""
    from edgeonnx.repository.signing.roles import check_role

    found = {}
    for text in texts:
        role, _, days = text.partition("=")
        try:
            period = timedelta(days=float(days))
        except (ValueError, OverflowError):
            period = timedelta(0)
        if not timedelta(minutes=1) <= period <= timedelta(days=3650):
            raise UsageError(
                "is no period", where="--expires", expected="ROLE=DAYS, at most 3650 days", found=repr(text[:60])
            )
        found[check_role(role)] = period
    return found


def sign(
    repo: RepoArgument,
    keys: KeysOption = None,
    show: Annotated[bool, typer.Option("--show", help="Print what waits; sign nothing, and need no key.")] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Drop what waits instead of signing it.")] = False,
    passphrase_file: PassphraseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign the release, or the change of keys, that waits for further signatures; it goes out once it is complete.

    What is signed is printed: compare a release's digest with the one that `edgeonnx inspect` shows of the bundle.
    """
    from edgeonnx.cli import show_repository
    from edgeonnx.cli.output import print_json
    from edgeonnx.repository import Repository
    from edgeonnx.repository.signing.ceremony import describe_pending, discard_pending, sign_pending

    repository = Repository(repo)
    if discard:
        dropped = discard_pending(repository)
        print_json({"discarded": dropped}) if as_json else show_repository.discarded(dropped)
        return
    changes = describe_pending(repository)
    if show:
        print_json({"changes": changes}) if as_json else show_repository.changes(changes)
        return
    signed, missing = sign_pending(repository, open_keys(keys, Passphrase(file=passphrase_file), repo))
    if as_json:
        facts = show_repository.missing_facts(missing)
        print_json({"changes": changes, "signed": signed, "missing": facts})
    else:
        show_repository.changes(changes)
        show_repository.signed(signed, missing, repo)


def refresh(
    repo: RepoArgument,
    keys: KeysOption = None,
    passphrase_file: PassphraseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign the timestamp again, and what else is due; run it every day by cron, with the online keys."""
    from edgeonnx.cli import show_repository as show
    from edgeonnx.cli.output import print_json
    from edgeonnx.repository import Repository
    from edgeonnx.repository.upkeep.refresh import refresh as run_refresh

    done = run_refresh(Repository(repo), open_keys(keys, Passphrase(file=passphrase_file), repo))
    print_json(show.refreshed_facts(done)) if as_json else show.refreshed(done)


def verify(repo: RepoArgument, as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Look at all of a repository as a client does: every signature, every release, every blob."""
    from edgeonnx.cli import show_repository as show
    from edgeonnx.cli.output import Stages, print_json
    from edgeonnx.repository import Repository
    from edgeonnx.repository.upkeep.verify import verify as run_verify

    repository = Repository(repo)
    with Stages(quiet=quiet or as_json) as stages:
        begun = time.monotonic()
        stages.started("blobs", "decoding all of them")
        found = run_verify(repository, stages.advanced)
        stages.finished("blobs", f"{found.blobs} looked at", time.monotonic() - begun)
    if as_json:
        print_json(show.verification_facts(found))
        if found.faults:
            raise typer.Exit(UntrustedError.exit_code)
    elif found.faults:
        raise UntrustedError(
            "the repository is damaged", where=str(repo), details=tuple(found.faults), hint=show.REPAIR
        )
    else:
        show.verification(repository, found)


def retire(
    repo: RepoArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model's name.")],
    version: Annotated[str, typer.Argument(metavar="VERSION", help="The release's version.")],
    keys: KeysOption = None,
    passphrase_file: PassphraseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take an old release out of the signed lists, so that `gc` can remove its blobs."""
    from edgeonnx.cli import show_repository as show
    from edgeonnx.cli.output import print_json
    from edgeonnx.repository import Repository
    from edgeonnx.repository.upkeep.retire import retire as run_retire

    missing = run_retire(Repository(repo), open_keys(keys, Passphrase(file=passphrase_file), repo), name, version)
    if as_json:
        print_json({"retired": f"{name} {version}", "missing": show.missing_facts(missing)})
    else:
        show.retired(name, version, missing, repo)


def gc(
    repo: RepoArgument,
    keep: Annotated[
        int, typer.Option("--keep", min=0, help="States before the present one whose files stay, for clients midway.")
    ] = 5,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be removed; remove nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove files that no current release, channel or recent state names."""
    from edgeonnx.cli import show_repository as show
    from edgeonnx.cli.output import print_json
    from edgeonnx.repository import Repository
    from edgeonnx.repository.upkeep.gc import collect

    found = collect(Repository(repo), keep=keep, dry_run=dry_run)
    print_json(show.collected_facts(found, dry_run=dry_run)) if as_json else show.collected(found, dry_run=dry_run)


def export(
    repo: RepoArgument,
    release: Annotated[
        tuple[str, str],
        typer.Option("--release", metavar="NAME VERSION", help="The release that the device shall have."),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="A folder to make, or an archive: a name that ends in .tar.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Write the part of a repository that a device without a network needs, for `edgeonnx-agent import`."""
    from edgeonnx.cli import show_repository as show
    from edgeonnx.cli.output import print_json
    from edgeonnx.repository import Repository
    from edgeonnx.repository.upkeep.carry import export as run_export

    paths = run_export(Repository(repo), [release], out)
    print_json({"out": str(out), "files": paths}) if as_json else show.exported(out, paths)


def upload_order(
    repo: RepoArgument,
    since: Annotated[
        Path | None,
        typer.Option("--since", metavar="FILE", help="An earlier output of this command: only what is new is printed."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the files in the order in which they must be copied to a bucket, each with its Cache-Control.

    One line each: path, a tab, the header's value. Copied in this order, the bucket serves a whole state all the time.
    """
    from edgeonnx.cli.output import print_json
    from edgeonnx.repository import Repository
    from edgeonnx.repository.upkeep.carry import upload_order as run_order

    found = run_order(Repository(repo), () if since is None else _paths_in(since))
    if as_json:
        print_json({"files": [{"path": each.path, "cache_control": each.cache_control} for each in found]})
        return
    for each in found:
        typer.echo(f"{each.path}\t{each.cache_control}")


def _paths_in(file: Path) -> list[str]:
    """The paths of an earlier output."""
    try:
        return [line.split("\t", 1)[0] for line in file.read_text("utf-8").splitlines() if line]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("cannot be read", where=str(file), found=str(error)) from None
