"""Results of `repo`, `publish` and `rollout`: as facts for `--json`, and drawn for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from edgeonnx.cli import tables
from edgeonnx.cli.output import megabytes, stdout
from edgeonnx.errors import printable
from edgeonnx.repository.share import show_share
from edgeonnx.repository.upkeep.verify import unnamed_files
from edgeonnx.spec.release import delta_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from edgeonnx.repository import Published, Repository
    from edgeonnx.repository.listing import RoleKeys
    from edgeonnx.repository.signing.draft import Missing
    from edgeonnx.repository.signing.keys import KeyFile
    from edgeonnx.repository.upkeep.gc import Collected
    from edgeonnx.repository.upkeep.refresh import Refreshed
    from edgeonnx.repository.upkeep.verify import Verification
    from edgeonnx.spec.rollout import Channel

REPAIR = (
    "publish the release's bundle again to repair blobs; `edgeonnx repo refresh` signs again what has run out; "
    "other files must come from a backup"
)
SHORT = 16
"""Characters of a key id or a digest that people see."""


def day(moment: datetime) -> str:
    """A time for people."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# Facts.


def missing_facts(missing: Sequence[Missing]) -> list[dict[str, object]]:
    """Signatures that lack."""
    return [{"role": each.role, "count": each.count, "keys": list(each.key_ids)} for each in missing]


def key_facts(role: str, key_id: str, file: KeyFile | None) -> dict[str, object]:
    """A key that was made."""
    paths = {} if file is None else {"private": str(file.path), "public": str(file.public_path)}
    return {"role": role, "key": key_id, **paths}


def role_facts(found: RoleKeys) -> dict[str, object]:
    """A role."""
    return {
        "role": found.role,
        "version": found.version,
        "threshold": found.threshold,
        "keys": [{"id": key_id, "private": None if path is None else str(path)} for key_id, path in found.keys.items()],
        "expires": found.expires.isoformat(),
    }


def channel_facts(found: Channel) -> dict[str, object]:
    """A channel."""
    return {"channel": found.name, "models": {name: offers.to_dict() for name, offers in found.models.items()}}


def published_facts(done: Published) -> dict[str, object]:
    """What `publish` did."""
    return {
        "release": {
            "name": done.release.name,
            "version": done.release.version,
            "contents": done.release.contents,
            "size": done.release.size,
            "deltas": [{**delta.to_dict(), "path": delta_path(delta)} for delta in done.release.deltas],
        },
        "new": done.new,
        "blobs": {"written": done.written.blobs, "bytes": done.written.wire_bytes, "present": done.written.present},
        **channel_facts(done.channel),
        "missing": missing_facts(done.missing),
    }


def refreshed_facts(done: Refreshed) -> dict[str, object]:
    """What `repo refresh` did."""
    return {
        "renewed": list(done.renewed),
        "due": list(done.due),
        "expires": {role: moment.isoformat() for role, moment in done.expires.items()},
    }


def verification_facts(found: Verification) -> dict[str, object]:
    """What `repo verify` found."""
    return {
        "faults": found.faults,
        "releases": [f"{each.name} {each.version}" for each in found.releases],
        "channels": [each.name for each in found.channels],
        "blobs": found.blobs,
        "deltas": found.deltas,
        "bytes": found.wire_bytes,
        "expires": {role: moment.isoformat() for role, moment in found.expires.items()},
    }


def collected_facts(found: Collected, *, dry_run: bool) -> dict[str, object]:
    """What `repo gc` removed."""
    return {"dry_run": dry_run, "removed": list(found.paths), "bytes": found.bytes, "kept": found.kept}


# Drawn.


def made_key(role: str, key_id: str, file: KeyFile | None) -> None:
    """The result of `keys generate`."""
    rows = {"role": role, "key": key_id}
    if file is not None:
        rows |= {"private": f"{file.path} (stays with you)", "public": f"{file.public_path} (for `keys add`)"}
    stdout().print(tables.facts(rows.items()))


def roles(found: Sequence[RoleKeys]) -> None:
    """The roles with their keys."""
    table = tables.table("role", ">version", ">must sign", "keys", "expires")
    for each in found:
        held = [f"{key_id[:SHORT]}{'' if path is None else ' *'}" for key_id, path in each.keys.items()]
        tables.row(
            table,
            each.role,
            str(each.version),
            f"{each.threshold} of {len(held)}",
            held[0] if held else "",
            f"{each.expires:%Y-%m-%d %H:%M}",
        )
        for further in held[1:]:
            tables.row(table, "", "", "", further, "")
    console = stdout()
    console.print(table)
    if any(path is not None for each in found for path in each.keys.values()):
        console.print(Text("* the private key is in a folder that was named", style="dim"))


def made_repository(repo: Path, root: Path, found: Sequence[RoleKeys]) -> None:
    """The result of `repo init`."""
    roles(found)
    console = stdout()
    console.print(Text.assemble("repository: ", (str(repo), "bold")))
    console.print(Text.assemble("enroll devices with: ", (str(root), "bold")))
    console.print("keep the keys of root, targets and releases off machines that face a network")


