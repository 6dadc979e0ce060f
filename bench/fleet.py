"""A rollout over a fleet, simulated with the agent's own policy code: who gets what, and what the repository sees.

Every device of the fleet asks at the times at which the agent's own schedule lets it ask, and decides with
`device_agent.update.policy.decide` on a real channel policy. Printed are, for each step of the schedule, the share that
was asked for and the share that runs the release; how many devices left a cohort when the share grew (none may); and
requests and bytes per second at the repository. The sizes of metadata are those of a real repository, read by the
production updater.

Peers in the same run: a fleet whose devices throw dice at every check instead of computing their place, and a fleet
that asks by cron, every hour on the hour.

Run it with `PYTHONPATH=. python bench/fleet.py [--devices N] [--update-bytes N]`.
"""

from __future__ import annotations

import argparse
import heapq
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from device_agent.config import UpdateConfig
from device_agent.slots.disk import Disk
from device_agent.slots.state import Installed, SlotState
from device_agent.supervision.schedule import next_wait
from device_agent.update.policy import Action, Situation, decide
from device_agent.update.transfer.downloader import Downloader
from device_agent.update.transfer.sources.folder import FolderSource
from device_agent.update.trust.clock import Clock
from device_agent.update.trust.metadata import TrustedMetadata
from edgeonnx.spec.release import channel_target, release_target
from edgeonnx.spec.rollout import WHOLE, ModelOffers, Offer, OfferState
from tests.support.bundles import make_bundle
from tests.support.repository import TestRepository

MODEL = "tiny"
OLD, NEW = "0" * 64, "1" * 64
HOUR = 3600.0
SCHEDULE = ((0.0, 0.01), (6 * HOUR, 0.1), (12 * HOUR, 0.5), (18 * HOUR, 1.0), (24 * HOUR, 1.0))
"""When the operator raises the share, in seconds, and to what; the last entry ends the simulation."""
CRON_SPREAD = 20.0
"""How far apart, in seconds, boxes with a common cron entry ask: their clocks differ, and their start takes time."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Bytes and requests of one check against a real repository.

    Attributes:
        quiet: Of a check that finds nothing new: bytes, requests.
        policy: Of a check that finds a new policy of the channel.
        release: Of one that also reads a new release.
        update: Bytes of the update's blobs.
    """

    quiet: tuple[int, int]
    policy: tuple[int, int]
    release: tuple[int, int]
    update: int


@dataclass
class Load:
    """What the repository saw, by the second."""

    requests: Counter[int] = field(default_factory=Counter)
    bytes: Counter[int] = field(default_factory=Counter)

    def add(self, at: float, size: int, requests: int) -> None:
        """Count one check."""
        self.requests[int(at)] += requests
        self.bytes[int(at)] += size

    def between(self, start: float, end: float) -> tuple[float, int, float, int]:
        """Requests a second: mean and peak; bytes a second: mean and peak."""
        seconds = range(int(start), int(end))
        requests = [self.requests[second] for second in seconds]
        sizes = [self.bytes[second] for second in seconds]
        return sum(requests) / len(seconds), max(requests), sum(sizes) / len(seconds), max(sizes)


