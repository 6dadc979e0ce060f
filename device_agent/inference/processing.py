"""Texts to tensors, tensors to answers: what happens to one request between the protocol and the runtime.

A request may hold thousands of texts. They are tokenized a few hundred at a time, the longest first, and run in
batches bounded by tokens, so that memory depends on the limits in `device_agent.config` and not on the request; rows
go back in the order in which they came.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import orjson
from edgeonnx_ext import open_text_encoder

from device_agent.inference.batching import split_by_tokens
from edgeonnx.errors import InferenceError, InvalidRequestError, ManifestError, RequestTooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgeonnx_ext import TextBatch
    from numpy.typing import NDArray

    from device_agent.config import AgentConfig
    from edgeonnx.spec.manifest import TextProcessing
    from edgeonnx.spec.tensor import ModelSignature, TensorSpec

    Array = NDArray[np.generic]
    Ids = NDArray[np.int64]
    Run = Callable[[Mapping[str, Array], Sequence[str] | None], dict[str, Array]]

INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"
TOKEN_TYPE_IDS = "token_type_ids"  # noqa: S105 - a tensor's name
TEXT_INPUTS = (INPUT_IDS, ATTENTION_MASK, TOKEN_TYPE_IDS)


@dataclass(kw_only=True)
class Answer:
    """The answer to one request.

    Attributes:
        outputs: Outputs by name, each (rows, ...). Rows of outputs per token are filled up with zeros.
        lengths: int64 (rows,), tokens of each row without padding.
        tokenize_seconds: Time that making the input tensors took.
        infer_seconds: Time in `InferenceSession.run`.
        runs: Calls of `InferenceSession.run`.
    """

    outputs: dict[str, Array] = field(default_factory=dict)
    lengths: Ids
    tokenize_seconds: float = 0.0
    infer_seconds: float = 0.0
    runs: int = 0


class TextPath:
    """The device's way from text to the graph's inputs.

    Args:
        tokenizer_json: The bundle's `tokenizer.json`.
        processing: The manifest's processing.
        inputs: Names of the graph's inputs.

    Raises:
        ManifestError: The graph takes an input that text does not give, or the tokenizer cannot be opened.
    """

    def __init__(self, tokenizer_json: bytes, processing: TextProcessing, inputs: Sequence[str]) -> None:
        unknown = [name for name in inputs if name not in TEXT_INPUTS]
        if unknown:
            raise ManifestError(
                "the graph takes an input that text processing does not give",
                where=f"inputs {unknown}",
                expected=f"only {', '.join(TEXT_INPUTS)}",
            )
        self.inputs = tuple(inputs)
        self.processing = processing
        try:
            self.vocabulary_size = vocabulary_size(tokenizer_json)
            self._encoder = open_text_encoder(
                tokenizer_json,
                max_length=processing.max_length,
                pad_id=processing.pad_id,
                pad_type_id=processing.pad_type_id,
                prefix=processing.prefix,
                backend=processing.backend,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestError(
                "the tokenizer cannot be opened",
                where=processing.tokenizer,
                found=f"{type(error).__name__}: {error}",
            ) from None

    @property
    def backend(self) -> str:
        """The tokenizer that does the work, such as `wordpiece-native` or `tokenizers`; see `TextEncoder.backend`."""
        return str(self._encoder.backend)

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> TextBatch:
        """Tokenize; rows are padded to the longest.

        Raises:
            InvalidRequestError: A text cannot be encoded (a lone surrogate).
        """
        try:
            return self._encoder.encode(texts, pairs)
        except ValueError as error:
            raise InvalidRequestError("a text cannot be encoded", where="text", found=str(error)) from None

    def tensors(self, batch: TextBatch) -> dict[str, Ids]:
        """The graph's inputs: int64 (rows, tokens) by name, without those that the graph lacks."""
        every = batch.tensors()
        return {name: every[name] for name in self.inputs}

    def tensors_of_tokens(self, rows: Sequence[Sequence[int]]) -> tuple[dict[str, Ids], Ids]:
        """The graph's inputs, and the rows' lengths, for texts that a client tokenized itself.

        The ids are taken as they are: special tokens are the client's to add.
        """
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        shape = (len(rows), int(lengths.max()))
        ids = np.full(shape, self.processing.pad_id, dtype=np.int64)
        mask = (np.arange(shape[1]) < lengths[:, None]).astype(np.int64)
        types = np.where(mask == 1, 0, self.processing.pad_type_id).astype(np.int64)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = tokens
        every = {INPUT_IDS: ids, ATTENTION_MASK: mask, TOKEN_TYPE_IDS: types}
        return {name: every[name] for name in self.inputs}, lengths


def vocabulary_size(tokenizer_json: bytes) -> int:
    """One more than the largest id that a `tokenizer.json` can give, added tokens included; 0 if it names none."""
    document = orjson.loads(tokenizer_json)
    vocabulary = document["model"].get("vocab", {})
    ids = range(len(vocabulary)) if isinstance(vocabulary, list) else vocabulary.values()
    added = (token["id"] for token in document.get("added_tokens") or ())
    return int(max((max(ids, default=-1), *added))) + 1


