from __future__ import annotations

import platform
from pathlib import Path

import pytest

from device_agent.inference.devices.providers import (
    BY_NAME,
    FALLBACK,
    PREFERENCE,
    PROVIDERS,
    REFUSE,
    OptionSettings,
    ProviderStatus,
    check_policy,
    device_profile,
    label_of,
    options_of,
    order_of,
    plan_of,
    preferred,
    refusal,
    without,
)
from edgeonnx.errors import RuntimeUnavailableError, UsageError
from edgeonnx.spec.selection import DeviceProfile

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"


def test_preference_decides_and_unknown_providers_are_left_out() -> None:
    available = ["CPUExecutionProvider", "AzureExecutionProvider", "CUDAExecutionProvider"]
    assert preferred(available) == ("CUDAExecutionProvider", "CPUExecutionProvider")


def test_without_a_provider_everything_else_stays() -> None:
    profile = DeviceProfile(
        providers=("CUDAExecutionProvider", "CPUExecutionProvider"),
        instruction_sets=frozenset({"avx2"}),
        memory_bytes=5,
        architecture="x86_64",
    )
    expected = DeviceProfile(
        providers=("CPUExecutionProvider",),
        instruction_sets=frozenset({"avx2"}),
        memory_bytes=5,
        architecture="x86_64",
    )
    assert without(profile, "CUDAExecutionProvider") == expected


def test_this_machine_has_a_cpu() -> None:
    profile = device_profile()
    assert profile.providers[-1] == "CPUExecutionProvider"
    assert profile.memory_bytes is None or profile.memory_bytes > 0
    assert profile.architecture == platform.machine()


def test_a_profile_takes_the_providers_that_were_found_usable() -> None:
    assert device_profile((CUDA, CPU)).providers == (CUDA, CPU)


def test_the_operators_order_wins_and_case_does_not_matter() -> None:
    assert order_of(()) == PREFERENCE
    assert order_of(("cpu", "CUDA")) == (CPU, CUDA)
    assert order_of((TENSORRT,)) == (TENSORRT,)


@pytest.mark.parametrize(("labels", "found"), [(("CUDA", "Vulkan"), "Vulkan"), (("CUDA", "cuda"), "cuda")])
def test_an_order_that_makes_no_sense_is_refused(labels: tuple[str, ...], found: str) -> None:
    with pytest.raises(UsageError) as caught:
        order_of(labels)
    assert caught.value.where == "runtime.providers"
    assert caught.value.found == found
    assert caught.value.expected == "TensorRT or CUDA or OpenVINO or CPU"


def test_a_provider_is_called_by_its_label_and_an_unknown_one_by_what_it_is() -> None:
    assert [label_of(name) for name in (TENSORRT, "QNNExecutionProvider")] == ["TensorRT", "QNN"]


def test_every_option_has_a_reason_and_is_set_once() -> None:
    for provider in PROVIDERS:
        names = [option.name for option in provider.options]
        assert len(set(names)) == len(names)
        assert all(option.reason for option in provider.options)
        assert set(provider.next) <= set(BY_NAME)


def test_options_follow_the_settings() -> None:
    plain = {name: value for name, value, _ in options_of(CUDA, OptionSettings(gpu=1))}
    assert plain["device_id"] == "1"
    assert plain["use_tf32"] == "0"
    assert "gpu_mem_limit" not in plain
    bounded = {name: value for name, value, _ in options_of(CUDA, OptionSettings(gpu_memory_bytes=1 << 30))}
    assert bounded["gpu_mem_limit"] == str(1 << 30)


def test_engines_are_kept_only_where_there_is_a_folder_for_them() -> None:
    assert [name for name, _, _ in options_of(TENSORRT, OptionSettings())] == ["device_id"]
    kept = {name: value for name, value, _ in options_of(TENSORRT, OptionSettings(cache=Path("/c")))}
    assert kept == {
        "device_id": "0",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/c",
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": "/c",
    }


def test_a_plan_ends_on_the_cpu_and_goes_over_usable_providers_only() -> None:
    settings = OptionSettings()
    assert [name for name, _ in plan_of(TENSORRT, (TENSORRT, CUDA, CPU), settings)] == [TENSORRT, CUDA, CPU]
    assert [name for name, _ in plan_of(TENSORRT, (TENSORRT, CPU), settings)] == [TENSORRT, CPU]
    assert [name for name, _ in plan_of(CUDA, (), settings)] == [CUDA, CPU]
    assert plan_of(CPU, (CUDA, CPU), settings) == ((CPU, {}),)
    assert plan_of(CUDA, (), settings)[0][1]["arena_extend_strategy"] == "kSameAsRequested"


@pytest.mark.parametrize(
    ("policy", "needed", "unusable", "refused"),
    [
        (FALLBACK, [CUDA, CPU], {CUDA: "no driver"}, False),
        (REFUSE, [CUDA, CPU], {}, False),
        (REFUSE, [CUDA, CPU], {CUDA: "no driver"}, True),
        # The bundle has nothing for TensorRT, so that TensorRT is not missed.
        (REFUSE, [CUDA, CPU], {TENSORRT: "not built in"}, False),
        (REFUSE, [CPU], {TENSORRT: "x", CUDA: "x"}, False),
        # CUDA works and is preferred to the CPU; that the CPU is broken is no reason to refuse.
        (REFUSE, [CUDA, CPU], {CPU: "x"}, False),
        # The operator excluded everything that the bundle needs: the selection says so.
        (REFUSE, ["QNNExecutionProvider"], {CUDA: "x"}, False),
    ],
)
def test_the_policy(policy: str, needed: list[str], unusable: dict[str, str], refused: bool) -> None:
    reason = refusal(policy, PREFERENCE, needed, unusable)
    assert (reason is not None) == refused
    if refused:
        assert reason == "CUDA cannot be used: no driver"


def test_a_policy_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match=r"runtime\.policy"):
        refusal("panic", PREFERENCE, [], {})


def test_a_refusal_says_what_to_do() -> None:
    statuses = [
        ProviderStatus(name=CUDA, usable=False, reason="no driver", hint="install it"),
        ProviderStatus(name=CPU, usable=True),
    ]
    check_policy(FALLBACK, (CUDA, CPU), [CUDA, CPU], statuses)
    with pytest.raises(RuntimeUnavailableError) as caught:
        check_policy(REFUSE, (CUDA, CPU), [CUDA, CPU], statuses)
    assert caught.value.found == "CUDA cannot be used: no driver"
    assert caught.value.hint == "install it; or set runtime.policy to fallback"


def test_a_status_as_data() -> None:
    status = ProviderStatus(name=CUDA, usable=False, reason="r", missing=("libx.so",), options=(("a", "1", "why"),))
    assert status.as_dict() == {
        "name": CUDA,
        "usable": False,
        "reason": "r",
        "hint": None,
        "missing": ["libx.so"],
        "needs": None,
        "options": {"a": {"value": "1", "reason": "why"}},
        "seconds": 0.0,
    }
