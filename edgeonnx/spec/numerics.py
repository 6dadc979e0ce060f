"""Which CPUs compute a product of 8-bit matrices exactly. Pure: the CPU is described, never asked.

ONNX Runtime's CPU provider multiplies uint8 activations with int8 weights (`MatMulInteger`, and what is fused from it)
by the kernels of MLAS, which it picks by instruction set (`onnxruntime/core/mlas/lib/platform.cpp`, full builds). All
of them sum up in 32 bits, which hold more than 66,000 products. They differ in the step before:

- x86-64 with VNNI: `vpdpbusds` (AMX: `tdpbusd`) adds four products in 32 bits. Exact.
- x86-64 with AVX2, or AVX-512, without VNNI: `vpmaddubsw` adds two products in 16 bits and saturates. Two products of
  255 and 127 are 64,770; the largest 16-bit number is 32,767.
- x86-64 without AVX2: `pmaddwd` on values widened to 16 bits adds two products in 32 bits. Exact. (On Windows, MLAS
  uses SSE4.1's `pmaddubsw` there, which saturates; but Windows has no /proc/cpuinfo, so its CPUs are unknown here.)
- aarch64 with the dot product (`asimddp`), or `i8mm`: four or eight products in 32 bits. Exact.
- aarch64 without it: activations are made signed (0 to 255 becomes -128 to 127) and `smull`, `smlal` add two products
  in 16 bits, without saturation, so that they wrap. Only twice (-128) * (-128) = 32,768 does not fit.

A result of saturation is no error that anyone sees: the model answers, and answers wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeonnx.spec.parse import Node

INT16_MAX = 32_767
SAFE_WEIGHT = 64
"""Largest weight that fits in 16 bits twice with any activation: 2 * 255 * 64 = 32,640."""

_X86_64 = frozenset({"x86_64", "amd64"})
_AARCH64 = frozenset({"aarch64", "arm64"})
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})


@dataclass(frozen=True, kw_only=True)
class IntegerRange:
    """The numbers that the 8-bit matrix products of a graph meet.

    Attributes:
        activation_max: Largest uint8 activation as it is stored (zero point included), 1 to 255.
        weight_max: Largest magnitude of an int8 weight, 1 to 128.
    """

    activation_max: int
    weight_max: int

    @classmethod
    def from_dict(cls, node: Node) -> IntegerRange:
        """Read the `integer` object. It limits where a variant may run, so nothing in it is ever ignored."""
        node.only(("activation_max", "weight_max"), always=True)
        return cls(
            activation_max=node.integer("activation_max", minimum=1, maximum=255),
            weight_max=node.integer("weight_max", minimum=1, maximum=128),
        )

    def to_dict(self) -> dict[str, object]:
        """The `integer` object."""
        return {"activation_max": self.activation_max, "weight_max": self.weight_max}


class IntegerKernel(Enum):
    """How a CPU adds products of 8-bit integers."""

    VNNI = "vnni"
    MADDUBS = "maddubs"
    SSE2 = "sse2"
    DOT = "dot"
    NEON = "neon"
    UNKNOWN = "unknown"


_WHY = {
    IntegerKernel.VNNI: "x86-64 with VNNI adds four products in 32 bits",
    IntegerKernel.MADDUBS: "x86-64 without VNNI adds pairs of products in 16 bits",
    IntegerKernel.SSE2: "x86-64 without AVX2 adds pairs of products in 32 bits",
    IntegerKernel.DOT: "aarch64 with the dot product adds four products in 32 bits",
    IntegerKernel.NEON: "aarch64 without the dot product adds pairs of signed products in 16 bits",
    IntegerKernel.UNKNOWN: "it is not known how this CPU adds products, and it may add pairs of them in 16 bits",
}


def integer_kernel(architecture: str, instruction_sets: frozenset[str]) -> IntegerKernel:
    """The kernel that MLAS uses for uint8 activations and int8 weights.

    Args:
        architecture: As `platform.machine()` says it.
        instruction_sets: CPU features in the spelling of /proc/cpuinfo; empty if they are not known.
    """
    machine = architecture.lower()
    if machine in _AARCH64:
        # Without a list of features the weaker of the two is assumed; all of aarch64 has at least that.
        return IntegerKernel.DOT if instruction_sets & {"asimddp", "i8mm"} else IntegerKernel.NEON
    if machine in _X86_64 and "sse2" in instruction_sets:
        return _x86_kernel(instruction_sets)
    return IntegerKernel.UNKNOWN


def _x86_kernel(sets: frozenset[str]) -> IntegerKernel:
    """MLAS decides in this order: where AVX-512 is complete it forgets AVX-VNNI; AMX needs AVX-512 VNNI beside it."""
    if not sets >= {"avx2", "fma"}:
        return IntegerKernel.SSE2
    vnni = "avx512_vnni" if sets >= _AVX512 else "avx_vnni"
    return IntegerKernel.VNNI if vnni in sets else IntegerKernel.MADDUBS


def saturates(kernel: IntegerKernel, activation_max: int, weight_max: int) -> bool:
    """Whether a sum of two products can leave the 16 bits in which the kernel holds it.

    Args:
        kernel: From `integer_kernel`.
        activation_max: Largest activation, 1 to 255; the smallest is 0.
        weight_max: Largest magnitude of a weight, 1 to 128; 128 is -128 alone, as int8 has no +128.
    """
    if kernel is IntegerKernel.MADDUBS:
        highest, lowest = 2 * activation_max * min(weight_max, 127), -2 * activation_max * weight_max
        return highest > INT16_MAX or lowest < -INT16_MAX - 1
    if kernel is IntegerKernel.NEON:
        return 2 * 128 * weight_max > INT16_MAX
    return kernel is IntegerKernel.UNKNOWN and weight_max > SAFE_WEIGHT


def why(kernel: IntegerKernel) -> str:
    """What a kernel does, as a clause that can follow a colon."""
    return _WHY[kernel]
