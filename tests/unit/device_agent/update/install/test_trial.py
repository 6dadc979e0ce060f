"""Real child processes, but plain ones: what a candidate does badly, each in some tenths of a second."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from device_agent.config import UpdateConfig
from device_agent.update.install.trial import (
    LOW_MEMORY_BYTES,
    MAX_OUTPUT_BYTES,
    Ended,
    Kind,
    anonymous_bytes,
    interpret,
    over_memory,
    run,
)

PLENTY = 1 << 40


def candidate(program: str, **settings: float) -> Ended:
    """Run a Python program as a candidate."""
    config = UpdateConfig(**{"candidate_seconds": 20.0, **settings})  # type: ignore[arg-type]
    return run([sys.executable, "-S", "-c", program], config, lambda: PLENTY)


def test_an_answer_is_read_from_the_last_line_of_stdout() -> None:
    verdict = interpret(candidate("""print('a library says hello'); print('{"ok": true, "variant": "cpu-int8"}')"""))
    assert verdict.kind is Kind.PROVEN
    assert verdict.variants == ("cpu-int8",)


def test_an_answer_at_the_end_of_much_that_was_written_is_not_lost() -> None:
    # All of it fits into the pipe, so the process is gone before it is read.
    program = """import os; os.write(1, b"x" * 60_000 + b'\\n{"ok": true}'); os._exit(0)"""
    assert interpret(candidate(program)).kind is Kind.PROVEN


def test_a_crash_is_a_verdict_that_names_the_signal() -> None:
    verdict = interpret(candidate("import os; os.kill(os.getpid(), 11)"))
    assert verdict.kind is Kind.CRASHED
    assert "SIGSEGV" in verdict.reason


def test_a_hang_is_ended_together_with_what_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
open({str(note)!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    started = time.monotonic()
    verdict = interpret(candidate(program, candidate_seconds=1.0))
    assert time.monotonic() - started < 10
    assert verdict.kind is Kind.REJECTED
    assert "not ready after 1 s" in verdict.reason
    grandchild = int(note.read_text())
    deadline = time.monotonic() + 5
    while _runs(grandchild) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(grandchild)


def test_a_grandchild_that_holds_the_pipes_open_is_not_waited_for() -> None:
    program = """
import subprocess, sys
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
print('{"ok": true}')
"""
    started = time.monotonic()
    assert interpret(candidate(program)).kind is Kind.PROVEN
    assert time.monotonic() - started < 10


def test_output_without_end_is_ended() -> None:
    verdict = interpret(candidate("while True: print('x' * 65536)"))
    assert verdict.kind is Kind.REJECTED
    assert f"{MAX_OUTPUT_BYTES:,}" in verdict.reason


def test_garbage_is_a_crash_with_the_last_line_of_stderr() -> None:
    verdict = interpret(candidate("import sys; print(b'\\xff\\x00'); sys.exit('\\x1b[31mno such thing')"))
    assert verdict.kind is Kind.CRASHED
    assert verdict.reason == "its process ended with code 1 and no answer: \\x1b[31mno such thing"


def test_memory_above_the_limit_is_ended_while_it_grows() -> None:
    program = "import time\nheld = []\nwhile True: held.append(bytearray(b'x') * (4 << 20)); time.sleep(0.005)"
    ended = candidate(program, candidate_memory_bytes=64 << 20)
    verdict = interpret(ended)
    assert verdict.kind is Kind.REJECTED
    assert "candidate_memory_bytes is 67,108,864" in verdict.reason
    assert ended.code == -signal.SIGKILL
    assert verdict.peak_bytes > 64 << 20


def test_a_candidate_gets_nothing_to_read_no_files_of_ours_and_its_own_session(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(lock, True)
    program = """
