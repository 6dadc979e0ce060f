"""Loading a decoder, and exporting it; the loaded model is what later stages compare with."""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
import transformers

from edgeonnx.errors import RuntimeUnavailableError
from edgeonnx.export.decoder import builder
from edgeonnx.export.decoder.facts import (
    DecoderFacts,
    read_sampling,
    read_special_tokens,
    read_stop_ids,
    read_template,
)
from edgeonnx.export.decoder.families import (
    BUILDER_FAMILIES,
    cache_shape,
    check_decoder,
    check_window,
    context_length,
)
from edgeonnx.export.decoder.gguf_library import gguf_reading
from edgeonnx.export.decoder.rotary import plain_config, rotary_tables
from edgeonnx.export.decoder.staging import staged
from edgeonnx.export.decoder.traced import trace, tracer_version
from edgeonnx.export.libraries import one_thread, quiet
from edgeonnx.export.pretrained import check_finite, check_whole, read_config, read_model
from edgeonnx.export.tokenizer import TokenizerFacts, check_vocabulary, read_tokenizer, tokenizer_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from edgeonnx.export.source import Source
    from edgeonnx.export.tasks import TaskPlan
    from edgeonnx.model.graph import StoredGraph

GGUF_LIBRARIES = ("gguf", "accelerate")


class LoadedDecoder:
    """A source model in memory, with its tokenizer.

    Attributes:
        source: Where it came from.
        plan: Its task.
        tokenizer: Facts about its tokenizer.
        facts: How text is generated with it.
    """

    def __init__(
        self, source: Source, plan: TaskPlan, model: Any, tokenizer: Any, shipped: TokenizerFacts, facts: DecoderFacts
    ) -> None:
        self.source = source
        self.plan = plan
        self.tokenizer = shipped
        self.facts = facts
        self._model = model
        self._tokenizer = tokenizer

    @property
    def parameter_count(self) -> int:
        """Number of parameters of the model, shared ones counted once."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    @property
    def vocabulary_size(self) -> int:
        """Number of rows of the embedding table, and of logits."""
        return int(self._model.get_input_embeddings().weight.shape[0])

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text as the source's own tokenizer gives them, its special tokens included; never cut."""
        with quiet():
            return [list(ids) for ids in self._tokenizer(list(texts))["input_ids"]] if texts else []

    def logits(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """The source model's logits at every position, without a cache.

        Args:
            ids: int64 (rows, tokens), without padding.

        Returns:
            float32 (rows, tokens, vocabulary).
        """
        with torch.inference_mode(), one_thread():
            found: NDArray[np.float32] = self._model(torch.from_numpy(ids), use_cache=False).logits.numpy()
        return found

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """The source's own greedy continuation, with its own cache.

        Args:
            ids: The prompt.
            count: How many tokens to generate; those that end an answer do not end it here.

        Returns:
            The new tokens.
        """
        prompt = torch.tensor([list(ids)])
        settings = transformers.GenerationConfig(do_sample=False, max_new_tokens=count, pad_token_id=0)
        with torch.inference_mode(), one_thread(), quiet():
            found = self._model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=settings)
        return [int(token) for token in found[0, len(ids) :]]

    def export(self) -> StoredGraph:
        """The graph in float32, with logits at every position.

        Raises:
            ExportError: The exporter failed, or made a graph that is not of the contract.
            RuntimeUnavailableError: The exporter is not installed.
        """
        return self._export(ir.DataType.FLOAT)

    def export_half(self) -> StoredGraph:
        """The graph in float16 for CUDA: weights and caches float16, logits float32.

        Raises:
            ExportError: As `export`.
            RuntimeUnavailableError: As `export`.
        """
        return self._export(ir.DataType.FLOAT16)

    def _export(self, dtype: ir.DataType) -> StoredGraph:
        if self.source.model_type not in BUILDER_FAMILIES:
            return trace(self._model, self.facts.cache, dtype, self.vocabulary_size)
        context = self.facts.context_length
        with self._files() as folder:
            (folder / "config.json").unlink()
            plain_config(self._model.config, context).save_pretrained(folder)
            tables = rotary_tables(self._model, context)
            return builder.build(folder, tables, self.facts.cache, dtype, self.vocabulary_size)

    @contextlib.contextmanager
    def _files(self) -> Iterator[Path]:
        """The model as a directory that every tool reads: its own files, or what was loaded from GGUF, written anew."""
        if self.source.gguf is None:
            with staged(self.source) as folder:
                yield folder
            return
        with tempfile.TemporaryDirectory(prefix="edgeonnx-source-") as scratch:
            with quiet():
                self._model.save_pretrained(scratch)
                self._tokenizer.save_pretrained(scratch)
            yield Path(scratch)


