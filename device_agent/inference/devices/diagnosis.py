"""What ONNX Runtime's words mean. Pure: messages in, verdict out.

Two questions are answered here. Why can a provider not be used (`diagnose`, from the outcome of a trial)? And what does
a failed run say of the inputs, of the provider and of the run itself (`classify`)? ONNX Runtime tells both in prose,
often behind hundreds of characters of C++ signatures; the patterns below are those of its releases 1.20 to 1.32.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import Enum

from device_agent.inference.devices.providers import (
    BY_NAME,
    CPU_PROVIDER,
    CUDA_PROVIDER,
    TENSORRT_PROVIDER,
    ProviderStatus,
)

# ONNX Runtime wraps the cause in a status line and, for kernels, in the node that failed.
_STATUS_PREFIX = r"^\[ONNXRuntimeError\] : \d+ : \w+ : "
_COLOUR = r"\x1b\[[0-9;]*m"
_LIBRARY_FAILURE = r"\b(CUDA|CUDNN|CUBLAS|CUFFT|CURAND) failure (\d+): (.+?)(?= ; |$)"
_LOAD_FAILURE = r"Failed to load library (\S+) with error: ([^\n]+)"
_NOT_FOUND = r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file"
_NO_SYMBOL = r"undefined symbol: (\w+)"
_VERSION = r"\d+(?:\.(?:\d+|\*))*"
_NEEDS = rf"Require (cuDNN {_VERSION} and CUDA {_VERSION}|cuDNN {_VERSION}|CUDA {_VERSION})"
_SOURCE = (
    r"(?<!\S)\S*/onnxruntime(?:_src)?/\S+:\d+ "
    r"(?:[^()]{0,400}::[^()]{0,400}\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])? ?)?"
)
_LOG_LINE = r"^\S+ \S+ \[([EWF]):onnxruntime:[^\]]*\] "
_ALLOCATION = r"Failed to allocate memory for requested buffer of size (\d+)"

MAX_REASON = 400
_LONGEST = 16 << 10
"""Characters of a message that are looked at."""


class Failure(Enum):
    """What a failed run says."""

    INPUTS = "inputs"
    """The inputs do not fit the graph: no provider would take them."""
    MEMORY = "memory"
    """The device has no memory left: the provider is lost, but its session can be closed."""
    DEVICE = "device"
    """The device, or the provider on it, does not work any more: its session must not even be closed."""
    RUN = "run"
    """The run failed for another reason, which another provider may share."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The outcome of trying a provider in a process of its own.

    Attributes:
        name: The provider.
        built_in: The installed ONNX Runtime was built with it.
        runtime: Version of ONNX Runtime.
        package: Distribution of ONNX Runtime ("onnxruntime-gpu"); empty if unknown.
        cuda: CUDA version that ONNX Runtime was built for ("13.0"); empty if none.
        loaded: Providers that the session had.
        error: The exception, with its text; empty if there was none.
        log: What was written to stderr and stdout.
        missing: Shared libraries that the dynamic linker does not find, of the provider's library and of theirs.
        library_present: The provider's own library is there.
        exit_code: How the process ended; negative: by that signal; None: it was ended because it took too long.
        driver: Version of the NVIDIA driver; empty if there is none.
        device_nodes: The NVIDIA driver's device files are there.
        hardware: An NVIDIA device is on the PCI bus (or this is a Jetson).
        jetson: This machine is a Jetson, whose libraries come with JetPack.
        seconds: Time that it took.
    """

    name: str
    built_in: bool = True
    runtime: str = ""
    package: str = ""
    cuda: str = ""
    loaded: tuple[str, ...] = ()
    error: str = ""
    log: str = ""
    missing: tuple[str, ...] = ()
    library_present: bool = True
    exit_code: int | None = 0
    driver: str = ""
    device_nodes: bool = False
    hardware: bool = False
    jetson: bool = False
    seconds: float = 0.0


def essence(text: str, limit: int = MAX_REASON) -> str:
    """The cause in a message of ONNX Runtime, as one line: the failure of a library rather than the way to it."""
    text = re.sub(_COLOUR, "", text[:_LONGEST]).strip()
    if found := re.search(_LIBRARY_FAILURE, " ".join(text.split())):
        call = re.search(r"expr=([^;]+?)\(", text)
        return f"{found[0]}{f' (in {call[1]})' if call else ''}"[:limit]
    if found := re.search(_LOAD_FAILURE, text):
        return found[2].strip()[:limit]
    plain = re.sub(_SOURCE, "", re.sub(_STATUS_PREFIX, "", text))
    return " ".join(plain.split())[:limit]


def diagnose(trial: Trial) -> ProviderStatus:
    """Say whether a provider can be used, and if not, exactly why and what to do."""
    if not trial.built_in:
        return _not_built_in(trial)
    usable = trial.exit_code == 0 and not trial.error and trial.name in trial.loaded
    if usable:
        return ProviderStatus(name=trial.name, usable=True, needs=needs_of(trial), seconds=trial.seconds)
    reason, hint = _why_unusable(trial)
    return ProviderStatus(
        name=trial.name,
        usable=False,
        reason=reason[:MAX_REASON],
        hint=hint,
        missing=trial.missing,
        needs=needs_of(trial),
        seconds=trial.seconds,
    )


def needs_of(trial: Trial) -> str:
    """The versions that this build of ONNX Runtime wants, as it says itself; else those it was built for."""
    if found := re.search(_NEEDS, trial.log):
        return found[1].replace(".*", "")
    return f"CUDA {trial.cuda}" if trial.cuda and trial.name in (CUDA_PROVIDER, TENSORRT_PROVIDER) else ""


def _not_built_in(trial: Trial) -> ProviderStatus:
    package = BY_NAME[trial.name].package
    return ProviderStatus(
        name=trial.name,
        usable=False,
        reason=f"not in this build: {trial.package or 'onnxruntime'} {trial.runtime} was built without it",
        hint=f"install {package} in place of {trial.package or 'onnxruntime'} (never both: they share one folder)",
    )


def _why_unusable(trial: Trial) -> tuple[str, str]:
    """Reason and hint: the most exact that the outcome allows."""
    text = f"{trial.error}\n{trial.log}"
    if trial.exit_code is None:
        return f"it did not answer within {trial.seconds:.0f} s", "look at the driver's messages (dmesg)"
    if trial.exit_code < 0:
        return f"its library ended the process by {_signal_name(trial.exit_code)} while it was tried", _versions(trial)
    if not trial.library_present:
        library = BY_NAME[trial.name].library
        return f"its library {library} is not in ONNX Runtime's folder", "install ONNX Runtime again"
    missing = trial.missing or tuple(dict.fromkeys(re.findall(_NOT_FOUND, text)))
    if missing:
        return _missing(missing), library_hint(missing, trial)
    if found := re.search(_LIBRARY_FAILURE, " ".join(text.split())):
        return _device_failure(found[1], int(found[2]), essence(text), trial)
    if found := re.search(_LOAD_FAILURE, re.sub(_COLOUR, "", text)):
        return _load_failure(found[2].strip(), trial)
    if trial.error:
        return essence(trial.error), _versions(trial)
    if lines := _log_lines(trial.log):
        return essence(lines[0]), _versions(trial)
    return "the session does not have it after loading, and ONNX Runtime gave no reason", _versions(trial)


def _missing(names: tuple[str, ...]) -> str:
    return f"the shared librar{'y' if len(names) == 1 else 'ies'} {', '.join(names)} cannot be found"


def _signal_name(exit_code: int) -> str:
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def _versions(trial: Trial) -> str:
    needs = needs_of(trial)
    return f"check that what is installed is {needs}" if needs else ""


def _load_failure(error: str, trial: Trial) -> tuple[str, str]:
    """The dynamic linker found every library, and one does not fit."""
    if (symbol := re.search(_NO_SYMBOL, error)) and symbol[1].startswith("cu") and not symbol[1].startswith("cud"):
        return (
            f"the driver's libcuda.so.1 lacks {symbol[1]}: it is older than this build needs, or only a stub",
            _driver_hint(trial),
        )
    return error, _versions(trial)


# CUDA error codes, cuda_runtime_api's `cudaError_t`; the driver's API uses the same numbers for these.
_OLD_DRIVER, _STUB, _NO_DEVICE, _NO_SUCH_DEVICE, _BUSY, _NO_KERNEL = 35, 34, 100, 101, 46, 209
_DRIVER_MISMATCH, _NOT_FORWARD, _MEMORY = 803, 804, 2


def _device_failure(library: str, code: int, text: str, trial: Trial) -> tuple[str, str]:
    """A failure that CUDA or one of its libraries reported by number."""
    if library != "CUDA":
        return text, _versions(trial)
    have = f"driver {trial.driver}" if trial.driver else "no driver was found"
    known = {
        _OLD_DRIVER: (
            f"the NVIDIA driver is too old for this build, or is missing ({have}); {text}",
            _driver_hint(trial),
        ),
        _STUB: (f"libcuda.so.1 is a stub, not the driver; {text}", _driver_hint(trial)),
        _NO_DEVICE: (f"no GPU is visible to this process ({have}); {text}", _visible_hint(trial)),
        _NO_SUCH_DEVICE: (f"this machine has no GPU of that number; {text}", "set runtime.gpu"),
        _BUSY: (f"the GPU is busy or in exclusive use; {text}", "end the other process, see nvidia-smi"),
        _NO_KERNEL: (f"this build has no code for this GPU; {text}", "use a build of ONNX Runtime for this GPU"),
        _DRIVER_MISMATCH: (f"the driver's kernel module and library differ; {text}", "reboot after a driver update"),
        _NOT_FORWARD: (f"CUDA's forward compatibility does not cover this GPU; {text}", _driver_hint(trial)),
        _MEMORY: (f"the GPU has no memory left; {text}", "end what uses it, see nvidia-smi"),
    }
    return known.get(code, (text, _versions(trial)))


def _driver_hint(trial: Trial) -> str:
    if trial.jetson:
        return f"update JetPack to one with {needs_of(trial) or 'the CUDA version that this build wants'}"
    needs = f" for CUDA {trial.cuda}" if trial.cuda else ""
    return f"install or update the NVIDIA driver{needs} on the host; in a container, start it with the GPU (--gpus all)"


def _visible_hint(trial: Trial) -> str:
    if not trial.hardware and not trial.device_nodes:
        return NO_HARDWARE
    where = "the device files /dev/nvidia* are there" if trial.device_nodes else "there is no /dev/nvidia*"
    return f"{where}; check CUDA_VISIBLE_DEVICES and the device's permissions, and --gpus all for a container"


_PACKAGES = {
    "cublas": "nvidia-cublas",
    "cublasLt": "nvidia-cublas",
    "curand": "nvidia-curand",
    "cufft": "nvidia-cufft",
    "cudart": "nvidia-cuda-runtime",
    "nvrtc": "nvidia-cuda-nvrtc",
    "nvJitLink": "nvidia-nvjitlink",
}
_WITH_CUDA_SUFFIX = {
    "cudnn": "nvidia-cudnn-cu{}",
    "nvinfer": "tensorrt-cu{}-libs",
    "nvonnxparser": "tensorrt-cu{}-libs",
}
_SONAME = r"lib(.+?)(?:_[a-z_0-9]+)?\.so(?:\.(\d+))?"


def package_of(library: str, cuda: str) -> str | None:
    """The Python package that carries a shared library, with its version, or None if none does.

    Args:
        library: As the dynamic linker names it (`libcublas.so.13`).
        cuda: CUDA version that ONNX Runtime was built for ("13.0").
    """
    found = re.match(_SONAME, library)
    major = cuda.partition(".")[0]
    if found is None or not major.isdigit():
        return None
    stem, version = found[1], found[2]
    if name := _WITH_CUDA_SUFFIX.get(stem):
        return name.format(major) + (f"=={version}.*" if version else "")
    if name := _PACKAGES.get(stem):
        # From CUDA 13 on the packages lost the suffix, and those of the toolkit itself carry its version.
        if int(major) < 13:
            return f"{name}-cu{major}"
        return f"{name}=={version}.*" if version else name
    return None


NO_HARDWARE = "no NVIDIA GPU is visible here (none on the PCI bus, no /dev/nvidia*)"


def library_hint(missing: tuple[str, ...], trial: Trial) -> str:
    """What to install so that missing shared libraries are there."""
    if any(name.startswith("libopenvino") for name in missing):
        return "install onnxruntime-openvino again: it brings OpenVINO's libraries"
    hints: list[str] = [] if trial.hardware or trial.device_nodes else [NO_HARDWARE]
    packages = dict.fromkeys(filter(None, (package_of(name, trial.cuda) for name in missing)))
    if trial.jetson:
        hints.append("install JetPack's CUDA, cuDNN and TensorRT (apt install nvidia-jetpack)")
    elif packages:
        quoted = " ".join(f"'{name}'" for name in packages)
        hints.append(f"pip install {quoted} (or put the libraries of CUDA {trial.cuda} on LD_LIBRARY_PATH)")
    if "libcuda.so.1" in missing:
        hints.append(f"libcuda.so.1 is the driver's: {_driver_hint(trial)}")
    return "; ".join(hints) or "install the packages that have these libraries"


def _log_lines(log: str) -> list[str]:
    """The errors and warnings of a log without time and source, errors first."""
    matches = [(line, re.match(_LOG_LINE, line)) for line in re.sub(_COLOUR, "", log).splitlines()]
    found = [("FEW".index(match[1]), line[match.end() :]) for line, match in matches if match is not None]
    return [line for _, line in sorted(found, key=lambda pair: pair[0])]


# What a device says once it does not answer any more. Each stands for many texts of cuda_call.cc and of TensorRT.
_DEVICE_MARKS = (
    "TensorRT EP",
    "CUDA error",
    "cudaError",
    "CUBLAS_STATUS_",
    "CUDNN_STATUS_",
    "device was lost",
    "DEVICE_LOST",
)
_MEMORY_MARKS = ("out of memory", "ALLOC_FAILED", "cudaErrorMemoryAllocation")


def classify(kind: str, message: str, provider: str) -> Failure:
    """What a failed run says.

    A provider is called lost only on evidence; everything else is a failure of the run. So bad inputs never take a
    device out of service, and a defect of a model is not mended by moving it.

    Args:
        kind: Name of the exception's type in ONNX Runtime's binding ("InvalidArgument", "EPFail", "RuntimeException").
        message: Its whole text.
        provider: The provider of the session that ran.
    """
    if kind == "InvalidArgument":
        return Failure.INPUTS
    if provider == CPU_PROVIDER:
        return Failure.RUN
    cause = message.partition("Status Message:")[2] or message
    if kind == "DeviceReset":
        return Failure.DEVICE
    library = re.search(_LIBRARY_FAILURE, " ".join(cause.split()))
    if any(mark in cause for mark in _MEMORY_MARKS) or (library and library[1] == "CUDA" and library[2] == "2"):
        return Failure.MEMORY
    if library is not None or kind in ("EPFail", "EngineError"):
        return Failure.DEVICE
    if re.search(_ALLOCATION, cause):
        return Failure.MEMORY
    # Names of nodes come from the model and may hold any word, so only what follows them is searched.
    return Failure.DEVICE if any(mark in cause for mark in _DEVICE_MARKS) else Failure.RUN