@dataclass(frozen=True, kw_only=True)
class TextModel:
    """A graph with its text path: answers whole requests. All methods are blocking and safe in any thread.

    Attributes:
        run: Runs the graph: inputs by name, names of the wanted outputs (None for all) to outputs by name.
        text: The text path.
        signature: The graph's inputs and outputs.
        config: The agent's limits.
    """

    run: Run
    text: TextPath
    signature: ModelSignature
    config: AgentConfig

    def answer_texts(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, outputs: Sequence[str] | None = None
    ) -> Answer:
        """Tokenize and run.

        Args:
            texts: One text a row, at least one.
            pairs: The second text of each row, for tasks that take two.
            outputs: Names of the wanted outputs; None for all.

        Raises:
            InvalidRequestError: A text cannot be encoded.
            RequestTooLargeError: The answer would be larger than the limit.
            InferenceError: The runtime failed.
        """
        answer = Answer(lengths=np.zeros(len(texts), dtype=np.int64))
        parts: list[tuple[NDArray[np.intp], dict[str, Array]]] = []
        for rows in _chunks(texts, pairs, self.config.encode_rows):
            started = time.perf_counter()
            batch = self.text.encode(
                [texts[row] for row in rows], None if pairs is None else [pairs[row] for row in rows]
            )
            tensors = self.text.tensors(batch)
            answer.tokenize_seconds += time.perf_counter() - started
            answer.lengths[rows] = batch.lengths
            self._check_size(len(texts), int(answer.lengths.max()), outputs)
            try:
                found = self._run_rows(tensors, np.asarray(batch.lengths), outputs, answer)
            except InvalidRequestError as error:  # the client chose no ids, so this is ours
                raise InferenceError("the runtime refuses the tokenized text", found=str(error)) from None
            parts.extend((rows[group], values) for group, values in found)
        answer.outputs = _merge(parts, len(texts))
        return answer

    def answer_tensors(
        self, tensors: Mapping[str, Ids], lengths: Ids | None = None, outputs: Sequence[str] | None = None
    ) -> Answer:
        """Run on the client's own tensors.

        Args:
            tensors: Every input of the graph, int64 (rows, tokens).
            lengths: int64 (rows,): what follows in a row is padding and may be cut. None leaves all rows at full
                width.
            outputs: Names of the wanted outputs; None for all.

        Raises:
            InvalidRequestError: The runtime does not take these tensors.
            RequestTooLargeError: The answer would be larger than the limit.
            InferenceError: The runtime failed.
        """
        rows, width = next(iter(tensors.values())).shape
        answer = Answer(lengths=np.full(rows, width, dtype=np.int64) if lengths is None else lengths)
        self._check_size(rows, width, outputs)
        answer.outputs = _merge(self._run_rows(tensors, answer.lengths, outputs, answer), rows)
        return answer

    def _run_rows(
        self, tensors: Mapping[str, Ids], lengths: Ids, outputs: Sequence[str] | None, answer: Answer
    ) -> list[tuple[NDArray[np.intp], dict[str, Array]]]:
        """Run the rows in groups bounded by tokens; gives each group with its outputs and counts into `answer`."""
        groups = split_by_tokens(lengths, self.config.batch_tokens)
        parts = []
        for group in groups:
            inputs = tensors
            if len(groups) > 1:
                width = int(lengths[group].max())
                inputs = {name: value[group, :width] for name, value in tensors.items()}
            started = time.perf_counter()
            values = self.run(inputs, outputs)
            answer.infer_seconds += time.perf_counter() - started
            answer.runs += 1
            parts.append((group, values))
        return parts

    def _check_size(self, rows: int, width: int, outputs: Sequence[str] | None) -> None:
        wanted = [spec for spec in self.signature.outputs if outputs is None or spec.name in outputs]
        numbers = rows * sum(numbers_per_row(spec, width) for spec in wanted)
        if numbers > self.config.max_answer_numbers:
            raise RequestTooLargeError(
                "the answer would be too large",
                where=f"{rows} rows of up to {width} tokens",
                expected=f"at most {self.config.max_answer_numbers:,} numbers in one answer",
                found=f"{numbers:,}",
                hint="send fewer texts in one request, or ask for fewer outputs",
            )


def numbers_per_row(spec: TensorSpec, tokens: int) -> int:
    """Numbers that one row of an output holds when it is `tokens` long; the first dimension is the batch."""
    return math.prod(size if isinstance(size, int) else tokens for size in spec.shape[1:])


def _chunks(texts: Sequence[str], pairs: Sequence[str] | None, size: int) -> list[NDArray[np.intp]]:
    """Row numbers in chunks of at most `size`, the longest texts first.

    Characters stand in for tokens here: texts of similar length are padded together, and an answer that would be too
    large is found out at once.
    """
    if len(texts) == 1:
        return [np.zeros(1, dtype=np.intp)]
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    if pairs is not None:
        lengths += np.fromiter(map(len, pairs), dtype=np.int64, count=len(pairs))
    order = np.argsort(-lengths, kind="stable")
    return [order[start : start + size] for start in range(0, len(order), size)]


def _merge(parts: Sequence[tuple[NDArray[np.intp], dict[str, Array]]], rows: int) -> dict[str, Array]:
    """The outputs of all groups, each row at its place; outputs per token are filled up to the longest."""
    if len(parts) == 1 and len(parts[0][0]) == 1:
        return parts[0][1]
    merged: dict[str, Array] = {}
    for name, first in parts[0][1].items():
        width = max(values[name].shape[1] for _, values in parts) if first.ndim == 3 else 0
        shape = (rows, width, *first.shape[2:]) if first.ndim == 3 else (rows, *first.shape[1:])
        whole = np.zeros(shape, dtype=first.dtype)
        for group, values in parts:
            if first.ndim == 3:
                whole[group, : values[name].shape[1]] = values[name]
            else:
                whole[group] = values[name]
        merged[name] = whole
    return merged