import json, os, sys
print(json.dumps({"ok": True, "variants": [repr(sys.stdin.read()), str(os.getsid(0) == os.getpid()),
      str(any("lock" in os.readlink(f"/proc/self/fd/{fd}") for fd in map(int, os.listdir("/proc/self/fd")) if fd < 1000
      and os.path.lexists(f"/proc/self/fd/{fd}")))]}))
"""
    try:
        assert interpret(candidate(program)).variants == ("''", "True", "False")
    finally:
        os.close(lock)


def test_a_candidate_ends_with_an_updater_that_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    child = f"""
import os, sys, time
sys.path.insert(0, {str(Path.cwd())!r})
from device_agent.update.install.candidate import step_back
step_back()
open({str(note)!r}, "w").write(str(os.getpid()) + "\\n")
time.sleep(60)
"""
    parent = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {child!r}], start_new_session=True).wait()
"""
    updater = subprocess.Popen([sys.executable, "-S", "-c", parent])
    deadline = time.monotonic() + 20
    while not (note.exists() and note.read_text().endswith("\n")) and time.monotonic() < deadline:
        time.sleep(0.02)
    candidate_pid = int(note.read_text())
    assert _runs(candidate_pid)
    updater.kill()
    updater.wait()
    while _runs(candidate_pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(candidate_pid)


def test_a_candidate_gives_way_to_whatever_else_the_machine_does() -> None:
    program = """
import os, sys
sys.path[:0] = sys.argv[1:]
from device_agent.update.install.candidate import step_back
step_back()
print('{"ok": true, "variants": ["%d", "%s"]}' % (os.nice(0), open("/proc/self/oom_score_adj").read().strip()))
"""
    ended = run([sys.executable, "-c", program, str(Path.cwd())], UpdateConfig(candidate_seconds=20.0), lambda: PLENTY)
    verdict = interpret(ended)
    assert verdict.variants[0] == "10"
    assert verdict.variants[1] in ("1000", "0")  # a container may forbid it


@pytest.mark.parametrize(
    ("used", "available", "limit", "kind"),
    [
        (10, PLENTY, None, None),
        (10, None, None, None),
        (101, PLENTY, 100, Kind.REJECTED),
        (100, PLENTY, 100, None),
        (LOW_MEMORY_BYTES + 1, LOW_MEMORY_BYTES - 1, None, Kind.STARVED),
        (10, 0, None, None),
    ],
    ids=["fine", "unknown", "over", "at the limit", "machine low", "not its fault"],
)
def test_over_memory(used: int, available: int | None, limit: int | None, kind: Kind | None) -> None:
    found = over_memory(used, available, limit)
    assert (None if found is None else found[0]) is kind


def test_anonymous_memory_is_read_from_the_status_of_a_process() -> None:
    assert anonymous_bytes("Name:\tx\nVmRSS:\t  900 kB\nRssAnon:\t     512 kB\nRssFile:\t 1 kB\n") == 512 << 10
    assert anonymous_bytes("") == 0


@pytest.mark.parametrize(
    ("answer", "code", "kind", "reason"),
    [
        ({"ok": True}, 1, Kind.CRASHED, "code 1"),
        ({"ok": False, "error": {"message": "no", "found": "x"}}, 1, Kind.REJECTED, "no; found x"),
        ({"ok": False, "device": True, "error": {"message": "no memory"}}, 1, Kind.POSTPONED, "no memory"),
        ({"ok": False, "error": "text"}, 1, Kind.REJECTED, "it failed"),
        ({"ok": "yes"}, 0, Kind.CRASHED, "no answer"),
        ([1], 0, Kind.CRASHED, "no answer"),
    ],
)
def test_what_an_answer_means(answer: object, code: int, kind: Kind, reason: str) -> None:
    verdict = interpret(Ended(code=code, output=json.dumps(answer), errors=""))
    assert verdict.kind is kind
    assert reason in verdict.reason


def test_an_answer_that_nests_without_end_is_no_answer() -> None:
    assert interpret(Ended(code=0, output="[" * 100_000, errors="")).kind is Kind.CRASHED


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
