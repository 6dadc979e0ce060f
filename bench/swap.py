"""What does a swap of a model cost, and does anything stay behind?

Two versions of one bundle (the same files under two version numbers) take each other's place in a serving agent, again
and again. Printed are the seconds of a swap, and what the process holds after a few swaps and after all: resident
memory, threads, open files, mappings. The peer is an agent that only loads once: what the first version took.

Run it with `PYTHONPATH=. python bench/swap.py BUNDLE [--swaps N]`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from edgeonnx.bundle import identify
from tests.support.agent import Agent
from tests.support.tamper import edit_json, relist

LIMIT_GROWTH = 0.05
WARM_UP = 6


def versions_of(bundle: Path, folder: Path) -> list[Path]:
    """Two copies of a bundle that share its files' contents, with the versions 1 and 2."""
    copies = []
    for version in ("1", "2"):
        copy = folder / version
        for path in sorted(bundle.rglob("*")):
            target = copy / path.relative_to(bundle)
            if path.is_dir():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".json":
                target.write_bytes(path.read_bytes())
            else:
                os.link(path, target)
        edit_json(copy, "manifest.json", lambda document, version=version: document.update(package_version=version))
        for name in ("report.html", "timings.json"):
            (copy / name).unlink(missing_ok=True)
        relist(copy)
        copies.append(copy)
    return copies


def held(pid: int) -> dict[str, int]:
    """Resident bytes, threads, open files and mappings of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    return {
        "anonymous bytes": int(status["RssAnon"].split()[0]) * 1024,
        "resident bytes": int(status["VmRSS"].split()[0]) * 1024,
        "threads": int(status["Threads"]),
        "open files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "mappings": len(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()),
    }


def settled(client: httpx.Client, pid: int) -> dict[str, int]:
    """What the process holds once no version is being unloaded."""
    while [entry for entry in client.post("/v2/repository/index", json={}).json() if entry["state"] == "UNLOADING"]:
        time.sleep(0.01)
    return held(pid)


def main() -> None:
    """Swap and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--swaps", type=int, default=50, help="swaps that are counted (default: 50)")
    options = parser.parse_args()
    name, _, _ = identify(options.bundle)
    with tempfile.TemporaryDirectory(dir=options.bundle.resolve().parent) as folder:
        first, _ = versions_of(options.bundle, Path(folder))
        arguments = ("--repository", folder, "--log-level", "warning")
        with Agent(bundle=first, arguments=arguments) as agent, httpx.Client(base_url=agent.url, timeout=60) as client:
            seconds: list[float] = []

            def swap(count: int) -> dict[str, int]:
                for number in range(count):
                    begun = time.perf_counter()
                    body = {"parameters": {"version": "2" if number % 2 == 0 else "1"}}
                    client.post(f"/v2/repository/models/{name}/load", json=body).raise_for_status()
                    seconds.append(time.perf_counter() - begun)
                return settled(client, agent.process.pid)

            once = held(agent.process.pid)
            before = swap(WARM_UP)
            seconds.clear()
            after = swap(options.swaps)
    print(f"a swap: median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s")
    print(f"{'':<18}{'loaded once':>14}{f'{WARM_UP} swaps':>14}{f'{options.swaps} more':>14}")
    for key, value in after.items():
        print(f"{key:<18}{once[key]:>14,}{before[key]:>14,}{value:>14,}")
    growth = after["resident bytes"] / before["resident bytes"] - 1
    print(f"growth of resident memory {100 * growth:+.1f} %; must reach: under {100 * LIMIT_GROWTH:g} %")


if __name__ == "__main__":
    main()
