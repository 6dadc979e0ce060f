"""The ORT GenAI model builder, in a process of its own.

It is a program, not a library: it puts modules of general names (`builders`, `quantization`) on the import path,
prints as it works, and keeps a second copy of the weights. All that ends with its process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from edgeonnx.errors import ExportError, RuntimeUnavailableError
from edgeonnx.export.decoder.contract import ATTENTION, conform
from edgeonnx.model.graph import MIN_EXTERNAL_BYTES

if TYPE_CHECKING:
    from edgeonnx.export.decoder.rotary import RotaryTables
    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.spec.generation import CacheShape

OPTIONS = ("fuse_qk_norm_gqa=false",)
"""Norms of queries and keys inside the attention run on CUDA only: such a graph could not be checked on this host."""
TABLE_INPUTS = (7, 8)
"""Places of the cosine and sine tables among the inputs of GroupQueryAttention."""

DISTRIBUTION = "onnxruntime-genai"
PROGRAM = "onnxruntime_genai.models.builder"
TIMEOUT_SECONDS = 3600.0
"""Far above what a model of three billion parameters takes; a builder that hangs must end some day."""
SHOWN_LINES = 12
"""Lines at the end of the builder's output that an error shows."""

_FORMS = {
    ir.DataType.FLOAT: ("fp32", "cpu"),
    ir.DataType.FLOAT16: ("fp16", "cuda"),
}


def builder_version() -> str:
    """Name and version of the builder, for the evidence.

    Raises:
        RuntimeUnavailableError: It is not installed.
    """
    if importlib.util.find_spec("onnxruntime_genai") is None:
        raise RuntimeUnavailableError(
            "the ORT GenAI model builder, which exports models of this family, is not installed",
            where=DISTRIBUTION,
            hint=f"install it: pip install {DISTRIBUTION}",
        )
    return f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}"


def build(folder: Path, tables: RotaryTables, cache: CacheShape, dtype: ir.DataType, vocabulary: int) -> StoredGraph:
    """Build the graph of a model.

    Args:
        folder: A directory of configuration, tokenizer and safetensors, as transformers writes it.
        tables: The source's own rotary tables. The builder works out its own from the configuration, and is wrong for
            some kinds of scaling (linear in Llama, YaRN everywhere).
        cache: The caches that its configuration states.
        dtype: FLOAT for the CPU, or FLOAT16 for CUDA.
        vocabulary: Number of logits.

    Raises:
        RuntimeUnavailableError: The builder is not installed.
        ExportError: It failed, took too long, or wrote a graph that is not of the contract.
    """
    builder_version()
    precision, provider = _FORMS[dtype]
    with tempfile.TemporaryDirectory(prefix="edgeonnx-build-") as scratch:
        target = Path(scratch, "graph")
        arguments = {"-i": folder, "-o": target, "-p": precision, "-e": provider, "-c": Path(scratch, "cache")}
        _run([str(part) for item in arguments.items() for part in item] + ["--extra_options", *OPTIONS])
        try:
            model = ir.load(target / "model.onnx")
        except (OSError, ValueError) as error:
            raise ExportError("the builder left no graph that can be read", where=PROGRAM, found=str(error)) from None
        _set_tables(model.graph, tables)
        _read_small(model.graph)
        return conform(model, cache, dtype, vocabulary)


def _set_tables(graph: ir.Graph, tables: RotaryTables) -> None:
    """Replace the rotary tables that the attentions read.

    Raises:
        ExportError: They read none, or tables of another width.
    """
    width = tables.cosine.shape[1]
    for node in graph:
        if node.op_type != ATTENTION:
            continue
        for place, table in zip(TABLE_INPUTS, (tables.cosine, tables.sine), strict=True):
            value = node.inputs[place] if len(node.inputs) > place else None
            before = None if value is None else value.const_value
            if value is None or before is None or before.shape[1] != width:
                raise ExportError(
                    "has other rotary tables than the source",
                    where=str(node.name),
                    expected=f"(places, {width})",
                    found="none" if before is None else str(before.shape),
                )
            data = table.astype(before.dtype.numpy())
            value.const_value, value.shape = ir.tensor(data, name=value.name), ir.Shape(data.shape)


def _read_small(graph: ir.Graph) -> None:
    """Take the tensors that will not be stored apart out of the builder's file, which is about to be gone."""
    for value in graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and tensor.nbytes < MIN_EXTERNAL_BYTES:
            value.const_value = ir.tensor(tensor.numpy().copy(), name=value.name)


def _run(arguments: list[str]) -> None:
    """Run the builder's program to its end; what it prints is shown only where it fails."""
    command = [sys.executable, "-P", "-m", PROGRAM, *arguments]
    try:
        done = subprocess.run(  # noqa: S603 - this Python, a known module, and no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_SECONDS,
            env=_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ExportError("took too long", where=PROGRAM, expected=f"at most {TIMEOUT_SECONDS:.0f} s") from None
    except OSError as error:
        raise ExportError("cannot be started", where=PROGRAM, found=str(error)) from None
    if done.returncode != 0:
        lines = [line.rstrip() for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
        raise ExportError(
            "the ORT GenAI model builder failed",
            where=PROGRAM,
            found=f"exit code {done.returncode}",
            details=tuple(lines[-SHOWN_LINES:]),
            hint="a negative exit code is a signal: -9 stands for too little memory" if done.returncode < 0 else None,
        )


def _environment() -> dict[str, str]:
    """The caller's environment, without a network: everything that the builder needs lies in its folder."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
