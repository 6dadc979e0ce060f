"""Export by torch's own exporter, for families that the ORT GenAI builder does not know: GPT-2.

The model is run with its attention replaced by the operator that keeps the caches, so that the graph follows the
contract from the start. Everything else is traced from transformers' own code.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch
from torch.export import Dim

from edgeonnx.errors import ExportError, first_line
from edgeonnx.export.decoder.contract import conform
from edgeonnx.export.libraries import quiet
from edgeonnx.spec.generation import INPUT_IDS, LOGITS, MASK, PARTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.spec.generation import CacheShape

OPSET = 22
"""As the ORT GenAI builder writes it."""
EXAMPLE = (2, 3, 5)
"""Rows, tokens and places of the traced run: three sizes, so that none is taken for another."""

_DTYPES = {ir.DataType.FLOAT: torch.float32, ir.DataType.FLOAT16: torch.float16}


def tracer_version() -> str:
    """Name and version of the exporter, for the evidence."""
    return f"torch {torch.__version__.partition('+')[0]}"


class Projection(torch.nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """transformers' Conv1D as one MatMul on (batch, sequence, width), which quantizers know."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.weight, self.bias = source.weight, source.bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Floats (batch, sequence, inputs) to (batch, sequence, outputs)."""
        return torch.matmul(hidden, self.weight) + self.bias


