"""Which variant a device gets, and what it is told about the others."""

from __future__ import annotations

import pytest

from edgeonnx.errors import SelectionError
from edgeonnx.spec.manifest import Requirements, Variant
from edgeonnx.spec.report import Threshold
from edgeonnx.spec.selection import DeviceProfile, select_variant

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def variant(name: str, provider: str = CPU, *, sets: tuple[str, ...] = (), memory: int = 0) -> Variant:
    return Variant(
        name=name,
        device="cpu",
        model_file="model.onnx",
        tensors=None,
        precision="fp32",
        requirements=Requirements(provider=provider, instruction_sets=sets, memory_bytes=memory),
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
