"""Which CPU computes 8-bit products exactly: the rules, held against an emulation of what each instruction does."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeonnx.errors import ManifestError
from edgeonnx.spec.numerics import SAFE_WEIGHT, IntegerKernel, IntegerRange, integer_kernel, saturates, why
from edgeonnx.spec.parse import parse_document
from tests.support.cpus import CPUINFO, profile_of

Matrix = NDArray[np.int64]

KERNELS = {
    "Celeron J1900": IntegerKernel.SSE2,
    "Core i5-4300U": IntegerKernel.MADDUBS,
    "EPYC 7763": IntegerKernel.MADDUBS,
    "Xeon Gold 6148": IntegerKernel.MADDUBS,
    "Ice Lake": IntegerKernel.VNNI,
    "Alder Lake": IntegerKernel.VNNI,
    "Sapphire Rapids": IntegerKernel.VNNI,
    "avx512_vnni hidden": IntegerKernel.MADDUBS,
    "Raspberry Pi 4": IntegerKernel.NEON,
    "Jetson Orin": IntegerKernel.DOT,
    "Graviton 3": IntegerKernel.DOT,
    "aarch64, no cpuinfo": IntegerKernel.NEON,
    "x86-64, no cpuinfo": IntegerKernel.UNKNOWN,
    "AMD64 of Windows": IntegerKernel.UNKNOWN,
    "VisionFive 2": IntegerKernel.UNKNOWN,
    "not told": IntegerKernel.UNKNOWN,
}


def exact(activations: Matrix, weights: Matrix) -> Matrix:
    return activations @ weights


def by_maddubs(activations: Matrix, weights: Matrix) -> Matrix:
    """`vpmaddubsw`, then sums in 32 bits: neighbours along the reduction axis are added in 16 bits with saturation."""
    products = activations[:, :, None] * weights[None, :, :]
    pairs = np.clip(products[:, 0::2] + products[:, 1::2], -(1 << 15), (1 << 15) - 1)
    return pairs.sum(axis=1)


def by_neon(activations: Matrix, weights: Matrix) -> Matrix:
    """`smull`, `smlal`, `sadalp`: of 16 products of signed bytes, those 8 apart are added in 16 bits, which wrap."""
    signed = (activations.astype(np.uint8) ^ 0x80).astype(np.int8).astype(np.int64)
    products = (signed[:, :, None] * weights[None, :, :]).reshape(len(activations), -1, 2, 8, weights.shape[1])
    pairs = products.sum(axis=2).astype(np.int16).astype(np.int64)
    return pairs.sum(axis=(1, 2)) + 128 * weights.sum(axis=0)


def extreme(activation_max: int, weight_max: int) -> tuple[Matrix, Matrix]:
    """All pairs of the smallest and the largest values that an input may have. int8 has no +128."""
    activations = np.array([[0] * 16, [activation_max] * 16, [0, activation_max] * 8])
    largest = min(weight_max, 127)
    weights = np.stack([[largest] * 16, [-weight_max] * 16, [largest, -weight_max] * 8], axis=1)
    return activations, weights


def realistic(weight_max: int) -> tuple[Matrix, Matrix]:
    """Rows of activations quantized to 1..255 around 128 with outliers, and weights per column up to `weight_max`."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((32, 64)) * np.where(np.arange(64) % 16 == 0, 4.0, 1.0)
    activations = np.floor(x * 127 / np.abs(x).max(axis=1, keepdims=True) + 128.5).astype(np.int64)
    w = rng.standard_normal((64, 48))
    weights = np.rint(w * weight_max / np.abs(w).max(axis=0)).astype(np.int64)
    assert activations.min() >= 1
    assert activations.max() <= 255
    assert np.abs(weights).max() == weight_max
    return activations, weights


@pytest.mark.parametrize("cpu", CPUINFO)
def test_the_kernel_of_each_cpu(cpu: str) -> None:
    profile = profile_of(cpu)
    assert integer_kernel(profile.architecture, profile.instruction_sets) is KERNELS[cpu]


@pytest.mark.parametrize("missing", ["avx2", "fma"])
def test_mlas_takes_the_avx2_kernel_only_with_avx2_and_fma(missing: str) -> None:
    sets = profile_of("Ice Lake").instruction_sets - {missing}
    assert integer_kernel("x86_64", sets) is IntegerKernel.SSE2


