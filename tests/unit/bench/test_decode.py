"""The pure parts of `bench/decode.py`: goals, ratios, bytes of weights; and the processes that it orders about."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from bench.decode_figures import Goal, Measured, best_ratio, ratio, rotated, weight_bytes
from bench.decode_package import tree_bytes
from bench.peers.decoding import timed
from bench.peers.environments import PeerFailsError, llama_variables
from bench.peers.runtimes import Process
from tests.support.decoders import write_graph

RUNTIME = """
import sys
import numpy as np
from bench.peers.decoding import serve, timed
class Fake:
    def generate(self, prompts, count):
        print("noise on stdout")
        return timed(iter([len(prompts[0])] * count))
    def caches(self):
        return 7
    def logits(self, ids):
        if not ids:
            sys.exit(3)
        return np.zeros((len(ids), 2), dtype=np.float32)
serve(Fake)
"""


def measured(**blocks: list[float]) -> Measured:
    return Measured(label="", blocks=blocks)


@pytest.mark.parametrize(("value", "at_least", "reached"), [(1.5, True, True), (1.4, True, False), (1.4, False, True)])
def test_a_goal(value: float, at_least: bool, reached: bool) -> None:
    goal = Goal(what="int8 over llama.cpp", value=value, bound=1.5, at_least=at_least, unit=" s")
    assert goal.reached is reached
    assert f"{value:.2f} s" in goal.line()
    assert ("NOT reached" in goal.line()) is not reached


def test_ratios_are_of_the_same_round() -> None:
    """A machine that was slow in one round was slow for both."""
    ours, theirs = measured(speed=[100.0, 10.0, 90.0]), measured(speed=[50.0, 5.0, 60.0])
    assert ratio(ours, theirs, "speed") == 2.0
    assert best_ratio(ours, theirs, "speed", most=True) == pytest.approx(100 / 60)
    assert best_ratio(ours, theirs, "speed", most=False) == 2.0
    assert ratio(measured(speed=[6.0]), measured(other=[3.0]), "speed", "other") == 2.0


def test_what_was_not_measured_has_no_ratio() -> None:
    assert ratio(measured(), measured(speed=[1.0]), "speed") is None
    assert best_ratio(measured(speed=[1.0]), measured(), "speed", most=True) is None
    assert measured().median("speed") is None


def test_everyone_begins_once() -> None:
    assert [rotated(["a", "b", "c"], turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]
    assert sorted(rotated(["a", "b", "c"], 2)) == ["a", "b", "c"]
    assert rotated([], 1) == []


def test_weights_are_the_graph_and_its_tensors(tmp_path: Path) -> None:
    path = write_graph(tmp_path)
    assert weight_bytes(path) == sum(each.stat().st_size for each in tmp_path.iterdir())


def test_a_run_is_timed_from_its_start() -> None:
    def tokens():  # type: ignore[no-untyped-def]
        for token in (4, 5, 6):
            time.sleep(0.01)
            yield token

    run = timed(tokens())
    assert run.answers == [[4, 5, 6]]
    assert run.first >= 0.01
    assert run.rest >= 0.02
    assert run.seconds == pytest.approx(run.first + run.rest, abs=1e-6)


def test_llama_is_compiled_for_this_machine_but_without_amx(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu avx avx2 fma f16c bmi2 avx512f avx512_vnni amx_tile amx_int8\n")
    arguments = llama_variables(cpuinfo)["CMAKE_ARGS"].split()
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=ON", "-DGGML_AVX512_BF16=OFF"} <= set(
        arguments
    )
    assert not any("AMX" in argument for argument in arguments)
    cpuinfo.write_text("Features\t: fp asimd sve\n")
    assert llama_variables(cpuinfo) == {}


def test_a_process_is_counted_with_its_children() -> None:
    own = tree_bytes(os.getpid())
    assert own > 10_000_000
    child = os.spawnv(
        os.P_NOWAIT, sys.executable, [sys.executable, "-c", "import time; x = b'x' * 40_000_000; time.sleep(60)"]
    )
    try:
        limit = time.monotonic() + 20
        while tree_bytes(os.getpid()) < own + 30_000_000 and time.monotonic() < limit:
            time.sleep(0.02)
        assert tree_bytes(os.getpid()) > own + 30_000_000
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_runtime_answers_orders_and_sleeps_between_them(tmp_path: Path) -> None:
    with Process([sys.executable, "-c", RUNTIME], 1) as process:
        run = process.ask("generate", prompts=[[1, 2, 3]], count=4)
        assert run["answers"] == [[3, 3, 3, 3]]
        assert state(process) == "T"
        assert process.ask("memory")["caches"] == 7
        with pytest.raises(PeerFailsError, match="KeyError: 'dance'"):
            process.ask("dance")
        process.ask("logits", ids=[5], file=str(tmp_path / "logits.npy"))
        assert (tmp_path / "logits.npy").is_file()
        with pytest.raises(PeerFailsError, match="it ended with 3"):
            process.ask("logits", ids=[], file=str(tmp_path / "none.npy"))


def test_a_runtime_that_does_not_start() -> None:
    with pytest.raises(PeerFailsError, match="no such library"):
        Process([sys.executable, "-c", "raise SystemExit('no such library')"], 1)


def state(process: Process) -> str:
    """The process's state once it settled: T is stopped."""
    for _ in range(200):
        found = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if found == "T":
            break
        time.sleep(0.01)
    return found
