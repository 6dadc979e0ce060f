"""What kind of machine this is: processor, memory, GPUs, driver. For people, and for the keys of the cache."""

from __future__ import annotations

import ctypes
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from device_agent.config import usable_cpus
from edgeonnx.spec.profile import parse_available_memory, parse_instruction_sets

CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")
BOARD = Path("/proc/device-tree/model")
NVIDIA_VERSION = Path("/proc/driver/nvidia/version")
TEGRA_RELEASE = Path("/etc/nv_tegra_release")
DEVICES = Path("/dev")
PCI = Path("/sys/bus/pci/devices")

_NVIDIA_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"

KERNEL_SETS = (
    *("sse2", "avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_fp16"),
    *("amx_int8", "asimd", "asimddp", "i8mm"),
)
"""Instruction sets that decide which of ONNX Runtime's kernels run, of the hundred that a processor lists."""

# The driver's API (cuda.h): attributes of a device.
_MAJOR, _MINOR = 75, 76


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as the driver describes it; memory in bytes."""

    index: int
    name: str
    memory_bytes: int
    compute_capability: str


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What this machine has.

    Attributes:
        architecture: As `platform.machine()` says it.
        cpu: Name of the processor, or of the board where the processor has none.
        cpus: Cores that this process may use.
        instruction_sets: Those of `KERNEL_SETS` that it has, sorted.
        memory_bytes: Memory of the machine; None if unknown.
        available_bytes: Memory that is free for programs; None if unknown.
        gpus: NVIDIA GPUs that the driver shows to this process.
        driver: Version of the NVIDIA driver; empty without one.
        problem: Why the driver shows no GPU, where there is a driver; empty otherwise.
        jetson: It is an NVIDIA Jetson.
    """

    architecture: str
    cpu: str
    cpus: int
    instruction_sets: tuple[str, ...]
    memory_bytes: int | None
    available_bytes: int | None
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    problem: str = ""
    jetson: bool = False

    def as_dict(self) -> dict[str, object]:
        """The machine as plain data."""
        return asdict(self)

    def key(self, gpu: int | None) -> str:
        """What compiled or measured work depends on.

        Args:
            gpu: Number of the GPU that it is for; None for the CPU.
        """
        if gpu is None:
            return f"{self.architecture} {self.cpu} {self.cpus} {' '.join(self.instruction_sets)}"
        found = next((each for each in self.gpus if each.index == gpu), None)
        if found is None:
            return f"gpu {gpu} driver {self.driver}"
        return f"{found.name} {found.compute_capability} {found.memory_bytes} driver {self.driver}"


def describe_machine(*, gpus: bool = True) -> Machine:
    """Look at this machine.

    Args:
        gpus: Ask the NVIDIA driver too. It is loaded into this process for that.
    """
    cpuinfo, meminfo = read_text(CPUINFO), read_text(MEMINFO)
    found, problem = nvidia_gpus() if gpus else ((), "")
    sets = parse_instruction_sets(cpuinfo)
    return Machine(
        architecture=platform.machine(),
        cpu=parse_cpu_name(cpuinfo) or read_text(BOARD).strip("\0\n ") or "unknown",
        cpus=usable_cpus(),
        instruction_sets=tuple(sorted(sets & set(KERNEL_SETS))),
        memory_bytes=parse_total_memory(meminfo),
        available_bytes=parse_available_memory(meminfo),
        gpus=found,
        driver=driver_version(),
        problem=problem,
        jetson=is_jetson(),
    )


def parse_cpu_name(cpuinfo: str) -> str:
    """The first processor's name in the text of /proc/cpuinfo; empty if it gives none (Arm)."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def parse_total_memory(meminfo: str) -> int | None:
    """`MemTotal` of the text of /proc/meminfo, in bytes; None if it is not there."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def parse_driver_version(text: str) -> str:
    """The version in the text of /proc/driver/nvidia/version; empty if there is none."""
    found = re.search(r"^NVRM version:.*?\b(\d+\.\d+(?:\.\d+)?)\b", text, re.MULTILINE)
    return found[1] if found else ""


def driver_version() -> str:
    """Version of the NVIDIA driver (on a Jetson, of its Linux for Tegra); empty without one."""
    if version := parse_driver_version(read_text(NVIDIA_VERSION)):
        return version
    found = re.search(r"R(\d+).*REVISION: ([\d.]+)", read_text(TEGRA_RELEASE))
    return f"L4T {found[1]}.{found[2]}" if found else ""


def nvidia_device_files() -> tuple[str, ...]:
    """The NVIDIA driver's device files, which a container sees only if it was given the GPU."""
    try:
        return tuple(
            sorted(str(path) for pattern in ("nvidia[0-9]*", "nvhost-*gpu*") for path in DEVICES.glob(pattern))
        )
    except OSError:
        return ()


def nvidia_hardware() -> bool:
    """Whether the PCI bus has a display device of NVIDIA, driver or not; true on a Jetson."""
    try:
        devices = list(PCI.iterdir())
    except OSError:
        devices = []
    return is_jetson() or any(
        read_text(device / "vendor").strip() == _NVIDIA_VENDOR
        and read_text(device / "class").startswith(_DISPLAY_CLASS)
        for device in devices
    )


def is_jetson() -> bool:
    """Whether this is an NVIDIA Jetson."""
    return TEGRA_RELEASE.exists()


def nvidia_gpus(library: str = "libcuda.so.1") -> tuple[tuple[Gpu, ...], str]:
    """The GPUs that the driver shows to this process, and why there are none where there is a driver."""
    try:
        driver = ctypes.CDLL(library)
        code = driver.cuInit(0)
    except (OSError, AttributeError) as error:
        return (), "" if "No such file" in str(error) else str(error)
    if code != 0:
        return (), f"cuInit failed with CUDA error {code}"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return tuple(_gpu(driver, index) for index in range(count.value)), ""


def _gpu(driver: ctypes.CDLL, index: int) -> Gpu:
    device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    major, minor = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return Gpu(
        index=index,
        name=name.value.decode("utf-8", errors="replace"),
        memory_bytes=memory.value,
        compute_capability=f"{major.value}.{minor.value}",
    )


def read_text(path: Path) -> str:
    """The text of a small file of the system; empty where it is not there or not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
