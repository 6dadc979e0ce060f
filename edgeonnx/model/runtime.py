"""ONNX Runtime on the build host: open a graph whose tensors lie in a folder, and run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeonnx.errors import RuntimeUnavailableError, ValidationError, first_line
from edgeonnx.spec.manifest import EXTERNAL_FOLDER_OPTION

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import onnxruntime as ort

    from edgeonnx.model.ports import FloatTensors, IntTensors

FATAL = 4
"""ONNX Runtime's log level at which it prints nothing for what it also raises."""


def open_session(
    model: Path,
    tensors: Path | None,
    *,
    threads: int | None = None,
    optimized: Path | None = None,
    spinning: bool = False,
) -> ort.InferenceSession:
    """A session on the CPU, the provider that every machine has.

    Args:
        model: The graph.
        tensors: The folder with its external tensors, or None if they lie beside the graph or in it.
        threads: Threads of one run; None lets ONNX Runtime take every core.
        optimized: Where to write the graph as ONNX Runtime runs it, or None.
        spinning: Whether threads wait for their next piece of work at full speed.

    Raises:
        ValidationError: ONNX Runtime does not load it.
        RuntimeUnavailableError: onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeUnavailableError(
            "onnxruntime cannot be imported", found=str(error), hint="pip install 'edgeonnx[host]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    # A thread that spins while it waits takes the time of the next graph that is measured.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    if tensors is not None:
        options.add_session_config_entry(EXTERNAL_FOLDER_OPTION, str(tensors))
    try:
        return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ValidationError(
            "ONNX Runtime does not load the graph", where=str(model), found=first_line(error)
        ) from error


def open_graph(
    model: Path, tensors: Path | None, *, threads: int | None = None, optimized: Path | None = None
) -> Callable[[IntTensors], FloatTensors]:
    """Open a graph as a function; the arguments are those of `open_session`.

    Returns:
        A function that runs the graph: inputs by name to outputs by name. It raises `ValidationError` if the graph
        fails on them.

    Raises:
        ValidationError: ONNX Runtime does not load it.
        RuntimeUnavailableError: onnxruntime is not installed.
    """
    session = open_session(model, tensors, threads=threads, optimized=optimized)
    names = [output.name for output in session.get_outputs()]

    def run(inputs: IntTensors) -> FloatTensors:
        try:
            return dict(zip(names, session.run(names, inputs), strict=True))
        except Exception as error:
            raise ValidationError(
                "ONNX Runtime cannot run the graph", where=str(model), found=first_line(error)
            ) from error

    return run
