"""How many runners and threads serve a model: what the operator set, what was measured here before, or a first measure.

A measurement takes some tenths of a second and opens further sessions, so it is made only where its result is kept: in
`runtime.cache_dir`. Without that, each core gets a runner of one thread, which answers the most texts in all.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from device_agent.config import usable_cpus
from device_agent.inference.devices.cache import CacheKey
from device_agent.inference.devices.machine import describe_machine
from device_agent.inference.devices.providers import CPU_PROVIDER
from device_agent.inference.queue.plan import RunPlan, choose, fixed_plan, from_dict, measure, to_dict
from device_agent.inference.rows import ATTENTION_MASK
from device_agent.inference.session import runtime_build
from device_agent.models import memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_agent.config import AgentConfig
    from device_agent.inference.devices.cache import Cache
    from device_agent.inference.engine import Engine
    from device_agent.inference.rows import Ids
    from edgeonnx.bundle import Bundle

    OpenWith = Callable[[int], Engine]

logger = logging.getLogger("edgeonnx.agent")


def first_threads(config: AgentConfig) -> int:
    """Threads of one run with which a model is opened before anything is known of it."""
    plan = _fixed(config, on_cpu=True)
    return 1 if plan is None else plan.threads


def tuned(bundle: Bundle, config: AgentConfig, cache: Cache, open_with: OpenWith) -> tuple[Engine, RunPlan]:
    """Open a model with the threads that suit it.

    Args:
        bundle: The bundle.
        config: The agent's settings.
        cache: Where measurements are kept.
        open_with: Opens the model with a number of threads.

    Returns:
        The model, and how many runners and threads serve it.

    Raises:
        EdgeOnnxError: What `open_with` raises, or a run that was to be measured.
    """
    threads = first_threads(config)
    engine = open_with(threads)
    plan = _fixed(config, on_cpu=engine.provider == CPU_PROVIDER)
    if plan is not None:
        return engine, plan
    opened = {threads: engine}

    def open_once(count: int) -> Engine:
        if count not in opened:
            opened[count] = open_with(count)
        return opened[count]

    plan = _measured(bundle, config, cache, engine, open_once)
    engine = open_once(plan.threads)
    if len(opened) > 1:
        opened.clear()
        # What the other sessions held must not be counted as this model's memory, which is measured next.
        memory.give_back()
    return engine, plan


def _fixed(config: AgentConfig, *, on_cpu: bool) -> RunPlan | None:
    runtime = config.runtime
    return fixed_plan(cpus=usable_cpus(), runners=runtime.runners, threads=runtime.threads, on_cpu=on_cpu)


def _measured(bundle: Bundle, config: AgentConfig, cache: Cache, engine: Engine, open_once: OpenWith) -> RunPlan:
    """The plan by measurements of this machine: kept ones, or new ones where they can be kept."""
    cpus, budget = usable_cpus(), config.queue.batch_tokens
    if not cache.enabled:
        return RunPlan(runners=cpus, threads=1, reason="not measured, as runtime.cache_dir is not set")
    key = CacheKey(
        kind="measurements",
        bundle=bundle.digest,
        variant=engine.variant.name,
        runtime=runtime_build()["version"],
        provider=engine.provider,
        device=describe_machine(gpus=False).key(None),
    )
    found = from_dict(cache.read_json(key), cpus=cpus, budget=budget)
    if found is None:
        found = measure(open_once, usual_row(bundle, engine.inputs), cpus=cpus, budget=budget)
        cache.write_json(key, to_dict(found, cpus=cpus, budget=budget))
    return choose(found)


def usual_row(bundle: Bundle, names: tuple[str, ...]) -> dict[str, Ids]:
    """A golden row of middle length, without padding: int64 (1, tokens) by input."""
    golden = bundle.golden()
    lengths = golden.inputs[ATTENTION_MASK].sum(axis=1)
    row = int(np.argsort(lengths, kind="stable")[len(lengths) // 2])
    return {name: np.ascontiguousarray(golden.inputs[name][row : row + 1, : lengths[row]]) for name in names}