@pytest.mark.parametrize("missing", ["avx512f", "avx512bw", "avx512dq", "avx512vl"])
def test_vnni_of_avx512_counts_only_where_avx512_is_complete(missing: str) -> None:
    sets = profile_of("Ice Lake").instruction_sets - {missing}
    assert integer_kernel("x86_64", sets) is IntegerKernel.MADDUBS


def test_the_spelling_of_other_systems_is_known() -> None:
    assert integer_kernel("arm64", frozenset({"asimddp"})) is IntegerKernel.DOT
    assert integer_kernel("AMD64", profile_of("Ice Lake").instruction_sets) is IntegerKernel.VNNI


@pytest.mark.parametrize("activation_max", [1, 64, 127, 128, 129, 200, 254, 255])
def test_maddubs_saturates_exactly_where_its_emulation_does(activation_max: int) -> None:
    for weight_max in range(1, 129):
        activations, weights = extreme(activation_max, weight_max)
        wrong = (by_maddubs(activations, weights) != exact(activations, weights)).any()
        assert saturates(IntegerKernel.MADDUBS, activation_max, weight_max) == wrong, weight_max


@pytest.mark.parametrize("activation_max", [1, 127, 128, 255])
def test_neon_wraps_exactly_where_its_emulation_does(activation_max: int) -> None:
    for weight_max in range(1, 129):
        activations, weights = extreme(activation_max, weight_max)
        wrong = (by_neon(activations, weights) != exact(activations, weights)).any()
        assert saturates(IntegerKernel.NEON, activation_max, weight_max) == wrong, weight_max


def test_maddubs_on_realistic_numbers() -> None:
    for weight_max, same in ((SAFE_WEIGHT, True), (127, False)):
        activations, weights = realistic(weight_max)
        assert (by_maddubs(activations, weights) == exact(activations, weights)).all() == same


def test_neon_on_realistic_numbers() -> None:
    activations, weights = realistic(127)
    np.testing.assert_array_equal(by_neon(activations, weights), exact(activations, weights))


def test_the_safe_weight_is_the_largest_that_fits_any_activation() -> None:
    assert not saturates(IntegerKernel.MADDUBS, 255, SAFE_WEIGHT)
    assert saturates(IntegerKernel.MADDUBS, 255, SAFE_WEIGHT + 1)


@pytest.mark.parametrize("kernel", [IntegerKernel.VNNI, IntegerKernel.DOT, IntegerKernel.SSE2])
def test_sums_in_32_bits_never_saturate(kernel: IntegerKernel) -> None:
    assert not saturates(kernel, 255, 128)


@pytest.mark.parametrize(("weight_max", "expected"), [(64, False), (65, True), (128, True)])
def test_an_unknown_cpu_is_assumed_to_saturate(weight_max: int, expected: bool) -> None:
    assert saturates(IntegerKernel.UNKNOWN, 1, weight_max) is expected


def test_every_kernel_has_its_reason() -> None:
    reasons = {why(kernel) for kernel in IntegerKernel}
    assert len(reasons) == len(IntegerKernel)


@pytest.mark.parametrize(
    "made", [IntegerRange(activation_max=1, weight_max=1), IntegerRange(activation_max=255, weight_max=128)]
)
def test_a_range_is_read_back(made: IntegerRange) -> None:
    assert IntegerRange.from_dict(parse_document(json.dumps(made.to_dict()).encode(), "r.json")) == made


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"activation_max": 0}, "activation_max"),
        ({"activation_max": 256}, "activation_max"),
        ({"weight_max": 0}, "weight_max"),
        ({"weight_max": 129}, "weight_max"),
        ({"weight_max": 64.0}, "weight_max"),
        ({"weight_max": True}, "weight_max"),
        ({"weights": 64}, "weights"),
    ],
)
def test_a_range_that_cannot_be_names_the_field(change: dict[str, object], where: str) -> None:
    document = {"activation_max": 255, "weight_max": 127, **change}
    node = parse_document(json.dumps(document).encode(), "r.json").relaxed(newer=True)
    with pytest.raises(ManifestError) as caught:
        IntegerRange.from_dict(node)
    assert caught.value.where == f"r.json: {where}"
