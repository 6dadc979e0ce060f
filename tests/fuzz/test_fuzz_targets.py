"""The short form of the fuzz targets and of the leak check, and that both can fail."""

from __future__ import annotations

import ctypes
import math
import random
from dataclasses import replace

import pytest
from edgeonnx_ext import _kernels

from tests.fuzz import leaks
from tests.fuzz.registry import TARGETS
from tests.fuzz.strings import SURROGATES, random_text, with_surrogate
from tests.fuzz.target import Target, attempt_until, same_refusal

SEED = 20_000_000  # far from the seeds that a run from the command line begins with
CALLS = 20_000


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_invariant_holds_for_a_few_inputs(target: Target) -> None:
    outcome = attempt_until(target.open(), SEED, count=target.short, seconds=math.inf)
    if outcome.error is not None:
        command = f"python -m tests.fuzz.run {target.name} --count 1 --seed {outcome.failed}"
        raise AssertionError(f"{target.invariant}; repeat it: {command}") from outcome.error


def test_a_failure_tells_its_seed() -> None:
    def attempt(rng: random.Random) -> None:
        assert rng.random() < 0.9

    outcome = attempt_until(attempt, 5, count=1000, seconds=math.inf)
    assert outcome.failed is not None
    assert random.Random(outcome.failed).random() >= 0.9
    assert outcome.attempts == outcome.failed - 5 + 1
    assert isinstance(outcome.error, AssertionError)
    assert attempt_until(attempt, outcome.failed, count=1, seconds=math.inf).failed == outcome.failed


def test_a_run_ends_with_its_time() -> None:
    assert attempt_until(lambda _: None, 0, count=None, seconds=0.01).attempts > 0


def test_refusals_must_be_the_same() -> None:
    def refuse(error: Exception) -> object:
        raise error

    same_refusal({"a": lambda: refuse(ValueError("x")), "b": lambda: refuse(ValueError("x"))}, ValueError)
    with pytest.raises(AssertionError, match="ValueError: y"):
        same_refusal({"a": lambda: refuse(ValueError("x")), "b": lambda: refuse(ValueError("y"))}, ValueError)
    with pytest.raises(AssertionError, match="expected ValueError, found 3"):
        same_refusal({"a": lambda: refuse(ValueError("x")), "b": lambda: 3}, ValueError)


def test_strings_follow_from_their_seed_and_have_no_surrogates() -> None:
    texts = [random_text(random.Random(seed), ["<added>"]) for seed in range(2000)]
    assert texts == [random_text(random.Random(seed), ["<added>"]) for seed in range(2000)]
    assert not any(ord(char) in SURROGATES for text in texts for char in text)
    joined = "".join(texts)
    for wanted in ("\u200d", "\u0301", "\x00", "\u2028", "'ll", "\U00020000", "\ue000", "가", "٠", "<added>"):
        assert wanted in joined, ascii(wanted)
    assert max(map(len, texts)) > 200
    assert "" in texts


def test_a_surrogate_stands_where_it_is_said_to_be() -> None:
    text, place = with_surrogate(random.Random(1), "abc")
    assert ord(text[place]) in SURROGATES
    assert text[:place] + text[place + 1 :] == "abc"


@pytest.mark.skipif(_kernels.PURE, reason="the plain twins have no memory of their own")
@pytest.mark.parametrize("name", leaks.CASES)
def test_no_memory_leaks(name: str) -> None:
    grown = leaks.growth(leaks.CASES[name](), CALLS)
    # Resident memory of a process that did much else wanders; what malloc and Python have given out does not.
    assert grown.is_within(replace(leaks.BOUND, resident_kb=4096)), grown


def refuse() -> None:
    raise ValueError("as a kernel does")


def test_a_leak_would_be_seen() -> None:
    kept: list[object] = []
    objects = leaks.growth(leaks.Case(good=lambda number: kept.append(bytes(16)), bad=[refuse]), CALLS)
    assert objects.objects > leaks.BOUND.objects
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    if leaks.MALLINFO is None:
        return
    few = leaks.growth(leaks.Case(good=lambda number: number % 255 or library.malloc(512), bad=[refuse]), CALLS)
    assert few.malloc_kb > leaks.BOUND.malloc_kb


def test_an_accepted_bad_call_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="a bad call was accepted"):
        leaks.call(leaks.Case(good=lambda number: None, bad=[lambda: None]), 1)
