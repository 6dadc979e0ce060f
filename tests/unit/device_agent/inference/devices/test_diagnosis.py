"""Real messages of ONNX Runtime, CUDA and TensorRT, and what the agent makes of them."""

# ruff: noqa: E501 - messages stand here as they were written

from __future__ import annotations

import pytest

from device_agent.inference.devices.diagnosis import (
    MAX_REASON,
    NO_HARDWARE,
    Failure,
    Trial,
    classify,
    diagnose,
    essence,
    needs_of,
    package_of,
)

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"

# onnxruntime-gpu 1.31.1 without CUDA.
NO_CUBLAS_LOG = """\
\x1b[1;31m2026-11-30 11:04:17.630382474 [E:onnxruntime:Default, provider_bridge_ort.cc:2458 operator()] \
/onnxruntime_src/onnxruntime/core/session/provider_bridge_ort.cc:2043 onnxruntime::Provider& \
onnxruntime::ProviderLibrary::Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library \
/venv/onnxruntime/capi/libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: cannot open shared object \
file: No such file or directory
\x1b[m
\x1b[0;93m2026-11-30 11:04:17.630431934 [W:onnxruntime:Default, onnxruntime_pybind_state.cc:1295 \
CreateExecutionProviderFactoryInstance] Failed to create CUDAExecutionProvider. Require cuDNN 9.* and CUDA 13.*. \
Please install all dependencies as mentioned in the GPU requirements page \
(https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html#requirements), make sure they're in the \
PATH, and that your GPU is supported.\x1b[m
"""
# The same with a libcuda.so.1 that is not the driver's.
NO_SYMBOL_LOG = NO_CUBLAS_LOG.replace(
    "libcublasLt.so.13: cannot open shared object file: No such file or directory",
    "/venv/onnxruntime/capi/libonnxruntime_providers_cuda.so: undefined symbol: cuTensorMapEncodeTiled",
)
# The same with CUDA's libraries and no driver behind libcuda.so.1.
CUDA_CALL = (
    "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:154 std::conditional_t<THRW, void, "
    "onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, const char*, const char*, SUCCTYPE, const char*, const "
    "char*, int) [with ERRTYPE = cudaError; bool THRW = true; SUCCTYPE = cudaError; std::conditional_t<THRW, void, "
    "common::Status> = void] "
)
OLD_DRIVER = (
    f"RuntimeError: {CUDA_CALL * 2}CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version ; "
    "GPU=-1 ; hostname=vm ; file=/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_execution_provider.cc ; "
    "line=355 ; expr=cudaSetDevice(info_.device_id); "
)
NO_DEVICE = OLD_DRIVER.replace(
    "35: CUDA driver version is insufficient for CUDA runtime version", "100: no CUDA-capable device is detected"
)
TENSORRT_ERROR = (
    "RuntimeError: /onnxruntime_src/onnxruntime/python/onnxruntime_pybind_state.cc:729 void "
    "onnxruntime::python::RegisterTensorRTPluginsAsCustomOps(PySessionOptions&, const onnxruntime::ProviderOptions&) "
    "Please install TensorRT libraries as mentioned in the GPU requirements page, make sure they're in the PATH or "
    "LD_LIBRARY_PATH, and that your GPU is supported.\n"
)

