"""CPUs that bundles meet: the architecture, and the features of /proc/cpuinfo, shortened to what matters."""

from __future__ import annotations

from edgeonnx.spec.profile import parse_instruction_sets
from edgeonnx.spec.selection import DeviceProfile

_SSE = "fpu vme sse sse2 ht syscall nx lm constant_tsc pni pclmulqdq ssse3 cx16 sse4_1 sse4_2 movbe popcnt"
_AVX2 = f"{_SSE} aes xsave avx f16c rdrand fma abm bmi1 avx2 smep bmi2 erms"
_AVX512 = f"{_AVX2} avx512f avx512dq rdseed adx clflushopt avx512cd avx512bw avx512vl"

CPUINFO: dict[str, tuple[str, str]] = {
    "Celeron J1900": ("x86_64", f"processor\t: 0\nflags\t\t: {_SSE} tsc_deadline_timer rdrand\n"),
    "Core i5-4300U": ("x86_64", f"processor\t: 0\nflags\t\t: {_AVX2}\nbogomips\t: 4988\n"),
    "EPYC 7763": ("x86_64", f"processor\t: 0\nflags\t\t: {_AVX2} rdseed adx clflushopt vaes vpclmulqdq\n"),
    "Xeon Gold 6148": ("x86_64", f"processor\t: 0\nflags\t\t: {_AVX512} xsaveopt\n"),
    "Ice Lake": ("x86_64", f"processor\t: 0\nflags\t\t: {_AVX512} avx512_vbmi2 gfni vaes avx512_vnni avx512_bitalg\n"),
    "Alder Lake": ("x86_64", f"processor\t: 0\nflags\t\t: {_AVX2} rdseed adx avx_vnni gfni vaes serialize\n"),
    "Sapphire Rapids": (
        "x86_64",
        f"processor\t: 0\nflags\t\t: {_AVX512} avx_vnni avx512_bf16 avx512_vnni amx_bf16 amx_tile amx_int8\n",
    ),
    # A virtual machine may hide what its CPU has: MLAS then takes the AVX-512 kernel without VNNI.
    "avx512_vnni hidden": ("x86_64", f"processor\t: 0\nflags\t\t: {_AVX512} avx_vnni amx_tile amx_int8 hypervisor\n"),
    "Raspberry Pi 4": ("aarch64", "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU part\t: 0xd08\n"),
    "Jetson Orin": (
        "aarch64",
        "processor\t: 0\nFeatures\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc asimddp\n",
    ),
    "Graviton 3": ("aarch64", "Features\t: fp asimd atomics fphp asimdhp asimddp sve svei8mm svebf16 i8mm bf16 dgh\n"),
    "aarch64, no cpuinfo": ("aarch64", ""),
    "x86-64, no cpuinfo": ("x86_64", ""),
    "AMD64 of Windows": ("AMD64", ""),
    "VisionFive 2": ("riscv64", "processor\t: 0\nhart\t\t: 2\nisa\t\t: rv64imafdc\n"),
    "not told": ("", ""),
}
"""Name of a CPU to what `platform.machine()` and /proc/cpuinfo say on it."""


def profile_of(cpu: str) -> DeviceProfile:
    """A device with that CPU, and nothing else to compute on."""
    architecture, cpuinfo = CPUINFO[cpu]
    return DeviceProfile(
        providers=("CPUExecutionProvider",),
        instruction_sets=parse_instruction_sets(cpuinfo),
        architecture=architecture,
    )