def written(done: Published) -> str:
    """What `publish` wrote, in one line."""
    parts = [f"{done.written.blobs} written ({megabytes(done.written.wire_bytes)})", f"{done.written.present} present"]
    if done.new and done.release.deltas:
        size = sum(delta.size for delta in done.release.deltas)
        parts.append(f"{_counted(len(done.release.deltas), 'difference')} ({megabytes(size)})")
    return ", ".join(parts)


def published(done: Published) -> None:
    """The result of `publish`."""
    release = done.release
    console = stdout()
    rows = {
        "release": f"{release.name} {release.version}{'' if done.new else ' (was published before)'}",
        "digest": f"sha256:{release.contents}",
        "size": megabytes(release.size),
        "blobs": written(done),
    }
    console.print(tables.facts(rows.items()))
    if done.missing:
        waiting(done.missing, None)
    else:
        channel(done.channel)


def waiting(missing: Sequence[Missing], repo: Path | None) -> None:
    """What a change waits for."""
    console = stdout()
    console.print(Text("not out yet: it waits for", style="yellow"))
    for each in missing:
        console.print(Text(f"  - {each}"))
    console.print(f"sign it with `edgeonnx repo sign {'DIR' if repo is None else repo} --keys KEYDIR`")


def channel(found: Channel) -> None:
    """A channel's policy."""
    console = stdout()
    table = tables.table("channel", "model", "version", ">share", "state", "digest")
    for name, offers in sorted(found.models.items()):
        for offer in offers.offers:
            share = show_share(offer.share)
            tables.row(table, found.name, name, offer.version, share, offer.state.value, offer.contents[:SHORT])
    console.print(table)
    for name, offers in sorted(found.models.items()):
        if offers.minimum_version is not None:
            console.print(Text(f"{name}: devices never go below {offers.minimum_version}"))


def changes(lines: Sequence[str]) -> None:
    """What a change that waits would do."""
    console = stdout()
    for line in lines or ["nothing waits for signatures"]:
        console.print(Text(printable(line)), soft_wrap=True)


def signed(done: Sequence[str], missing: Sequence[Missing], repo: Path) -> None:
    """The result of `repo sign`."""
    console = stdout()
    if done:
        console.print(f"signed: {', '.join(done)}")
    elif missing:
        console.print(Text("nothing was signed: no key that it waits for is here", style="yellow"))
    if missing:
        waiting(missing, repo)
    else:
        console.print(Text("it is complete, and out", style="green"))


def discarded(dropped: bool) -> None:
    """The result of `repo sign --discard`."""
    stdout().print("dropped; `edgeonnx repo gc` removes its files" if dropped else "nothing waited for signatures")


def refreshed(done: Refreshed) -> None:
    """The result of `repo refresh`."""
    table = tables.table("role", "expires", "")
    for role, moment in done.expires.items():
        note = "signed again" if role in done.renewed else "DUE: name its keys with --keys" if role in done.due else ""
        tables.row(table, role, day(moment), note)
    stdout().print(table)


def verification(repository: Repository, found: Verification) -> None:
    """The result of `repo verify`, if nothing is wrong."""
    console = stdout()
    unnamed = unnamed_files(repository.files, found)
    rows = {
        "releases": ", ".join(f"{each.name} {each.version}" for each in found.releases) or "none",
        "channels": ", ".join(each.name for each in found.channels) or "none",
        "blobs": f"{found.blobs}, and {_counted(found.deltas, 'difference')}: {megabytes(found.wire_bytes)}",
        "older files": f"{len(unnamed)}, which `edgeonnx repo gc` looks at",
        "expires": f"{min(found.expires, key=lambda role: found.expires[role])} first, "
        f"on {day(min(found.expires.values()))}",
    }
    console.print(tables.facts(rows.items()))
    console.print(Text("the repository is good", style="green"))


def retired(name: str, version: str, missing: Sequence[Missing], repo: Path) -> None:
    """The result of `repo retire`."""
    if missing:
        waiting(missing, repo)
    else:
        stdout().print(Text(f"{name} {version} is retired; `edgeonnx repo gc` removes its files later"))


def collected(found: Collected, *, dry_run: bool) -> None:
    """The result of `repo gc`."""
    console = stdout()
    for path in found.paths:
        console.print(Text(path), soft_wrap=True)
    verb = "would be removed" if dry_run else "removed"
    console.print(f"{len(found.paths)} files {verb} ({megabytes(found.bytes)}), {found.kept} stay")


def exported(out: Path, paths: Sequence[str]) -> None:
    """The result of `repo export`."""
    console = stdout()
    console.print(f"{len(paths)} files in {out}")
    console.print(Text.assemble("on the device: ", (f"edgeonnx-agent import {out.name}", "bold")))