# Of runs: onnxruntime#22702, Deep-Live-Cam#627 and #584, onnxruntime#26170 and #2815.
NODE = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Gemm node. Name:'fc1' Status Message: "
ARENA = (
    f"{NODE}/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* "
    "onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*, bool, "
    "onnxruntime::WaitNotificationFn) Failed to allocate memory for requested buffer of size 8388608000"
)
OUT_OF_MEMORY = f"{NODE}{CUDA_CALL}CUDA failure 2: out of memory ; GPU=0 ; hostname=x ; file=cuda_allocator.cc ; line=47 ; expr=cudaMalloc((void**)&p, size);"
CUBLAS_ALLOC = f"{NODE}{CUDA_CALL}CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; hostname=x ; expr=cublasCreate(&cublas_handle_);"
CUDNN = f"{NODE}{CUDA_CALL}CUDNN failure 4: CUDNN_STATUS_INTERNAL_ERROR ; GPU=0 ; hostname=x ; expr=cudnnCreate(&cudnn_handle_);"
ILLEGAL = f"{NODE}{CUDA_CALL}CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=x ; expr=cudaStreamSynchronize(stream);"
ENQUEUE = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running TRTKernel_graph_main_graph_1_0 node. "
    "Name:'TensorrtExecutionProvider_TRTKernel_graph_main_graph_1_0_0' Status Message: TensorRT EP execution context "
    "enqueue failed."
)
EP_FAIL = "[ONNXRuntimeError] : 11 : EP_FAIL : Non-zero status code returned while running TRTKernel_0 node. Name:'t' Status Message: engine"
OUT_OF_BOUNDS = (
    "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running Gather node. "
    "Name:'CUDA failure 2: out of memory' Status Message: indices element out of data bounds, idx=999 must be within "
    "the inclusive range [-30522,30521]"
)
BROADCAST = (
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Add node. "
    "Name:'/TensorRT EP/CUDA failure 700: x' Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/math/"
    "element_wise_ops.h:540 void onnxruntime::BroadcastIterator::Init(ptrdiff_t, ptrdiff_t) axis == 1 || axis == largest "
    "was false. Attempting to broadcast an axis by a dimension other than 1. 16 by 32"
)


def trial(name: str = CUDA, **changes: object) -> Trial:
    basic = {"runtime": "1.31.1", "package": "onnxruntime-gpu", "cuda": "13.0", "hardware": True, "loaded": (CPU,)}
    return Trial(name=name, **{**basic, **changes})  # type: ignore[arg-type]


def test_a_provider_that_loaded_is_usable() -> None:
    status = diagnose(trial(loaded=(CUDA, CPU), seconds=1.5))
    assert status.usable
    assert (status.reason, status.hint, status.seconds) == ("", "", 1.5)


@pytest.mark.parametrize(
    ("name", "package"),
    [(CUDA, "onnxruntime-gpu"), (TENSORRT, "onnxruntime-gpu"), ("OpenVINOExecutionProvider", "onnxruntime-openvino")],
)
def test_not_in_this_build_names_the_package_to_install(name: str, package: str) -> None:
    status = diagnose(trial(name, built_in=False, package="onnxruntime"))
    assert not status.usable
    assert "onnxruntime 1.31.1 was built without it" in status.reason
    assert f"install {package} in place of onnxruntime" in status.hint


def test_all_missing_libraries_are_named_with_the_packages_that_bring_them() -> None:
    missing = ("libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", "libcuda.so.1")
    status = diagnose(trial(missing=missing, log=NO_CUBLAS_LOG))
    assert status.reason == f"the shared libraries {', '.join(missing)} cannot be found"
    assert status.hint.startswith("pip install 'nvidia-cublas==13.*' 'nvidia-curand==10.*'")
    assert "libcuda.so.1 is the driver's" in status.hint
    assert status.needs == "cuDNN 9 and CUDA 13"
    assert status.missing == missing


def test_without_the_linkers_list_the_message_names_the_first_missing_library() -> None:
    status = diagnose(trial(log=NO_CUBLAS_LOG))
    assert status.reason == "the shared library libcublasLt.so.13 cannot be found"


def test_without_any_gpu_the_first_advice_is_not_to_install_gigabytes() -> None:
    status = diagnose(trial(missing=("libcublas.so.13",), hardware=False))
    assert status.hint.startswith(NO_HARDWARE)
    assert NO_HARDWARE not in diagnose(trial(missing=("libcublas.so.13",), device_nodes=True, hardware=False)).hint