class CachedAttention(torch.nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """GPT-2's attention by GroupQueryAttention, with queries, keys and values from one MatMul.

    Args:
        source: The attention that it takes the place of.
        run: The run that is traced.
    """

    def __init__(self, source: Any, run: _Run) -> None:
        super().__init__()
        self.c_attn, self.c_proj = Projection(source.c_attn), Projection(source.c_proj)
        self.heads, self.scaling, self.layer = int(source.num_heads), float(source.scaling), int(source.layer_idx)
        self._run = run

    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        """Floats (batch, sequence, width) to the same shape; the caches go through the run."""
        run = self._run
        key, value = run.past[2 * self.layer : 2 * self.layer + 2]
        attended, *caches = torch.onnx.ops.symbolic_multi_out(
            "com.microsoft::GroupQueryAttention",
            (self.c_attn(hidden), None, None, key, value, run.last_places, run.total),
            {"num_heads": self.heads, "kv_num_heads": self.heads, "scale": self.scaling, "do_rotary": 0},
            dtypes=(hidden.dtype, key.dtype, value.dtype),
            shapes=(hidden.shape, key.shape, value.shape),
            version=1,
        )
        run.present += caches
        return self.c_proj(attended), None


class _Run:
    """What the attentions of one traced run share.

    Attributes:
        past: Key and value caches, layer by layer.
        present: The same after the run.
        last_places: int32 (batch,): place of each row's last token.
        total: int32 scalar: tokens of the longest row after the run.
    """

    def __init__(self) -> None:
        self.past: list[torch.Tensor] = []
        self.present: list[torch.Tensor] = []
        self.last_places = torch.zeros(0)
        self.total = torch.zeros(0)


class Traceable(torch.nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """GPT-2 with the inputs and outputs of the contract.

    Args:
        source: `GPT2LMHeadModel`; it is not changed.
        dtype: What it computes in.
    """

    def __init__(self, source: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self._run = _Run()
        # The same parameters: nothing is copied where the type stays.
        memo = {id(parameter): parameter for parameter in source.parameters()} if dtype is torch.float32 else {}
        model = copy.deepcopy(source, memo).to(dtype)
        for block in model.transformer.h:
            block.attn = CachedAttention(block.attn, self._run)
            block.mlp.c_fc, block.mlp.c_proj = Projection(block.mlp.c_fc), Projection(block.mlp.c_proj)
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Logits at every position, then the caches after the run."""
        run = self._run
        lengths = attention_mask.sum(dim=1, keepdim=True)
        tokens = input_ids.shape[1]
        # In a prompt no row has more ones than tokens, so it starts at 0, right padding or not.
        start = (lengths - tokens).clamp(min=0)
        positions = start + torch.arange(tokens, device=input_ids.device)[None, :]
        run.past, run.present = past, []
        run.last_places = (lengths[:, 0] - 1).to(torch.int32)
        total = torch.onnx.ops.symbolic(
            "Shape", (attention_mask,), {"start": 1, "end": 2}, dtype=torch.int64, shape=(1,), version=OPSET
        )
        run.total = total.to(torch.int32).reshape(())
        parts = self.model.transformer
        hidden = parts.wte(input_ids) + parts.wpe(positions)
        for block in parts.h:
            hidden = block(hidden)
        return (self.model.lm_head(parts.ln_f(hidden)), *run.present)


def trace(source: Any, cache: CacheShape, dtype: ir.DataType, vocabulary: int) -> StoredGraph:
    """Export a model in memory.

    Args:
        source: The transformers model, in float32.
        cache: Its caches.
        dtype: FLOAT, or FLOAT16 for CUDA.
        vocabulary: Number of logits.

    Raises:
        ExportError: The exporter failed, or made a graph that is not of the contract.
    """
    module = Traceable(source, _DTYPES[dtype]).eval()
    example = _example(cache, _DTYPES[dtype])
    rows, places = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, {0: Dim.DYNAMIC, 2: Dim.DYNAMIC}
    shapes = {INPUT_IDS: rows, MASK: rows, "past": [places] * len(cache.past_names)}
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                module,
                (),
                kwargs=example,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=shapes,
                input_names=[INPUT_IDS, MASK, *cache.past_names],
                output_names=[LOGITS, *cache.present_names],
                verbose=False,
            )
    except Exception as error:
        raise ExportError(
            "torch could not export the model",
            where=str(source.config.model_type),
            found=f"{type(error).__name__}: {first_line(error)}",
            hint="report it with the model's config.json; the exporter is pinned in constraints.txt",
        ) from error
    if program is None:
        raise ExportError("torch gave no program", where=str(source.config.model_type))
    model: ir.Model = program.model
    settle_head(model.graph, tied=bool(source.config.tie_word_embeddings))
    return conform(model, cache, dtype, vocabulary)


def _example(cache: CacheShape, dtype: torch.dtype) -> dict[str, Any]:
    """A run with rows of different lengths: with a mask of ones, its influence could be traced away."""
    rows, tokens, places = EXAMPLE
    size = (rows, cache.heads, places, cache.head_size)
    return {
        INPUT_IDS: torch.ones(rows, tokens, dtype=torch.int64),
        MASK: torch.ones(rows, places + tokens, dtype=torch.int64).tril(places + 1),
        "past": [torch.zeros(size, dtype=dtype) for _ in range(cache.layers * len(PARTS))],
    }


def settle_head(graph: ir.Graph, *, tied: bool) -> None:
    """Give the LM head its weight as (width, vocabulary), and let the embedding read the same tensor where it is tied.

    It is the form that the ORT GenAI builder writes, so what works on its graphs works on these.

    Args:
        graph: As torch exported it; it is changed.
        tied: Whether the source's head and embedding are one tensor.

    Raises:
        ExportError: The exporter wrote another embedding or another head than a Gather and a MatMul.
    """
    gathers = [node for node in graph if node.op_type == "Gather" and _name(node, 1) == INPUT_IDS]
    head = graph.outputs[0].producer()
    stored = None if head is None or head.op_type != "MatMul" else _head_weight(head.inputs[1])
    if len(gathers) != 1 or head is None or stored is None:
        raise ExportError(
            "the exporter wrote the embedding or the LM head in another form",
            where="the exported decoder",
            expected="one Gather by input_ids, and for the logits a MatMul with a constant",
            found=f"{len(gathers)} such Gathers, and {head.op_type if head is not None else 'nothing'} for the logits",
        )
    weight = _initializer(graph, "lm_head.MatMul.weight", stored)
    head.replace_input_with(1, weight)
    if tied:
        turned = ir.node("Transpose", [weight], attributes={"perm": [1, 0]}, name="embedding_transpose")
        turned.outputs[0].name, turned.outputs[0].type = "embedding_table", weight.type
        graph.insert_before(gathers[0], turned)
        gathers[0].replace_input_with(0, turned.outputs[0])
    _drop_unused(graph)


def _name(node: ir.Node, place: int) -> str | None:
    value = node.inputs[place]
    return None if value is None else value.name


def _head_weight(value: ir.Value | None) -> NDArray[np.generic] | None:
    """The (width, vocabulary) array that a MatMul reads; torch turns a small one at once, a large one in the graph."""
    node = None if value is None else value.producer()
    if node is None:
        constant = None if value is None else value.const_value
        return None if constant is None else constant.numpy()
    source = node.inputs[0] if node.op_type == "Transpose" else None
    if source is None or source.const_value is None:
        return None
    return np.ascontiguousarray(source.const_value.numpy().T)


def _initializer(graph: ir.Graph, name: str, data: NDArray[np.generic]) -> ir.Value:
    tensor = ir.tensor(data, name=name)
    value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(data.shape), type=ir.TensorType(tensor.dtype))
    graph.register_initializer(value)
    return value


def _drop_unused(graph: ir.Graph) -> None:
    """Remove the nodes and tensors that nothing reads any more."""
    for node in reversed(tuple(graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)
    for name, value in tuple(graph.initializers.items()):
        if not value.uses():
            del graph.initializers[name]
