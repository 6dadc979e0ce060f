"""A source model that generates text, without torch: the tiny decoder's own graph, run whole and without a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import numpy_helper

from edgeonnx.export.decoder.facts import DecoderFacts
from edgeonnx.export.tasks import TaskPlan
from edgeonnx.export.tokenizer import TokenizerFacts
from edgeonnx.model.graph import StoredGraph, store_graph
from edgeonnx.spec.generation import INPUT_IDS, LOGITS, MASK, SamplingDefaults
from edgeonnx.spec.manifest import Task
from tests.support.decoders import (
    END,
    END_OF_TURN,
    HEAD_SIZE,
    KV_HEADS,
    TEMPLATE,
    VOCABULARY,
    TinyDecoder,
    encode,
    tokenizer_json,
    write_graph,
)


@dataclass(frozen=True)
class Fingerprint:
    """What stands for the source's files."""

    identity: str = "tiny"

    def fingerprint(self) -> dict[str, object]:
        """As `edgeonnx.export.source.Source` gives it."""
        return {"identity": self.identity, "files": {}}


class TinySource:
    """What `edgeonnx.export.decoder.load.LoadedDecoder` is to the pipeline.

    Args:
        folder: Holds the graph.
        tiny: The decoder.
    """

    vocabulary_size = len(VOCABULARY)
    parameter_count = 12_345

    def __init__(self, folder: Path, tiny: TinyDecoder | None = None) -> None:
        self.tiny = tiny or TinyDecoder(every_position=True)
        self.path = _finite(write_graph(folder, self.tiny))
        self.source = Fingerprint()
        self.plan = TaskPlan(task=Task.TEXT_GENERATION)
        self.tokenizer = TokenizerFacts(
            document=tokenizer_json(), max_length=self.tiny.context, pad_id=VOCABULARY[END], pad_type_id=0, prefix=""
        )
        self.facts = DecoderFacts(
            cache=self.tiny.cache,
            context_length=self.tiny.context,
            stop_ids=(VOCABULARY[END_OF_TURN],),
            chat_template=TEMPLATE,
            special_tokens={"eos_token": END_OF_TURN},
            sampling=SamplingDefaults(),
            exporter="written by hand",
        )

    @cached_property
    def _session(self) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        return ort.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        return [encode(text) for text in texts]

    def logits(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits at every position."""
        empty = np.zeros((len(ids), KV_HEADS, 0, HEAD_SIZE), np.float32)
        inputs = {INPUT_IDS: ids, MASK: np.ones_like(ids), **dict.fromkeys(self.tiny.cache.past_names, empty)}
        found: NDArray[np.float32] = self._session.run([LOGITS], inputs)[0]
        return found

    def generate(self, ids: Sequence[int], count: int) -> list[int]:
        """Greedy tokens, each from the whole sequence so far."""
        row = list(ids)
        for _ in range(count):
            row.append(int(self.logits(np.array([row]))[0, -1].argmax()))
        return row[len(ids) :]

    def export(self) -> StoredGraph:
        """The graph, with logits at every position."""
        return store_graph(ir.from_proto(onnx.load(str(self.path))))

    def export_half(self) -> StoredGraph:
        """The same with caches in half precision."""
        half = _finite(write_graph(self.path.parent / "half", replace(self.tiny, half=True)))
        return store_graph(ir.from_proto(onnx.load(str(half))))


def _finite(path: Path) -> Path:
    """The graph without the token whose embedding is not a number: a source model's weights are finite."""
    model = onnx.load(str(path))
    for tensor in model.graph.initializer:
        if tensor.name == "embed":
            tensor.CopyFrom(numpy_helper.from_array(np.nan_to_num(numpy_helper.to_array(tensor)), tensor.name))
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path