def test_tensorrt_that_is_not_installed() -> None:
    status = diagnose(trial(TENSORRT, missing=("libnvinfer.so.10", "libnvonnxparser.so.10"), error=TENSORRT_ERROR))
    assert status.reason == "the shared libraries libnvinfer.so.10, libnvonnxparser.so.10 cannot be found"
    assert status.hint.startswith("pip install 'tensorrt-cu13-libs==10.*' (")


def test_tensorrt_that_does_not_load_for_another_reason_says_what_the_runtime_says() -> None:
    status = diagnose(trial(TENSORRT, error=TENSORRT_ERROR))
    assert status.reason.startswith("RuntimeError: Please install TensorRT libraries")


def test_a_driver_that_is_too_old() -> None:
    status = diagnose(trial(error=OLD_DRIVER, driver="525.60.13"))
    assert "the NVIDIA driver is too old for this build" in status.reason
    assert "driver 525.60.13" in status.reason
    assert (
        "CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version (in cudaSetDevice)"
        in status.reason
    )
    assert "driver for CUDA 13.0" in status.hint


def test_a_container_without_the_gpu() -> None:
    status = diagnose(trial(error=NO_DEVICE, driver="580.65"))
    assert status.reason.startswith("no GPU is visible to this process (driver 580.65)")
    assert "there is no /dev/nvidia*" in status.hint
    assert "--gpus all" in status.hint


def test_a_stub_of_the_driver_is_told_by_the_symbol_that_it_lacks() -> None:
    status = diagnose(trial(log=NO_SYMBOL_LOG))
    assert "libcuda.so.1 lacks cuTensorMapEncodeTiled" in status.reason


def test_another_wrong_library_is_told_as_the_linker_tells_it() -> None:
    log = NO_SYMBOL_LOG.replace("cuTensorMapEncodeTiled", "cudnnCreate")
    status = diagnose(trial(log=log))
    assert status.reason.endswith("undefined symbol: cudnnCreate")
    assert status.hint == "check that what is installed is cuDNN 9 and CUDA 13"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exit_code": -11}, "ended the process by SIGSEGV"),
        ({"exit_code": -200}, "ended the process by signal 200"),
        ({"exit_code": None, "seconds": 120.0}, "did not answer within 120 s"),
        ({"library_present": False}, "libonnxruntime_providers_cuda.so is not in ONNX Runtime's folder"),
        ({"exit_code": 1, "error": "Traceback"}, "Traceback"),
        ({"error": "it computes a wrong product: [[0.0]]", "loaded": (CUDA, CPU)}, "wrong product"),
        ({}, "gave no reason"),
        (
            {
                "log": "2026-11-30 11:04:17.6 [W:onnxruntime:Default, x.cc:1 F] mild\n2026-11-30 11:04:17.6 [E:onnxruntime:, y.cc:2 G] grave\n"
            },
            "grave",
        ),
    ],
)
def test_other_outcomes(changes: dict[str, object], reason: str) -> None:
    status = diagnose(trial(**changes))
    assert not status.usable
    assert reason in status.reason


@pytest.mark.parametrize("code", [2, 34, 46, 101, 209, 803, 804, 999])
def test_every_cuda_failure_keeps_its_number_and_text(code: int) -> None:
    status = diagnose(trial(error=OLD_DRIVER.replace("failure 35", f"failure {code}")))
    assert f"CUDA failure {code}: CUDA driver version is insufficient" in status.reason
    assert status.hint


def test_on_a_jetson_libraries_come_with_jetpack() -> None:
    status = diagnose(trial(missing=("libcudnn.so.9", "libcuda.so.1"), jetson=True))
    assert status.hint.startswith("install JetPack's CUDA")
    assert "pip install" not in status.hint
    assert "update JetPack" in status.hint


def test_openvino_without_its_libraries() -> None:
    status = diagnose(trial("OpenVINOExecutionProvider", missing=("libopenvino.so.2541",), hardware=False))
    assert status.hint == "install onnxruntime-openvino again: it brings OpenVINO's libraries"


