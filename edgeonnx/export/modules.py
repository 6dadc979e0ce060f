"""The torch modules that we put around an encoder, so that pooling, normalization and activations are in the graph.

Each follows the library that the source model was made for; the tests hold them against that library.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeonnx.spec.manifest import Task

if TYPE_CHECKING:
    from edgeonnx.export.embedding_head import DenseLayer, EmbeddingHead
    from edgeonnx.export.tasks import TaskPlan


def pool(hidden: Tensor, mask: Tensor, mode: str) -> Tensor:
    """Pool token vectors into one vector per row.

    Args:
        hidden: float (rows, tokens, dim).
        mask: int64 (rows, tokens), 1 for tokens, 0 for padding on the right.
        mode: A pooling mode of sentence-transformers (`sentence_transformers.models.Pooling`).

    Returns:
        float (rows, dim).
    """
    if mode == "cls":
        return hidden[:, 0]
    if mode == "lasttoken":
        last = (mask.sum(dim=1) - 1).clamp(min=0)
        places = last[:, None, None].expand(-1, 1, hidden.shape[-1])
        return hidden.gather(1, places).squeeze(1)
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    if mode == "max":
        return hidden.masked_fill(weight == 0, float("-inf")).amax(dim=1)
    if mode == "weightedmean":
        places = torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)
        weight = weight * places[None, :, None]
    total = (hidden * weight).sum(dim=1)
    count = weight.sum(dim=1).clamp(min=1e-9)
    return total / (count.sqrt() if mode == "mean_sqrt_len_tokens" else count)


class DenseModule(nn.Module):
    """A linear layer with its activation, as sentence-transformers' `Dense`; weights are loaded by the caller."""

    def __init__(self, layer: DenseLayer) -> None:
        super().__init__()
        self.linear = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias)
        self.activation = getattr(nn, layer.activation)()

    def forward(self, vector: Tensor) -> Tensor:
        """Float (rows, in_features) to float (rows, out_features)."""
        result: Tensor = self.activation(self.linear(vector))
        return result


class NormalizeModule(nn.Module):
    """L2 normalization of the last axis: x / max(||x||, 1e-12), the formula of torch.nn.functional.normalize."""

    def forward(self, vector: Tensor) -> Tensor:
        """Float (rows, dim) to the same shape."""
        return functional.normalize(vector, p=2.0, dim=-1)


class TextEncoder(nn.Module):
    """An encoder with what its task needs after it. Outputs are a tuple in the order of `output_names`.

    Args:
        model: The transformers model.
        plan: The task.
        layers: What follows the pooling, for embeddings.
    """

    def __init__(self, model: nn.Module, plan: TaskPlan, layers: list[nn.Module]) -> None:
        super().__init__()
        self.model = model
        self.task = plan.task
        self.pooling = plan.embedding.pooling if plan.embedding is not None else ()
        self.keep = plan.embedding.keep if plan.embedding is not None else None
        self.layers = nn.ModuleList(layers)
        self.activation = plan.activation

    @property
    def vocabulary_size(self) -> int:
        """Number of rows of the embedding table."""
        return int(self.model.get_input_embeddings().num_embeddings)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs."""
        if self.task is Task.EMBEDDING:
            return ("sentence_embedding",)
        if self.task is Task.FEATURE_EXTRACTION:
            return ("last_hidden_state",)
        return ("logits", "scores")

    @property
    def takes_token_types(self) -> bool:
        """Whether the model has token types at all; some tokenizers give them to models that do not."""
        return "token_type_ids" in inspect.signature(self.model.forward).parameters

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Int64 (rows, tokens) inputs to the task's outputs."""
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        first: Tensor = self.model(**inputs)[0]
        if self.task is Task.FEATURE_EXTRACTION:
            return (first,)
        if self.task is Task.EMBEDDING:
            vector = torch.cat([pool(first, attention_mask, mode) for mode in self.pooling], dim=-1)
            for layer in self.layers:
                vector = layer(vector)
            return (vector if self.keep is None else vector[:, : self.keep],)
        return (first, self._scores(first))

    def _scores(self, logits: Tensor) -> Tensor:
        if self.activation == "softmax":
            return logits.softmax(dim=-1)
        if self.activation == "sigmoid":
            return logits.sigmoid()
        return logits * 1.0  # a tensor of its own: two outputs of a graph must not be one value


def build_layers(head: EmbeddingHead | None) -> list[nn.Module]:
    """The modules after the pooling, not yet loaded."""
    if head is None:
        return []
    return [NormalizeModule() if layer == "normalize" else DenseModule(layer) for layer in head.layers]  # type: ignore[arg-type]
