"""The repository index: every model that serves, or could."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_agent.models.states import ModelEntry, ModelState
from edgeonnx.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from device_agent.models.repository import Found
    from device_agent.models.states import Record


def index_of(records: Iterable[Record], found: Iterable[Found]) -> list[ModelEntry]:
    """One entry for each name and version: what was tried to serve first, then what lies on the disk.

    Args:
        records: The attempts to serve a bundle.
        found: The bundles that could be loaded.
    """
    entries = [_entry(record) for record in records]
    known = {(entry.name, entry.version) for entry in entries}
    for each in found:
        if (each.name, each.version) in known:
            continue
        known.add((each.name, each.version))
        state = ModelState.UNLOADED if each.error is None else ModelState.FAILED
        reason = "" if each.error is None else printable(each.error)
        entries.append(ModelEntry(name=each.name, version=each.version, state=state, reason=reason))
    return entries


def _entry(record: Record) -> ModelEntry:
    reason, live = record.reason, record.live
    if record.state is ModelState.READY and live is not None:
        changed = live.loaded.changed_files()
        if changed:
            reason = f"{len(changed)} files changed on disk since they were verified ({changed[0]}): load it again"
    return ModelEntry(name=record.name, version=record.version, state=record.state, reason=reason)
