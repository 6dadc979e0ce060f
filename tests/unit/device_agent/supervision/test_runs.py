from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from device_agent.supervision.runs import NICE, OOM_SCORE, UpdateRuns, command_of, outcome_of


def script(text: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", text]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(0, "ok"), (9, "untrusted"), (10, "unreachable"), (11, "device"), (1, "failed"), (2, "failed"), (-9, "killed")],
)
def test_outcomes(code: int, outcome: str) -> None:
    assert outcome_of(code) == outcome


def test_the_command_is_the_update_process() -> None:
    command = command_of(Path("/state"), Path("/etc/agent.toml"))
    assert command[1:] == [*("-m", "device_agent.update"), *("--config", "/etc/agent.toml", "--state-dir", "/state")]
    assert "--config" not in command_of(Path("/state"), None)


def test_a_run_is_modest_tells_systemd_nothing_and_its_end_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    text = (
        "import os, sys, time\n"
        "deadline = time.monotonic() + 5\n"
        # What the parent sets comes a moment after the start.
        "while os.nice(0) < 10 and time.monotonic() < deadline: pass\n"
        "while open('/proc/self/oom_score_adj').read().strip() != '500' and time.monotonic() < deadline: pass\n"
        "score = open('/proc/self/oom_score_adj').read().strip()\n"
        "tells = sorted(set(os.environ) & {'NOTIFY_SOCKET', 'WATCHDOG_USEC'})\n"
        f"open({str(told)!r}, 'w').write(f'{{os.nice(0)}} {{score}} {{tells}} {{os.getsid(0) == os.getpid()}}')\n"
        "sys.exit(10)"
    )
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    runs = UpdateRuns(script(text), tmp_path)
    run = asyncio.run(runs.once())
    own = os.nice(0)
    assert told.read_text() == f"{max(NICE, own)} {OOM_SCORE} [] True"
    assert (run.outcome, runs.last, runs.counts) == ("unreachable", run, {"unreachable": 1})
    assert 0 <= run.seconds < 10
    assert abs(run.began - time.time()) < 10
    assert not runs.running


def test_a_run_is_ended_with_all_that_it_began_when_the_agent_stops(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    inner = "import time; time.sleep(60)"
    text = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # it does not listen
        f"child = subprocess.Popen([sys.executable, '-I', '-S', '-c', {inner!r}])\n"
        f"open({str(pids)!r} + '.new', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(pids)!r} + '.new', {str(pids)!r})\n"
        "time.sleep(60)"
    )

    async def begin_and_stop() -> None:
        runs = UpdateRuns(script(text), tmp_path)
        task = asyncio.ensure_future(runs.once())
        while not pids.exists():
            await asyncio.sleep(0.01)
        assert runs.running
        with pytest.raises(RuntimeError, match="runs already"):
            await runs.once()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not runs.running

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("device_agent.supervision.runs.END_SECONDS", 0.1)
        asyncio.run(begin_and_stop())
    for pid in pids.read_text().split():
        assert ended(int(pid))


def ended(pid: int) -> bool:
    """Whether a process has ended; its parent may not have taken notice yet."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def test_a_device_that_is_not_enrolled_has_nobody_to_ask(tmp_path: Path) -> None:
    runs = UpdateRuns(["true"], tmp_path)
    assert not runs.enrolled
    (tmp_path / "enrollment.json").write_text("{}")
    assert runs.enrolled
