"""One ONNX Runtime session, with its settings made explicit and its errors made ours.

Nothing outside `device_agent.inference` imports onnxruntime, so that what a session may do is decided here alone.

Graphs are optimized when a session is opened (level "all"), and the result is not stored: a stored graph of MiniLM
opens 6 ms sooner in int8 (19 of 25 ms) and 2 ms in fp32 (`bench/binding.py`), because what is slow was done on the
build host.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import onnxruntime as ort

from device_agent.inference.binding import Binding, bindable, host_memory
from device_agent.inference.devices.assignment import Assignment
from device_agent.inference.devices.providers import CPU_PROVIDER, CUDA_PROVIDER, TENSORRT_PROVIDER
from edgeonnx.errors import InferenceError, InvalidRequestError, ProviderLostError, RuntimeUnavailableError
from edgeonnx.spec.manifest import EXTERNAL_FOLDER_OPTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from device_agent.inference.devices.contract import Described

    Tensors = Mapping[str, NDArray[np.generic]]
    Plan = Sequence[tuple[str, Mapping[str, str]]]

logger = logging.getLogger("edgeonnx.agent")

__all__ = ["CPU_PROVIDER", "OPTIMIZATION", "Session", "explain"]

OPTIMIZATION = "all"
"""Level of the graph optimization at the opening of a session (`ORT_ENABLE_ALL`)."""

OLDEST = (1, 30)
"""The first release that opens a bundle, whose tensors lie in a folder of their own."""

# Failures reach us as exceptions, with the node and the cause; ONNX Runtime would also write each to stderr, so that
# a client that sends bad ids could fill the log. 4 lets fatal messages pass only.
_SILENT = 4
_ERRORS_ONLY = 3

_ON_GPU = (CUDA_PROVIDER, TENSORRT_PROVIDER)


class DeviceMemoryError(ProviderLostError):
    """The provider's device has no memory left. The device itself works, so that its session may be closed."""


class Session:
    """An opened graph.

    Args:
        model: Path of the graph.
        tensors: Folder that holds its external tensors, or None if all are inline.
        provider: Execution provider to ask for; nodes that it does not take run on the CPU.
        threads: Threads that one `run` uses.
        plan: Providers with their options, the one to ask for first and the CPU last; see `providers.plan_of`. None:
            `provider` and the CPU, without options.
        bind: Run through I/O binding; None: on a GPU only. On the CPU it costs more than it saves.
        spinning: Threads that wait for their next piece of work keep their core busy meanwhile.

    Raises:
        RuntimeUnavailableError: ONNX Runtime does not load the graph.
    """

    def __init__(
        self,
        model: Path,
        tensors: Path | None,
        *,
        provider: str,
        threads: int,
        plan: Plan | None = None,
        bind: bool | None = None,
        spinning: bool = False,
    ) -> None:
        ort.set_default_logger_severity(_ERRORS_ONLY)
        if plan is None:
            plan = [(name, {}) for name in dict.fromkeys((provider, CPU_PROVIDER))]
        _preload(name for name, _ in plan)
        try:
            # Without `enable_fallback=0` ONNX Runtime would, on a failure, silently go on without the provider: here,
            # and again in the middle of a run.
            self._session = ort.InferenceSession(
                str(model),
                _options(tensors, threads, spinning=spinning),
                providers=[(name, dict(options)) for name, options in plan],
                enable_fallback=0,
            )
        except Exception as error:  # noqa: BLE001 - the binding raises a dozen types that share no base of its own
            raise RuntimeUnavailableError(
                "ONNX Runtime does not load the model",
                where=str(model),
                found=explain(error),
                hint=_version_hint(ort.__version__),
            ) from None
        self._session.disable_fallback()
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = _SILENT
        self.described_inputs: tuple[Described, ...] = tuple(self._session.get_inputs())
        """The graph's inputs with their types and shapes, as ONNX Runtime describes them."""
        self.described_outputs: tuple[Described, ...] = tuple(self._session.get_outputs())
        self.inputs: tuple[str, ...] = tuple(node.name for node in self.described_inputs)
        self.outputs: tuple[str, ...] = tuple(node.name for node in self.described_outputs)
        self.providers: tuple[str, ...] = tuple(self._session.get_providers())
        """The providers that really loaded: the truth, whatever was asked for."""
        self.threads = threads
        self.bound = self.providers[0] in _ON_GPU if bind is None else bind
        """Whether runs go through I/O binding."""
        self.assignment: Assignment = _assignment(self._session)
        """Where the nodes run."""
        self._own = threading.local()

    def run(self, inputs: Tensors, outputs: Sequence[str] | None = None) -> dict[str, NDArray[np.generic]]:
        """Run the graph; the GIL is released meanwhile, and calls from several threads are allowed.

        Args:
            inputs: Every input of the graph by name, with the element type and rank of its signature.
            outputs: The outputs to compute; None computes all.

        Returns:
            The outputs by name. The caller owns them.

        Raises:
            InvalidRequestError: The inputs do not fit the graph (an id beyond the embedding table, for example).
            ProviderLostError: The execution provider failed: its device has no memory left, or does not answer.
            InferenceError: ONNX Runtime failed.
        """
        names = self.outputs if outputs is None else tuple(outputs)
        bound = self.bound and bindable(inputs)
        if bound and (found := self._run_bound(inputs, names)) is not None:
            return dict(zip(names, found, strict=True))
        try:
            values = self._session.run(names, dict(inputs), self._run_options)
        except Exception as error:  # noqa: BLE001 - see above
            raise failure_of(error, self.providers[0]) from None
        if bound:
            self.bound = False
            logger.warning("I/O binding does not fit this graph, which states wrong shapes; it runs without")
        return dict(zip(names, values, strict=True))

    def _run_bound(self, inputs: Tensors, names: Sequence[str]) -> list[NDArray[np.generic]] | None:
        """Run through I/O binding; None if that failed, for a reason that only a plain run can tell.

        ONNX Runtime's binding keeps the text of a failure and loses its kind, so that wrong inputs look like any
        other failure there.
        """
        try:
            return self._binding().run(inputs, names, self._run_options)
        except Exception as error:  # noqa: BLE001 - see above
            lost = failure_of(error, self.providers[0])
            if isinstance(lost, ProviderLostError):
                raise lost from None
            return None

    @property
    def raw(self) -> ort.InferenceSession:
        """ONNX Runtime's own session, for whoever binds inputs and outputs to memory that stays."""
        return self._session

    @property
    def cuda(self) -> str:
        """CUDA version that ONNX Runtime was built for; empty: none."""
        return str(getattr(ort, "cuda_version", "") or "")

    @property
    def gpu(self) -> int:
        """Number of the GPU that the first provider works on; 0 on the CPU."""
        options = self._session.get_provider_options().get(self.providers[0], {})
        return int(options.get("device_id", 0))

    def run_bound(self, binding: ort.IOBinding) -> None:
        """Run the graph on a binding of the caller's; the GIL is released meanwhile.

        Raises:
            ProviderLostError: The execution provider failed.
            InferenceError: ONNX Runtime failed.
        """
        try:
            self._session.run_with_iobinding(binding, self._run_options)
        except Exception as error:  # noqa: BLE001 - see above
            failure = failure_of(error, self.providers[0])
            # The caller made the inputs, not a client.
            raise (
                failure
                if isinstance(failure, InferenceError)
                else InferenceError("the model does not take these inputs", found=failure.found)
            ) from None

    def _binding(self) -> Binding:
        """The binding of the calling thread: a binding is a state, and threads must not share it."""
        binding: Binding | None = getattr(self._own, "binding", None)
        if binding is None:
            on_gpu = self.providers[0] in _ON_GPU
            binding = self._own.binding = Binding(self._session, host_memory(self.cuda if on_gpu else ""))
        return binding


