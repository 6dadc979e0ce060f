"""What an update works with, put together from the settings and the state directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_agent.update.enrollment import read_enrollment
from device_agent.update.policy import Window
from device_agent.update.reports import Reporter
from device_agent.update.transfer.downloader import Downloader
from device_agent.update.transfer.sources.factory import open_source
from device_agent.update.trust.clock import Clock
from device_agent.update.trust.metadata import TrustedMetadata

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_agent.config import AgentConfig, UpdateConfig
    from device_agent.slots.store import Store
    from device_agent.update.enrollment import Enrollment
    from device_agent.update.install.trial import Verdict
    from device_agent.update.transfer.sources import Source

    Trial = Callable[..., Verdict]


def _prove(bundle: Path, config: UpdateConfig, settings: Path | None) -> Verdict:
    from device_agent.update.install.trial import prove  # most runs find nothing to prove

    return prove(bundle, config, settings)


def _choose(metadata: Path, config: UpdateConfig, settings: Path | None) -> Verdict:
    from device_agent.update.install.trial import choose

    return choose(metadata, config, settings)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an update works with.

    Attributes:
        config: The agent's settings.
        settings_file: The file that they came from, for the candidate's process, or None.
        store: The state directory.
        enrollment: Whose offers are followed.
        metadata: What the repository's keys signed.
        downloader: Fetches from the repository.
        clock: The effective time.
        reporter: Tells each state that is written.
        window: When new releases are fetched, or None: at any time.
        prove: Proves a candidate; tests put a fake here.
        choose: Says which variants this machine would run; tests put a fake here.
    """

    config: AgentConfig
    settings_file: Path | None
    store: Store
    enrollment: Enrollment
    metadata: TrustedMetadata
    downloader: Downloader
    clock: Clock
    reporter: Reporter
    window: Window | None = None
    prove: Trial = _prove
    choose: Trial = _choose


def open_parts(config: AgentConfig, settings_file: Path | None, store: Store, *, source: Source | None = None) -> Parts:
    """Put together what an update works with. The update lock must be held.

    Args:
        config: The agent's settings.
        settings_file: The file that they came from, or None.
        store: The state directory.
        source: Where the repository's files come from; None: from where the device is enrolled to.

    Raises:
        NotEnrolledError: The device is not enrolled.
        StateError, NoSpaceError: The state directory cannot be used.
        UsageError: A setting is wrong.
    """
    update = config.update
    window = None if update.window is None else Window.parse(update.window, update.window_zone)
    enrollment = read_enrollment(store)
    store.prepare()
    clock = Clock(store.root / "clock.json", store.disk)
    if source is None:
        source = open_source(enrollment.url, update, check_times=not clock.behind)
    downloader = Downloader(source, update, store.disk)
    return Parts(
        config=config,
        settings_file=settings_file,
        store=store,
        enrollment=enrollment,
        metadata=TrustedMetadata(store.metadata, downloader, clock, store.disk),
        downloader=downloader,
        clock=clock,
        reporter=Reporter(store, update.report_url, enrollment.device),
        window=window,
    )
