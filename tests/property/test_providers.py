"""What holds for every message, policy and assignment."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from device_agent.inference.devices.assignment import Assignment
from device_agent.inference.devices.cache import CacheKey
from device_agent.inference.devices.diagnosis import MAX_REASON, Failure, Trial, classify, diagnose, essence
from device_agent.inference.devices.probing import parse_trace
from device_agent.inference.devices.providers import (
    CPU_PROVIDER,
    FALLBACK,
    PREFERENCE,
    REFUSE,
    OptionSettings,
    order_of,
    plan_of,
    refusal,
)

names = st.sampled_from(PREFERENCE)
orders = st.lists(names, unique=True)
# Pieces of real messages put together at random find more than letters do.
pieces = st.sampled_from(
    [
        "[ONNXRuntimeError] : 6 : FAIL : ",
        "Status Message: ",
        "CUDA failure 2: out of memory ; ",
        "CUDA failure 99999999999999999999: x",
        "Failed to load library /a with error: ",
        "libcuda.so.1: cannot open shared object file",
        "undefined symbol: cuInit",
        "/onnxruntime_src/a.cc:1 void a::b(c (d)) ",
        "expr=f(",
        "\x1b[1;31m",
        "\n",
        "2026-01-01 00:00:00 [E:onnxruntime:, a.cc:1 F] ",
        "=> not found",
    ]
)
messages = st.lists(pieces | st.text(max_size=20), max_size=12).map("".join)
kinds = st.sampled_from(["InvalidArgument", "Fail", "EPFail", "RuntimeException", "RuntimeError", "DeviceReset"])


@given(text=messages)
def test_the_essence_is_one_short_line(text: str) -> None:
    found = essence(text)
    assert len(found) <= MAX_REASON
    assert "\n" not in found


@given(kind=kinds, text=messages, provider=names)
def test_only_evidence_loses_a_provider_and_the_cpu_is_never_lost(kind: str, text: str, provider: str) -> None:
    failure = classify(kind, text, provider)
    assert (failure is Failure.INPUTS) == (kind == "InvalidArgument")
    if provider == CPU_PROVIDER:
        assert failure in (Failure.INPUTS, Failure.RUN)


@given(
    name=names,
    error=messages,
    log=messages,
    missing=st.lists(st.text(max_size=12), max_size=3).map(tuple),
    exit_code=st.none() | st.integers(-64, 3),
    cuda=st.sampled_from(["", "12.8", "13.0", "x"]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
)
def test_a_provider_is_usable_or_has_a_reason(
    name: str,
    error: str,
    log: str,
    missing: tuple[str, ...],
    exit_code: int | None,
    cuda: str,
    flags: tuple[bool, bool, bool, bool],
) -> None:
    built_in, present, hardware, jetson = flags
    trial = Trial(
        name=name,
        built_in=built_in,
        error=error,
        log=log,
        missing=missing,
        exit_code=exit_code,
        cuda=cuda,
        library_present=present,
        hardware=hardware,
        jetson=jetson,
    )
    status = diagnose(trial)
    assert not status.usable, "the session did not have it"
    assert status.reason
    assert len(status.reason) <= MAX_REASON
    assert diagnose(dataclasses.replace(trial, built_in=True, error="", exit_code=0, loaded=(name,))).usable


@given(order=orders, needed=st.lists(names), unusable=st.dictionaries(names, st.text(max_size=5)))
def test_a_policy_refuses_exactly_when_the_first_needed_provider_is_unusable(
    order: list[str], needed: list[str], unusable: dict[str, str]
) -> None:
    assert refusal(FALLBACK, order, needed, unusable) is None
    first = [name for name in order if name in needed][:1]
    assert (refusal(REFUSE, order, needed, unusable) is not None) == (bool(first) and first[0] in unusable)


@given(name=names, usable=orders, gpu=st.integers(0, 9))
def test_a_plan_has_its_provider_first_the_cpu_last_and_no_unusable_one_between(
    name: str, usable: list[str], gpu: int
) -> None:
    plan = [each for each, _ in plan_of(name, usable, OptionSettings(gpu=gpu))]
    assert (plan[0], plan[-1]) == (name, CPU_PROVIDER)
    assert len(set(plan)) == len(plan)
    assert set(plan[1:-1]) <= set(usable)


@given(order=orders)
def test_an_order_is_kept_and_an_empty_one_means_all(order: list[str]) -> None:
    assert order_of(order) == (tuple(order) or PREFERENCE)


@given(nodes=st.lists(st.tuples(names, st.sampled_from(["Add", "Mul", "Gather"])), max_size=50))
def test_shares_add_up_and_every_node_is_counted_once(nodes: list[tuple[str, str]]) -> None:
    found = Assignment.count(nodes)
    assert found.total == len(nodes)
    assert sum(sum(count.values()) for count in found.operators.values()) == len(nodes)
    if nodes:
        assert abs(sum(found.share(name) for name in found.nodes) - 1) < 1e-9


@given(text=messages)
def test_the_linkers_list_gives_each_name_once(text: str) -> None:
    found = parse_trace(text)
    assert len(set(found)) == len(found)


keys = st.builds(CacheKey, **{field.name: st.text(max_size=6) for field in dataclasses.fields(CacheKey)})


@given(one=keys, other=keys)
def test_different_keys_have_different_folders(one: CacheKey, other: CacheKey) -> None:
    assert (one.name == other.name) == (one == other)
