"""What an update costs the machine: memory over the update of the real MiniLM bundle, CPU of a check without news.

    python -m bench.update_process [BUNDLE] [BASE]

Bundle and base default to the packaged MiniLM; without a base, the update is the first installation. Each figure is
taken by the kernel (`wait4` for the updater itself, its largest resident memory and its CPU; the candidate's process is
a child of its own and is printed beside). Peers in the same run, over the same repository and the same web server:

- `python -c "import tuf.ngclient"`: what the libraries alone cost before anything is checked;
- python-tuf's own client (`tuf.ngclient.Updater`) that refreshes and asks for one target.

Must reach: 120 MB of memory, and nothing left after it; 0.5 s of CPU for a check without news.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.repository import TestRepository
from tests.support.web import StaticServer

ROOT = Path(__file__).resolve().parents[1]
BUNDLE = ROOT / ".work" / "bench" / "minilm-1.0.0"
MAX_MEMORY = 120e6
MAX_CPU = 0.5
RUNS = 7
OURS = "what serve begins every hour"

BYTECODE = ROOT / ".work" / "bench" / "bytecode"
SPAWNER = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(child, 0)
print("COST", usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
PEER = """
import sys, urllib3
from pathlib import Path
from tuf.ngclient import Updater
folder, url, target = sys.argv[1:]
pin = Path(folder, "pin").read_bytes()
updater = Updater(folder, f"{url}/metadata/", folder, f"{url}/targets/", bootstrap=pin)
updater.refresh()
found = updater.get_targetinfo(target)
if updater.find_cached_target(found) is None:
    updater.download_target(found)
"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a process cost.

    Attributes:
        cpu: Seconds of CPU, user and system, of the process and of the children that it waited for.
        memory: Its largest resident memory in bytes, without children.
        output: Its stdout.
    """

    cpu: float
    memory: int
    output: str


def measure(*arguments: object) -> Cost:
    """Run Python with some arguments, and let the kernel say what it cost.

    A process inherits the peak of the memory of the one that it was forked from, so a small one stands in between. The
    libraries' bytecode is kept, as it is where they are installed.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'ext'}", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile("w+") as log:
        done = subprocess.run(
            [sys.executable, "-S", "-c", SPAWNER, sys.executable, *map(str, arguments)],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
        )
        log.seek(0)
        if done.returncode != 0:
            sys.exit(f"{arguments}: {log.read()}")
    output, _, figures = done.stdout.rpartition("COST ")
    cpu, memory = figures.split()
    return Cost(cpu=float(cpu), memory=int(memory) * 1024, output=output)


def agent(*arguments: object) -> Cost:
    """The same, for a command of the agent."""
    return measure("-m", "device_agent.cli.main", *arguments)


def left_over(state: Path) -> list[str]:
    """Processes that still use the state directory."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if str(state).encode() in (process / "cmdline").read_bytes():
                    found.append(process.name)
            except OSError:
                continue
    return found


def watched(*arguments: object) -> tuple[Cost, int]:
    """The same as `agent`, and the largest resident memory of any child that it had meanwhile."""
    program = (
        "import resource, sys; sys.argv = sys.argv[1:]\n"
        "from device_agent.cli.main import make_app\n"
        "try: make_app(['update'])(sys.argv[1:], prog_name='edgeonnx-agent', standalone_mode=False)\n"
        "finally:\n"
        "    who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN\n"
        "    print('PEAKS', *(resource.getrusage(each).ru_maxrss * 1024 for each in who))\n"
    )
    cost = measure("-c", program, "edgeonnx-agent", *arguments)
    own, children = (int(word) for word in cost.output.strip().rpartition("PEAKS ")[2].split())
    return Cost(cpu=cost.cpu, memory=own, output=cost.output), children


def main() -> None:
    """Run the bench."""
    bundle = Path(sys.argv[1]) if len(sys.argv) > 1 else BUNDLE
    with tempfile.TemporaryDirectory(prefix="edgeonnx-bench-") as name:
        work = Path(name)
        repository = TestRepository.create(work / "repository")
        versions = [bundle] if len(sys.argv) < 3 else [Path(sys.argv[2]), bundle]
        (work / "root.json").write_bytes(repository.root_bytes)
        state = work / "state"
        with StaticServer(work / "repository") as server:
            url = server.url.rstrip("/")
            print(f"{'update':40} {'memory':>10} {'candidate':>10} {'CPU':>8}")
            for index, each in enumerate(versions):
                repository.publish(each)
                if index == 0:
                    agent("enroll", "--repo", url, "--root", work / "root.json", "--state-dir", state)
                cost, children = watched("update", "--once", "--state-dir", state)
                print(
                    f"{each.name:40} {cost.memory / 1e6:7.1f} MB {children / 1e6:7.1f} MB {cost.cpu:6.2f} s"
                    f"   {'within' if cost.memory <= MAX_MEMORY else 'ABOVE'} {MAX_MEMORY / 1e6:.0f} MB"
                )
                activate(state)
            print(f"processes left: {len(left_over(state))}")
            report_checks(work, url, state)


def activate(state: Path) -> None:
    """Let what was proven serve, as an agent would: a check without news then finds it installed."""
    from device_agent.slots.state import step
    from device_agent.slots.states import AttemptState
    from device_agent.slots.store import Store

    store = Store(state)
    for model in store.models():
        for to in (AttemptState.PROBATION, AttemptState.COMMITTED):
            store.write_state(step(store.read_state(model), to, now=0.0))


def report_checks(work: Path, url: str, state: Path) -> None:
    """CPU of a check without news beside its peers, taken in turn so that a busy moment hits all of them."""
    peer = work / "peer"
    peer.mkdir()
    (peer / "pin").write_bytes((work / "root.json").read_bytes())
    found: dict[str, list[Cost]] = {}
    for _ in range(RUNS):
        found.setdefault("import tuf.ngclient", []).append(measure("-c", "import tuf.ngclient"))
        found.setdefault("python-tuf's client", []).append(measure("-c", PEER, peer, url, "channels/stable.json"))
        found.setdefault(OURS, []).append(measure("-m", "device_agent.update", "--state-dir", state))
        found.setdefault("edgeonnx-agent update --once", []).append(agent("update", "--once", "--state-dir", state))
    print(f"\n{'check without news, median of ' + str(RUNS):40} {'memory':>10} {'CPU':>8} {'fastest':>8}")
    for label, costs in found.items():
        cpu = [cost.cpu for cost in costs]
        memory = max(cost.memory for cost in costs)
        print(f"{label:40} {memory / 1e6:7.1f} MB {statistics.median(cpu):6.2f} s {min(cpu):6.2f} s", end="")
        print(f"   {'within' if statistics.median(cpu) <= MAX_CPU else 'ABOVE'} {MAX_CPU} s")
    ratio = statistics.median(each.cpu for each in found[OURS]) / statistics.median(
        each.cpu for each in found["python-tuf's client"]
    )
    print(f"ours to python-tuf's client: {ratio:.2f}")


if __name__ == "__main__":
    main()
