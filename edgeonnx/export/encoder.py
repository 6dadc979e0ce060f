"""Loading a text encoder and exporting it with everything that its task needs.

The loaded model is what later stages compare with: it serves them through arrays and texts, so they need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from torch.export import Dim

from edgeonnx.errors import CorruptSourceError, ExportError, first_line
from edgeonnx.export.graph import finish_graph
from edgeonnx.export.libraries import one_thread, quiet
from edgeonnx.export.modules import DenseModule, TextEncoder, build_layers
from edgeonnx.export.pretrained import check_finite, check_whole, read_config, read_model
from edgeonnx.export.source import SAFE_WEIGHTS, check_safetensors
from edgeonnx.export.tasks import TaskPlan, choose_max_length, position_limit
from edgeonnx.export.tokenizer import TokenizerFacts, check_vocabulary, load_tokenizer, tokenizer_document
from edgeonnx.spec.manifest import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edgeonnx.export.source import Source
    from edgeonnx.model.graph import StoredGraph

# The opset with the standard Attention and Gelu operators: the cleanest graph, and nothing outside the ONNX standard.
OPSET = 23
DYNAMIC_AXES = ("batch", "sequence")
# Weights of a pooler that hidden states do not go through; checkpoints often lack them. Classifiers do go through it.
UNUSED_WEIGHTS = ("pooler.",)
POOLER_FREE_TASKS = (Task.EMBEDDING, Task.FEATURE_EXTRACTION, Task.TOKEN_CLASSIFICATION)

_AUTO_CLASSES = {
    Task.EMBEDDING: "AutoModel",
    Task.FEATURE_EXTRACTION: "AutoModel",
    Task.TEXT_CLASSIFICATION: "AutoModelForSequenceClassification",
    Task.TEXT_RANKING: "AutoModelForSequenceClassification",
    Task.TOKEN_CLASSIFICATION: "AutoModelForTokenClassification",
}


class LoadedEncoder:
    """A source model in memory, with its tokenizer.

    Attributes:
        source: Where it came from.
        plan: Its task.
        tokenizer: Facts about its tokenizer.
        input_names: The inputs that the graph will have, in order.
    """

    def __init__(
        self, source: Source, plan: TaskPlan, module: TextEncoder, tokenizer: Any, facts: TokenizerFacts
    ) -> None:
        self.source = source
        self.plan = plan
        self.tokenizer = facts
        self._module = module
        self._tokenizer = tokenizer
        takes_types = "token_type_ids" in tokenizer.model_input_names and module.takes_token_types
        self.input_names = ("input_ids", "attention_mask", *(("token_type_ids",) if takes_types else ()))

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""
        return self._module.output_names

    @property
    def parameter_count(self) -> int:
        """Number of parameters of the model, shared ones counted once."""
        return sum(parameter.numel() for parameter in self._module.parameters())

    @property
    def vocabulary_size(self) -> int:
        """Number of rows of the embedding table: every token id must be below it."""
        return self._module.vocabulary_size

    def tokenize(self, texts: Sequence[str], pairs: Sequence[str] | None) -> list[dict[str, NDArray[np.int64]]]:
        """Each row as the source's own tokenizer gives it for that text alone: int64 (1, tokens) by input name."""
        rows = []
        for index, text in enumerate(texts):
            # Lists of one: transformers takes an empty second text for none where it is not in a list.
            encoded = self._tokenizer(
                [self.tokenizer.prefix + text],
                None if pairs is None else [pairs[index]],
                truncation="longest_first",
                max_length=self.tokenizer.max_length,
                return_token_type_ids="token_type_ids" in self.input_names,
            )
            rows.append({name: np.asarray(encoded[name], dtype=np.int64) for name in self.input_names})
        return rows

    def run(self, inputs: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float32]]:
        """The source model's outputs.

        Args:
            inputs: int64 (rows, tokens) by input name.

        Returns:
            float32 by output name.
        """
        tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
        with torch.inference_mode(), one_thread():
            outputs = self._module(**tensors)
        return {name: value.numpy() for name, value in zip(self.output_names, outputs, strict=True)}

    def export(self) -> StoredGraph:
        """Export the model to ONNX.

        Raises:
            ExportError: The exporter failed, or made a graph that is fixed to one batch size or length.
        """
        example = self._example()
        shapes = {name: {0: Dim.DYNAMIC, 1: Dim.DYNAMIC} for name in example}
        try:
            with quiet(), torch.no_grad():
                program = torch.onnx.export(
                    self._module,
                    (),
                    kwargs=example,
                    dynamo=True,
                    opset_version=OPSET,
                    dynamic_shapes=shapes,
                    input_names=list(example),
                    output_names=list(self.output_names),
                    verbose=False,
                )
        except Exception as error:
            raise ExportError(
                "torch could not export the model",
                where=f"{self.source.identity} ({self.source.model_type})",
                found=f"{type(error).__name__}: {first_line(error)}",
                hint="report it with the model's config.json; the exporter is pinned in constraints.txt",
            ) from error
        if program is None:
            raise ExportError("torch gave no program", where=self.source.identity)
        graph = finish_graph(program.model, axes=DYNAMIC_AXES)
        self._check_inputs(graph)
        return graph

    def _check_inputs(self, graph: StoredGraph) -> None:
        """The graph takes what the device will feed it: an input that is gone had no influence when it was traced."""
        names = tuple(spec.name for spec in graph.signature.inputs)
        if names != self.input_names:
            raise ExportError(
                "the exporter dropped or renamed an input",
                where=self.source.identity,
                expected=", ".join(self.input_names),
                found=", ".join(names),
            )

    def _example(self) -> dict[str, torch.Tensor]:
        """The batch that is traced: three rows of different lengths, so that the mask is not all ones.

        A mask of ones lets the exporter drop the mask or bake in a branch; parity then fails on padded batches.
        """
        texts = ("a short text", "a second text with a few more words in it", "one")
        pairs = texts[::-1] if self.plan.task.takes_pairs else None
        rows = self.tokenize(texts, pairs)
        width = max(row["input_ids"].shape[1] for row in rows)
        fill = {"input_ids": self.tokenizer.pad_id, "token_type_ids": self.tokenizer.pad_type_id}
        return {
            name: torch.tensor(
                [row[name][0].tolist() + [fill.get(name, 0)] * (width - row[name].shape[1]) for row in rows]
            )
            for name in self.input_names
        }