def _preload(providers: Iterable[str]) -> None:
    """Load the libraries of a GPU's providers that Python packages bring."""
    if needed := [name for name in providers if name in _ON_GPU]:
        from device_agent.inference.devices.trial import preload

        for name in needed:
            preload(name)


def failure_of(error: Exception, provider: str) -> InvalidRequestError | InferenceError:
    """Our error for what ONNX Runtime raised in a run on a provider; see `diagnosis.classify`."""
    from device_agent.inference.devices.diagnosis import Failure, classify

    found = explain(error)
    failure = classify(type(error).__name__, str(error), provider)
    if failure is Failure.INPUTS:
        return InvalidRequestError("the model does not take these inputs", found=found)
    if failure is Failure.RUN:
        return InferenceError("ONNX Runtime failed to run the model", found=found)
    lost = DeviceMemoryError if failure is Failure.MEMORY else ProviderLostError
    return lost("the execution provider failed", where=provider, found=found)


def _assignment(session: ort.InferenceSession) -> Assignment:
    """Which node runs where; empty where this ONNX Runtime keeps no record (before 1.24)."""
    recorded = getattr(session, "get_provider_graph_assignment_info", None)
    if recorded is None:
        return Assignment()
    return Assignment.count((part.ep_name, node.op_type) for part in recorded() for node in part.get_nodes())


def _options(tensors: Path | None, threads: int, *, spinning: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _SILENT
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    # A thread that spins while it waits takes a core from the event loop, and on a small box there are few.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    if tensors is not None:
        options.add_session_config_entry(EXTERNAL_FOLDER_OPTION, str(tensors))
    return options


def _version_hint(version: str) -> str:
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if parts < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"install onnxruntime {oldest} or newer: {version} does not open the tensors of a bundle"
    return f"this device has onnxruntime {version}; the bundle's evidence names the one it was built with"


def explain(error: Exception) -> str:
    """The cause in an exception of ONNX Runtime, as one line of at most 400 characters."""
    from device_agent.inference.devices.diagnosis import essence  # only failures need it, and starts should be quick

    return essence(str(error)) or type(error).__name__


def runtime_build() -> dict[str, str]:
    """The installed ONNX Runtime: `version`, `package` (its distribution), `cuda` (version it was built for), `build`.

    What it does not say is empty.
    """
    return {
        "version": ort.__version__,
        "package": str(getattr(ort, "package_name", "") or ""),
        "cuda": str(getattr(ort, "cuda_version", "") or ""),
        "build": str(ort.get_build_info()),
    }
