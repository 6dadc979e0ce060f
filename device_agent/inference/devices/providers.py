"""The execution providers: which the agent knows, what each is told, and what became of each on this machine.

Pure, but for `device_profile`, which reads /proc and asks ONNX Runtime what it was built with. The trying is in
`probing`, the reading of its outcome in `diagnosis`.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from device_agent.inference.devices.machine import CPUINFO, MEMINFO, read_text
from edgeonnx.errors import RuntimeUnavailableError, UsageError
from edgeonnx.spec.profile import parse_available_memory, parse_instruction_sets
from edgeonnx.spec.selection import DeviceProfile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
TENSORRT_PROVIDER = "TensorrtExecutionProvider"
OPENVINO_PROVIDER = "OpenVINOExecutionProvider"

FALLBACK, REFUSE = "fallback", "refuse"
POLICIES = (FALLBACK, REFUSE)


@dataclass(frozen=True, kw_only=True)
class OptionSettings:
    """What the options of a provider depend on.

    Attributes:
        gpu: Number of the GPU.
        gpu_memory_bytes: Most memory of the arena on the GPU; None: no limit.
        threads: Threads of one run.
        cache: Folder for what a provider compiles; None: nothing is kept.
    """

    gpu: int = 0
    gpu_memory_bytes: int | None = None
    threads: int = 1
    cache: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a provider: how its value is found (None: it is not set), and why it is set."""

    name: str
    value: Callable[[OptionSettings], str | None]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Provider:
    """An execution provider that the agent knows.

    Attributes:
        name: ONNX Runtime's name.
        label: The name in `runtime.providers` and in what people read.
        package: The distribution of ONNX Runtime that has it.
        library: Its library in the folder `onnxruntime/capi`; None if it is part of ONNX Runtime itself.
        next: Providers that take the nodes that it leaves, in order; the CPU always comes last.
        options: What it is told.
        trial: Options for the trial alone, in which nothing shall be compiled.
    """

    name: str
    label: str
    package: str
    library: str | None = None
    next: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    trial: tuple[tuple[str, str], ...] = ()


def _optional(value: object) -> str | None:
    return None if value is None else str(value)


_DEVICE = Option(name="device_id", value=lambda s: str(s.gpu), reason="the GPU that the operator chose")

PROVIDERS: tuple[Provider, ...] = (
    Provider(
        name=TENSORRT_PROVIDER,
        label="TensorRT",
        package="onnxruntime-gpu",
        library="libonnxruntime_providers_tensorrt.so",
        next=(CUDA_PROVIDER,),
        options=(
            _DEVICE,
            Option(
                name="trt_engine_cache_enable",
                value=lambda s: "1" if s.cache else None,
                reason="building an engine takes minutes; it is kept for the next start",
            ),
            Option(name="trt_engine_cache_path", value=lambda s: _optional(s.cache), reason="where engines are kept"),
            Option(
                name="trt_timing_cache_enable",
                value=lambda s: "1" if s.cache else None,
                reason="an engine for other shapes reuses the measured times of kernels",
            ),
            Option(name="trt_timing_cache_path", value=lambda s: _optional(s.cache), reason="where they are kept"),
        ),
        trial=(("trt_min_subgraph_size", "1000"),),
    ),
    Provider(
        name=CUDA_PROVIDER,
        label="CUDA",
        package="onnxruntime-gpu",
        library="libonnxruntime_providers_cuda.so",
        options=(
            _DEVICE,
            Option(
                name="gpu_mem_limit",
                value=lambda s: _optional(s.gpu_memory_bytes),
                reason="the operator's bound of the arena",
            ),
            Option(
                name="arena_extend_strategy",
                value=lambda _: "kSameAsRequested",
                reason="the default grows to the next power of two and may hold twice what the model needs",
            ),
            Option(
                name="cudnn_conv_algo_search",
                value=lambda _: "HEURISTIC",
                reason="the default (EXHAUSTIVE) measures all algorithms again for each new shape of the input",
            ),
            Option(
                name="use_tf32",
                value=lambda _: "0",
                reason="TF32 keeps 10 bits of the mantissa; the bundle's evidence is about fp32",
            ),
        ),
    ),
    Provider(
        name=OPENVINO_PROVIDER,
        label="OpenVINO",
        package="onnxruntime-openvino",
        library="libonnxruntime_providers_openvino.so",
        options=(
            Option(name="device_type", value=lambda _: "CPU", reason="no other device of OpenVINO was looked at"),
            Option(name="num_of_threads", value=lambda s: str(s.threads), reason="as the CPU provider has"),
            Option(name="cache_dir", value=lambda s: _optional(s.cache), reason="compiled models are kept"),
        ),
    ),
    Provider(name=CPU_PROVIDER, label="CPU", package="onnxruntime"),
)
"""Preferred first. A provider that is not listed here is never used: its answers were not looked at."""

BY_NAME: dict[str, Provider] = {provider.name: provider for provider in PROVIDERS}
PREFERENCE: tuple[str, ...] = tuple(BY_NAME)


