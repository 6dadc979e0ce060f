"""One ONNX Runtime session, with its settings made explicit and its errors made ours.

Nothing outside `device_agent.inference` imports onnxruntime, so that what a session may do is decided here alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import onnxruntime as ort

from edgeonnx.errors import InferenceError, InvalidRequestError, RuntimeUnavailableError
from edgeonnx.spec.manifest import EXTERNAL_FOLDER_OPTION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    Tensors = Mapping[str, NDArray[np.generic]]

CPU_PROVIDER = "CPUExecutionProvider"

# Failures reach us as exceptions, with the node and the cause; ONNX Runtime would also write each to stderr, so that
# a client that sends bad ids could fill the log. 4 lets fatal messages pass only.
_SILENT = 4
_ERRORS_ONLY = 3

# ONNX Runtime wraps the cause in a status line and, for kernels, in the node that failed.
_STATUS_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


class Session:
    """An opened graph.

    Args:
        model: Path of the graph.
        tensors: Folder that holds its external tensors, or None if all are inline.
        provider: Execution provider to ask for; nodes that it does not take run on the CPU.
        threads: Threads that one `run` uses.

    Raises:
        RuntimeUnavailableError: ONNX Runtime does not load the graph.
    """

    def __init__(self, model: Path, tensors: Path | None, *, provider: str, threads: int) -> None:
        ort.set_default_logger_severity(_ERRORS_ONLY)
        names = [provider] if provider == CPU_PROVIDER else [provider, CPU_PROVIDER]
        try:
            self._session = ort.InferenceSession(str(model), _options(tensors, threads), providers=names)
        except Exception as error:  # noqa: BLE001 - the binding raises a dozen types that share no base of its own
            raise RuntimeUnavailableError(
                "ONNX Runtime does not load the model",
                where=str(model),
                found=explain(error),
                hint=f"this device has onnxruntime {ort.__version__}; the bundle's evidence names the one it was "
                "built with",
            ) from None
        # Otherwise ONNX Runtime would, after a failed run, silently replace a provider by the next one.
        self._session.disable_fallback()
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = _SILENT
        self.inputs: tuple[str, ...] = tuple(node.name for node in self._session.get_inputs())
        self.outputs: tuple[str, ...] = tuple(node.name for node in self._session.get_outputs())
        self.providers: tuple[str, ...] = tuple(self._session.get_providers())
        """The providers that really loaded: the truth, whatever was asked for."""

    def run(self, inputs: Tensors, outputs: Sequence[str] | None = None) -> dict[str, NDArray[np.generic]]:
        """Run the graph; the GIL is released meanwhile, and calls from several threads are allowed.

        Args:
            inputs: Every input of the graph by name, with the element type and rank of its signature.
            outputs: The outputs to compute; None computes all.

        Returns:
            The outputs by name.

        Raises:
            InvalidRequestError: The inputs do not fit the graph (an id beyond the embedding table, for example).
            InferenceError: ONNX Runtime failed.
        """
        names = self.outputs if outputs is None else tuple(outputs)
        try:
            values = self._session.run(names, dict(inputs), self._run_options)
        except ort.capi.onnxruntime_pybind11_state.InvalidArgument as error:
            raise InvalidRequestError("the model does not take these inputs", found=explain(error)) from None
        except Exception as error:  # noqa: BLE001 - see above
            raise InferenceError("ONNX Runtime failed to run the model", found=explain(error)) from None
        return dict(zip(names, values, strict=True))


def _options(tensors: Path | None, threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _SILENT
    # A thread that spins while it waits takes a core from the event loop, and on a small box there are few.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if tensors is not None:
        options.add_session_config_entry(EXTERNAL_FOLDER_OPTION, str(tensors))
    return options


def explain(error: Exception) -> str:
    """The cause in an exception of ONNX Runtime, as one line of at most 400 characters."""
    text = _STATUS_PREFIX.sub("", str(error)).strip() or type(error).__name__
    return " ".join(text.split())[:400]
