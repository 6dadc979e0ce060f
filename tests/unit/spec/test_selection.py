"""Which variant a device gets, and what it is told about the others."""

from __future__ import annotations

import pytest

from edgeonnx.errors import SelectionError
from edgeonnx.spec.manifest import Requirements, Variant
from edgeonnx.spec.numerics import IntegerRange
from edgeonnx.spec.report import Threshold
from edgeonnx.spec.selection import DeviceProfile, select_variant
from tests.support.cpus import CPUINFO, profile_of

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def variant(
    name: str,
    provider: str = CPU,
    *,
    sets: tuple[str, ...] = (),
    memory: int = 0,
    weight_max: int | None = None,
    unknown: tuple[str, ...] = (),
) -> Variant:
    return Variant(
        name=name,
        device="cpu",
        model_file="model.onnx",
        tensors=None,
        precision="fp32",
        requirements=Requirements(
            provider=provider,
            instruction_sets=sets,
            memory_bytes=memory,
            integer=None if weight_max is None else IntegerRange(activation_max=255, weight_max=weight_max),
            unknown=unknown,
        ),
        golden=(Threshold(metric="scaled_diff", at_most=1e-3),),
    )


def test_the_most_preferred_provider_wins_over_the_bundles_order() -> None:
    choice = select_variant([variant("a"), variant("b", CUDA)], DeviceProfile(providers=(CUDA, CPU)))
    assert choice.chosen.name == "b"
    assert choice.rejected == (("a", "b is preferred"),)


def test_between_equal_providers_the_bundles_order_decides() -> None:
    profile = DeviceProfile(providers=(CPU,))
    assert select_variant([variant("z"), variant("a")], profile).chosen.name == "z"


def test_each_requirement_is_a_reason() -> None:
    variants = [
        variant("gpu", CUDA),
        variant("vnni", sets=("avx2", "avx512_vnni")),
        variant("large", memory=2_000_000),
        variant("fits", memory=1_000_000),
    ]
    profile = DeviceProfile(providers=(CPU,), instruction_sets=frozenset({"avx2"}), memory_bytes=1_000_000)
    choice = select_variant(variants, profile)
    assert choice.chosen.name == "fits"
    assert dict(choice.rejected) == {
        "gpu": f"needs {CUDA}; this device has {CPU}",
        "vnni": "needs the instruction sets avx512_vnni",
        "large": "needs 2,000,000 bytes of memory; 1,000,000 are available",
    }


def test_unknown_memory_is_no_reason() -> None:
    assert select_variant([variant("a", memory=1 << 60)], DeviceProfile(providers=(CPU,))).chosen.name == "a"


def test_nothing_fits_says_why_for_each_and_what_to_do() -> None:
    with pytest.raises(SelectionError) as caught:
        select_variant([variant("a", CUDA), variant("b", sets=("amx",))], DeviceProfile(providers=(CPU,)))
    assert caught.value.details == (
        f"a: needs {CUDA}; this device has {CPU}",
        "b: needs the instruction sets amx",
    )
    assert caught.value.hint == "package the model for this kind of device"


def test_a_device_without_providers_is_told_so() -> None:
    with pytest.raises(SelectionError, match="this device has none"):
        select_variant([variant("a")], DeviceProfile(providers=()))


def test_the_operators_choice_is_the_only_candidate() -> None:
    choice = select_variant([variant("a"), variant("b")], DeviceProfile(providers=(CPU,)), wanted="b")
    assert choice.chosen.name == "b"
    assert choice.rejected == (("a", "the operator asked for b"),)


def test_a_choice_that_the_bundle_lacks_lists_what_there_is() -> None:
    with pytest.raises(SelectionError) as caught:
        select_variant([variant("a"), variant("b")], DeviceProfile(providers=(CPU,)), wanted="c")
    assert "no variant c" in caught.value.message
    assert caught.value.expected == "a or b"


def test_a_choice_that_does_not_fit_says_why() -> None:
    with pytest.raises(SelectionError, match="the variant b cannot be used") as caught:
        select_variant([variant("a"), variant("b", CUDA)], DeviceProfile(providers=(CPU,)), wanted="b")
    assert f"b: needs {CUDA}; this device has {CPU}" in caught.value.details


MADDUBS = "x86-64 without VNNI adds pairs of products in 16 bits"
UNKNOWN = "it is not known how this CPU adds products, and it may add pairs of them in 16 bits"
FULL_RANGE_REFUSED = {
    "Core i5-4300U": MADDUBS,
    "EPYC 7763": MADDUBS,
    "Xeon Gold 6148": MADDUBS,
    "avx512_vnni hidden": MADDUBS,
    "x86-64, no cpuinfo": UNKNOWN,
    "AMD64 of Windows": UNKNOWN,
    "VisionFive 2": UNKNOWN,
    "not told": UNKNOWN,
}


@pytest.mark.parametrize("cpu", CPUINFO)
def test_int8_of_the_full_range_runs_only_where_it_is_exact(cpu: str) -> None:
    variants = [variant("int8", weight_max=127), variant("int8-7bit", weight_max=64), variant("fp32")]
    choice = select_variant(variants, profile_of(cpu))
    if cpu in FULL_RANGE_REFUSED:
        assert choice.chosen.name == "int8-7bit"
        assert dict(choice.rejected) == {
            "int8": f"int8 weights up to 127 would saturate on this CPU: {FULL_RANGE_REFUSED[cpu]}",
            "fp32": "int8-7bit is preferred",
        }
    else:
        assert choice.chosen.name == "int8"
        assert dict(choice.rejected) == {"int8-7bit": "int8 is preferred", "fp32": "int8 is preferred"}


@pytest.mark.parametrize("cpu", CPUINFO)
def test_weights_of_minus_128_run_on_no_neon_without_the_dot_product(cpu: str) -> None:
    choice = select_variant([variant("int8", weight_max=128), variant("fp32")], profile_of(cpu))
    refused = cpu in {*FULL_RANGE_REFUSED, "Raspberry Pi 4", "aarch64, no cpuinfo"}
    assert choice.chosen.name == ("fp32" if refused else "int8")


def test_what_would_saturate_is_refused_even_if_the_operator_asks_for_it() -> None:
    with pytest.raises(SelectionError, match="the variant int8 cannot be used") as caught:
        select_variant([variant("int8", weight_max=127), variant("fp32")], profile_of("Core i5-4300U"), wanted="int8")
    assert f"int8: int8 weights up to 127 would saturate on this CPU: {MADDUBS}" in caught.value.details


def test_a_requirement_of_a_later_release_is_not_met() -> None:
    choice = select_variant([variant("new", unknown=("cache_bytes", "numa")), variant("fp32")], profile_of("Ice Lake"))
    assert choice.chosen.name == "fp32"
    assert dict(choice.rejected) == {"new": "states requirements that this release does not know: cache_bytes, numa"}


@pytest.mark.parametrize("wanted", [None, "fp32"])
@pytest.mark.parametrize("cpu", CPUINFO)
def test_each_variant_is_chosen_or_has_a_reason(cpu: str, wanted: str | None) -> None:
    variants = [
        variant("cuda", CUDA),
        variant("int8", weight_max=127),
        variant("amx", sets=("amx_int8",)),
        variant("large", memory=1 << 40),
        variant("fp32"),
    ]
    choice = select_variant(variants, profile_of(cpu), wanted=wanted)
    told = [name for name, _ in choice.rejected]
    assert sorted([*told, choice.chosen.name]) == sorted(item.name for item in variants)
    assert all(reason for _, reason in choice.rejected)