@dataclass(frozen=True, kw_only=True)
class ProviderStatus:
    """What became of a provider on this machine.

    Attributes:
        name: ONNX Runtime's name.
        usable: A session on it was opened and ran.
        reason: Why it cannot be used; empty if it can.
        hint: What the operator can do about it; empty if nothing is known.
        missing: Shared libraries that it needs and that are not there.
        needs: Versions of libraries that this build of ONNX Runtime wants ("CUDA 13.0").
        options: What it is told: name, value and reason of each option.
        seconds: Time that trying it took.
    """

    name: str
    usable: bool
    reason: str = ""
    hint: str = ""
    missing: tuple[str, ...] = ()
    needs: str = ""
    options: tuple[tuple[str, str, str], ...] = ()
    seconds: float = 0.0

    @property
    def label(self) -> str:
        """The provider's name without ONNX Runtime's suffix."""
        return label_of(self.name)

    def as_dict(self) -> dict[str, object]:
        """The status as plain data."""
        return {
            "name": self.name,
            "usable": self.usable,
            "reason": self.reason or None,
            "hint": self.hint or None,
            "missing": list(self.missing),
            "needs": self.needs or None,
            "options": {name: {"value": value, "reason": reason} for name, value, reason in self.options},
            "seconds": round(self.seconds, 3),
        }


def label_of(name: str) -> str:
    """A provider's name for people; a name that the agent does not know loses ONNX Runtime's suffix."""
    return BY_NAME[name].label if name in BY_NAME else name.removesuffix("ExecutionProvider")


def order_of(labels: Sequence[str]) -> tuple[str, ...]:
    """ONNX Runtime's names of the providers that the operator asks for, in that order; without any, all known ones.

    Raises:
        UsageError: A name that the agent does not know, or one that stands there twice.
    """
    if not labels:
        return PREFERENCE
    known = {provider.label.lower(): provider.name for provider in PROVIDERS}
    known |= {provider.name.lower(): provider.name for provider in PROVIDERS}
    found: list[str] = []
    for label in labels:
        name = known.get(label.lower())
        if name is None or name in found:
            raise UsageError(
                "unknown execution provider" if name is None else "an execution provider is listed twice",
                where="runtime.providers",
                expected=" or ".join(provider.label for provider in PROVIDERS),
                found=label,
            )
        found.append(name)
    return tuple(found)


def options_of(name: str, settings: OptionSettings) -> tuple[tuple[str, str, str], ...]:
    """The options of a provider under these settings: name, value and reason of each that is set."""
    options = BY_NAME[name].options if name in BY_NAME else ()
    values = ((option, option.value(settings)) for option in options)
    return tuple((option.name, value, option.reason) for option, value in values if value)


def plan_of(name: str, usable: Iterable[str], settings: OptionSettings) -> tuple[tuple[str, dict[str, str]], ...]:
    """What a session on a provider is opened with: the provider, then those that take the nodes that it leaves.

    Args:
        name: The provider.
        usable: Providers that can be used now.
        settings: What options depend on.

    Returns:
        Pairs of a name and its options; the CPU is the last.
    """
    able = set(usable)
    rest = [other for other in BY_NAME[name].next if other in able] if name in BY_NAME else []
    names = dict.fromkeys((name, *rest, CPU_PROVIDER))
    return tuple((each, {option: value for option, value, _ in options_of(each, settings)}) for each in names)


def refusal(policy: str, order: Sequence[str], needed: Iterable[str], unusable: Mapping[str, str]) -> str | None:
    """Whether the operator's policy forbids to serve, and why.

    Args:
        policy: "fallback" or "refuse".
        order: Providers in the operator's order.
        needed: Providers that the variants of the bundle were made for.
        unusable: Providers that cannot be used, each with the reason.

    Returns:
        The reason, or None if serving is allowed.

    Raises:
        UsageError: The policy is neither.
    """
    if policy not in POLICIES:
        raise UsageError("unknown policy", where="runtime.policy", expected=" or ".join(POLICIES), found=policy)
    wanted = set(needed)
    first = next((name for name in order if name in wanted), None)
    if policy == FALLBACK or first is None or first not in unusable:
        return None
    return f"{label_of(first)} cannot be used: {unusable[first]}"


def check_policy(policy: str, order: Sequence[str], needed: Iterable[str], statuses: Iterable[ProviderStatus]) -> None:
    """Raise if the operator's policy forbids to serve; see `refusal`.

    Raises:
        RuntimeUnavailableError: The preferred provider cannot be used, and the policy is "refuse".
    """
    by_name = {status.name: status for status in statuses}
    reason = refusal(policy, order, needed, {name: each.reason for name, each in by_name.items() if not each.usable})
    if reason is None:
        return
    hints = [by_name[name].hint for name in order if name in by_name and not by_name[name].usable]
    raise RuntimeUnavailableError(
        "the preferred execution provider cannot be used, and runtime.policy is refuse",
        found=reason,
        hint="; ".join(dict.fromkeys(hint for hint in (*hints[:1], "or set runtime.policy to fallback") if hint)),
    )


def device_profile(usable: Iterable[str] | None = None) -> DeviceProfile:
    """Describe this machine.

    Args:
        usable: Providers that can be used, the preferred one first; None takes every one that ONNX Runtime was built
            with, tried or not.
    """
    if usable is None:
        import onnxruntime as ort

        usable = preferred(ort.get_available_providers())
    return DeviceProfile(
        providers=tuple(usable),
        instruction_sets=parse_instruction_sets(read_text(CPUINFO)),
        memory_bytes=parse_available_memory(read_text(MEMINFO)),
        architecture=platform.machine(),
    )


def preferred(available: Iterable[str]) -> tuple[str, ...]:
    """The available providers that the agent knows, the preferred one first."""
    found = set(available)
    return tuple(name for name in PREFERENCE if name in found)


def without(profile: DeviceProfile, provider: str) -> DeviceProfile:
    """The same machine, on which `provider` turned out not to work."""
    return replace(profile, providers=tuple(name for name in profile.providers if name != provider))