@pytest.mark.parametrize(
    ("library", "cuda", "package"),
    [
        ("libcublasLt.so.13", "13.0", "nvidia-cublas==13.*"),
        ("libcublasLt.so.12", "12.8", "nvidia-cublas-cu12"),
        ("libcudart.so.13", "13.0", "nvidia-cuda-runtime==13.*"),
        ("libcufft.so.11", "12.8", "nvidia-cufft-cu12"),
        ("libcudnn.so.9", "12.8", "nvidia-cudnn-cu12==9.*"),
        ("libcudnn_adv.so.9", "13.0", "nvidia-cudnn-cu13==9.*"),
        ("libnvinfer.so.10", "13.0", "tensorrt-cu13-libs==10.*"),
        ("libcuda.so.1", "13.0", None),
        ("libstdc++.so.6", "13.0", None),
        ("libcublas.so.13", "", None),
    ],
)
def test_the_package_that_brings_a_library(library: str, cuda: str, package: str | None) -> None:
    assert package_of(library, cuda) == package


def test_what_a_build_needs_is_said_only_where_it_was_built_for_it() -> None:
    assert needs_of(trial(log="")) == "CUDA 13.0"
    assert needs_of(trial("OpenVINOExecutionProvider")) == ""
    assert needs_of(trial(cuda="")) == ""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (OUT_OF_MEMORY, "CUDA failure 2: out of memory (in cudaMalloc)"),
        (ILLEGAL, "CUDA failure 700: an illegal memory access was encountered (in cudaStreamSynchronize)"),
        (NO_CUBLAS_LOG, "libcublasLt.so.13: cannot open shared object file: No such file or directory"),
        (
            ARENA,
            "Non-zero status code returned while running Gemm node. Name:'fc1' Status Message: Failed to allocate memory for requested buffer of size 8388608000",
        ),
        ("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : bad\n  thing", "bad thing"),
        ("", ""),
    ],
)
def test_the_essence_of_a_message(message: str, expected: str) -> None:
    assert essence(message) == expected


def test_no_message_is_endless() -> None:
    assert len(essence("x" * 100_000)) == MAX_REASON
    assert len(diagnose(trial(error="y" * 100_000)).reason) == MAX_REASON


@pytest.mark.parametrize(
    ("kind", "message", "failure"),
    [
        ("InvalidArgument", OUT_OF_BOUNDS, Failure.INPUTS),
        ("RuntimeException", BROADCAST, Failure.RUN),
        ("RuntimeException", ARENA, Failure.MEMORY),
        ("RuntimeException", OUT_OF_MEMORY, Failure.MEMORY),
        ("Fail", OUT_OF_MEMORY.replace(NODE, "[ONNXRuntimeError] : 1 : FAIL : "), Failure.MEMORY),
        ("RuntimeException", CUBLAS_ALLOC, Failure.MEMORY),
        ("RuntimeException", CUDNN, Failure.DEVICE),
        ("RuntimeException", ILLEGAL, Failure.DEVICE),
        ("Fail", ENQUEUE, Failure.DEVICE),
        ("EPFail", EP_FAIL, Failure.DEVICE),
        ("DeviceReset", "the device was reset", Failure.DEVICE),
        ("Fail", "something else", Failure.RUN),
        ("ValueError", "Required inputs (['x']) are missing", Failure.RUN),
    ],
)
def test_what_a_failed_run_says_on_a_gpu(kind: str, message: str, failure: Failure) -> None:
    assert classify(kind, message, CUDA) is failure


@pytest.mark.parametrize("message", [ARENA, OUT_OF_MEMORY, ILLEGAL, ENQUEUE, EP_FAIL])
def test_the_cpu_is_never_lost(message: str) -> None:
    assert classify("RuntimeException", message, CPU) is Failure.RUN
    assert classify("EPFail", message, CPU) is Failure.RUN