def load_decoder(source: Source, plan: TaskPlan, *, max_length: int | None) -> LoadedDecoder:
    """Load a source model in float32 on the CPU, and its tokenizer.

    Args:
        source: The source.
        plan: Its task.
        max_length: The longest sequence in tokens that was asked for, or None.

    Raises:
        CorruptSourceError: Weights are missing, have other shapes, or are not finite; a setting is no usable value.
        UnsupportedModelError: A setting is not supported, or the tokenizer has no `tokenizer.json` form.
        UsageError: `max_length` is longer than the model allows.
        RuntimeUnavailableError: A library that this kind of source or its export needs is not installed.
    """
    exporter = builder.builder_version() if source.model_type in BUILDER_FAMILIES else tracer_version()
    where = str(source.path / (source.gguf or "config.json"))
    if source.gguf is not None:
        _need_gguf(source)
    reading = contextlib.nullcontext() if source.gguf is None else gguf_reading()
    with quiet(), reading, staged(source) as folder:
        config = read_config(source, folder, **_gguf_options(source))
        settings = config.to_dict()
        check_decoder(settings, where=where)
        context = context_length(settings, max_length, where=where)
        check_window(settings, context, where=where)
        cache = cache_shape(settings, where=where)
        tokenizer = read_tokenizer(source, folder)
        model = _load_model(source, folder, config)
        # The makers' settings are facts of their own; the source's greedy generation must not follow them.
        model.generation_config = transformers.GenerationConfig()
    check_finite(source, model)
    rows = int(model.get_input_embeddings().weight.shape[0])
    check_vocabulary(source, tokenizer, rows=rows)
    generation = source.read_json("generation_config.json") if source.gguf is None else None
    with quiet():
        facts = DecoderFacts(
            cache=cache,
            context_length=context,
            stop_ids=read_stop_ids(tokenizer, (generation, settings), vocabulary=rows, where=where),
            chat_template=read_template(tokenizer),
            special_tokens=read_special_tokens(tokenizer),
            sampling=read_sampling(generation, where=where),
            exporter=exporter,
        )
    shipped = TokenizerFacts(
        document=tokenizer_document(tokenizer, lowercase=False),
        max_length=context,
        pad_id=_padding_id(tokenizer, facts.stop_ids),
        pad_type_id=0,
        prefix="",
    )
    return LoadedDecoder(source, plan, model, tokenizer, shipped, facts)


def _padding_id(tokenizer: Any, stop_ids: tuple[int, ...]) -> int:
    """An id to fill rows with. Decoders often have none; any serves, since the mask hides it."""
    if tokenizer.pad_token_id is not None:
        return int(tokenizer.pad_token_id)
    return stop_ids[0] if stop_ids else 0


def _gguf_options(source: Source) -> dict[str, Any]:
    return {} if source.gguf is None else {"gguf_file": source.gguf}


def _need_gguf(source: Source) -> None:
    missing = [name for name in GGUF_LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeUnavailableError(
            "a library that reads GGUF files is not installed",
            where=source.identity,
            expected=", ".join(GGUF_LIBRARIES),
            found=f"no {', no '.join(missing)}",
            hint=f"install it: pip install {' '.join(missing)}",
        )


def _load_model(source: Source, folder: Path, config: Any) -> Any:
    """The transformers model; weights that are missing are an error, not a warning."""
    options = _gguf_options(source)
    if source.gguf is not None:
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model, info = read_model(source, transformers.AutoModelForCausalLM, folder, config=config, **options)
    check_whole(source, sorted(str(key) for name in ("missing_keys", "mismatched_keys") for key in info[name]))
    return model.eval()