def load_encoder(source: Source, plan: TaskPlan, *, max_length: int | None) -> LoadedEncoder:
    """Load a source model in float32 on the CPU, and its tokenizer.

    Raises:
        CorruptSourceError: Weights are missing, have other shapes, or are not finite; the tokenizer cannot be read.
        UnsupportedModelError: The tokenizer has no `tokenizer.json` form, or pads on the left.
        UsageError: `max_length` is longer than the model allows.
    """
    with quiet():
        read_config(source, source.path)
        tokenizer = load_tokenizer(source)
        model = _load_model(source, plan.task)
        module = TextEncoder(model, plan, build_layers(plan.embedding)).eval()
    _load_dense(source, module, plan)
    check_finite(source, module)
    check_vocabulary(source, tokenizer, rows=module.vocabulary_size)
    head = plan.head
    facts = TokenizerFacts(
        document=tokenizer_document(tokenizer, lowercase=head is not None and head.lowercase),
        max_length=choose_max_length(
            requested=max_length,
            stated=head.max_length if head is not None else None,
            tokenizer=tokenizer.model_max_length,
            limit=position_limit(source.config),
        ),
        pad_id=tokenizer.pad_token_id,
        pad_type_id=tokenizer.pad_token_type_id,
        prefix=head.prefix if head is not None else "",
    )
    return LoadedEncoder(source, plan, module, tokenizer, facts)


def _load_model(source: Source, task: Task) -> Any:
    """The transformers model; weights that are missing are an error, not a warning."""
    model, info = read_model(source, getattr(transformers, _AUTO_CLASSES[task]), source.path)
    missing = sorted(str(key) for key in info["missing_keys"])
    if task in POOLER_FREE_TASKS:
        missing = [key for key in missing if not any(part in key for part in UNUSED_WEIGHTS)]
    mismatched = sorted(str(key) for key in info["mismatched_keys"])
    check_whole(source, missing + mismatched)
    return model.eval()


def _load_dense(source: Source, module: TextEncoder, plan: TaskPlan) -> None:
    """Load the dense layers of a sentence-transformers directory from their own safetensors files."""
    if plan.embedding is None:
        return
    width = int(module.model.config.hidden_size) * len(plan.embedding.pooling)
    for layer, description in zip(module.layers, plan.embedding.layers, strict=True):
        if not isinstance(layer, DenseModule) or isinstance(description, str):
            continue
        if description.in_features != width:
            raise CorruptSourceError(
                "a dense layer does not fit what comes before it",
                where=f"{source.path / description.folder / 'config.json'}: in_features",
                expected=str(width),
                found=str(description.in_features),
            )
        width = description.out_features
        file = source.path / description.folder / SAFE_WEIGHTS
        if not file.is_file():
            raise CorruptSourceError("is missing", where=str(file), expected="the weights of the dense layer")
        check_safetensors(file)
        try:
            layer.load_state_dict(load_file(str(file)))
        except RuntimeError as error:
            raise CorruptSourceError("does not fit the dense layer", where=str(file), found=first_line(error)) from None