def measure(folder: Path, update_bytes: int) -> Sizes:
    """What a device fetches, counted by the production downloader over a real repository of signed metadata."""
    repository = TestRepository.create(folder / "repository")
    repository.publish(make_bundle(folder, name=MODEL, version="1.0.0"))

    def check(*targets: str) -> tuple[int, int]:
        disk = Disk()
        source = _Counted(FolderSource(repository.path))
        downloader = Downloader(source, UpdateConfig(), disk)
        clock = Clock(folder / "clock.json", disk)
        metadata = TrustedMetadata(folder / "metadata", downloader, clock, disk)
        if not (folder / "metadata" / "root.json").exists():
            metadata.bootstrap(repository.root_bytes)
        metadata.refresh()
        for target in targets:
            assert metadata.target(target) is not None
        return downloader.received, source.opened

    channel = channel_target("stable")
    check(channel, release_target(MODEL, "1.0.0"))
    quiet = check(channel)
    repository.rollout(MODEL, "1.0.0", share=WHOLE // 2, force=True)
    policy = check(channel)
    repository.publish(make_bundle(folder, name=MODEL, version="1.1.0", seed=2))
    release = check(channel, release_target(MODEL, "1.1.0"))
    return Sizes(quiet=quiet, policy=policy, release=release, update=update_bytes)


class _Counted:
    """A source that counts what is opened."""

    def __init__(self, source: FolderSource) -> None:
        self._source = source
        self.opened = 0

    def open(self, path: str, *, offset: int = 0, validator: str | None = None) -> object:
        """Open a file of the repository."""
        self.opened += 1
        return self._source.open(path, offset=offset, validator=validator)


def offers_at(share: float) -> ModelOffers:
    """The channel's policy of a step."""
    parts = round(share * WHOLE)
    new = Offer(version="1.1.0", contents=NEW, share=parts, state=OfferState.OPEN)
    return ModelOffers(offers=(new, Offer(version="1.0.0", contents=OLD, share=WHOLE)))


STATES = {
    OLD: SlotState(model=MODEL, active=Installed(version="1.0.0", contents=OLD)),
    NEW: SlotState(model=MODEL, active=Installed(version="1.1.0", contents=NEW)),
}


def simulate(devices: list[str], sizes: Sizes, seed: int) -> tuple[list[set[int]], Load]:
    """Let the fleet live through the schedule.

    Returns:
        For each step the devices (by index) that run the new release at its end; and what the repository saw.
    """
    rng = random.Random(seed)
    active = [OLD] * len(devices)
    seen = [-1] * len(devices)
    load = Load()
    waiting = [(rng.random() * HOUR, index) for index in range(len(devices))]
    heapq.heapify(waiting)
    after: list[set[int]] = []
    for number, (_, share) in enumerate(SCHEDULE[:-1]):
        offers = offers_at(share)
        until = SCHEDULE[number + 1][0]
        while waiting[0][0] < until:
            now, index = waiting[0]
            decision = decide(Situation(device=devices[index], state=STATES[active[index]], offers=offers))
            size, requests = sizes.quiet if seen[index] == number else sizes.policy
            if decision.action is Action.INSTALL and decision.offer is not None:
                active[index] = decision.offer.contents
                size, requests = sizes.release[0] + sizes.update, sizes.release[1] + 1
            seen[index] = number
            load.add(now, size, requests)
            heapq.heapreplace(waiting, (now + next_wait(HOUR, rng.random()), index))
        after.append({index for index, contents in enumerate(active) if contents == NEW})
    return after, load


def dice(count: int, seed: int) -> list[float]:
    """The share that a fleet has whose devices throw dice at every hourly check."""
    rng = random.Random(seed)
    have, shares = 0, []
    for number, (start, share) in enumerate(SCHEDULE[:-1]):
        for _ in range(int((SCHEDULE[number + 1][0] - start) / HOUR)):
            have += sum(rng.random() < share for _ in range(count - have))
        shares.append(have / count)
    return shares


def cron_peak(count: int, sizes: Sizes, seed: int) -> int:
    """Requests in the busiest second if every device asks on the hour."""
    rng = random.Random(seed)
    seconds = Counter(int(rng.random() * CRON_SPREAD) for _ in range(count))
    return max(seconds.values()) * sizes.quiet[1]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--update-bytes", type=int, default=2_500_000, help="blobs of one update")
    parser.add_argument("--seed", type=int, default=6)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    devices = [f"{rng.getrandbits(128):032x}" for _ in range(arguments.devices)]
    with tempfile.TemporaryDirectory() as folder:
        sizes = measure(Path(folder), arguments.update_bytes)
    for name in ("quiet", "policy", "release"):
        size, requests = getattr(sizes, name)
        print(f"a check, {name}: {size:,} bytes in {requests} requests")
    started = time.perf_counter()
    after, load = simulate(devices, sizes, arguments.seed)
    print(f"{arguments.devices:,} devices, {SCHEDULE[-1][0] / HOUR:g} hours, {time.perf_counter() - started:.0f} s\n")
    thrown = dice(min(arguments.devices, 20_000), arguments.seed)
    print("asked    have     off by    left a cohort   dice     requests/s mean, peak   MB/s mean, peak")
    worst, left, before = 0.0, 0, set[int]()
    for number, (start, share) in enumerate(SCHEDULE[:-1]):
        have = len(after[number]) / arguments.devices
        gone = len(before - after[number])
        mean, peak, size, most = load.between(start, SCHEDULE[number + 1][0])
        print(
            f"{share:6.1%} {have:8.3%} {have - share:+9.3%} {gone:12}   {thrown[number]:10.1%} "
            f"{mean:12.1f} {peak:8} {size / 1e6:14.2f} {most / 1e6:8.2f}"
        )
        worst, left, before = max(worst, abs(have - share)), left + gone, after[number]
    peak = load.between(HOUR, SCHEDULE[-1][0])[1]
    cron = cron_peak(arguments.devices, sizes, arguments.seed)
    print(f"\nlargest difference of a share: {worst:.3%} of the fleet (asked: at most 1 %)")
    print(f"devices that left a cohort as it grew: {left} (asked: 0)")
    print(f"busiest second: {peak} requests; all at the full hour: {cron} ({cron / peak:.0f} times as many)")


if __name__ == "__main__":
    main()
