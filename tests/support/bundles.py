"""Tiny bundles for tests: real graphs of a few kilobytes, one for each task, made through the real writer.

The graphs are bags of embeddings with weights from a fixed seed. Their golden outputs come from the plain NumPy
functions below, not from ONNX Runtime, so that a replay compares two independent computations.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeonnx.bundle import BundleWriter
from edgeonnx.bundle.golden import GoldenSet
from edgeonnx.spec.evidence import Evidence
from edgeonnx.spec.manifest import Component, Manifest, Requirements, Task, TextProcessing, Variant
from edgeonnx.spec.numerics import IntegerRange
from edgeonnx.spec.report import Threshold
from edgeonnx.spec.tensor import DType, ModelSignature, TensorSpec

CPU = "CPUExecutionProvider"
DIM = 8
LABELS = ("negative", "neutral", "positive")
MAX_LENGTH = 16
SEED = 20240607
WORDS = ("the", "cat", "dog", "sat", "on", "mat", "a", "good", "bad", "film", "##s", "##ed", "hello", "world", "!", ".")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = {token: index for index, token in enumerate((*SPECIAL, *WORDS))}
TEXTS = ("the cat sat on the mat.", "hello", "a good film !", "bad dogs")
PAIRS = ("a cat", "hello world", "the film", "the dog sat")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS: dict[Task, tuple[str, ...]] = {
    Task.EMBEDDING: ("sentence_embedding",),
    Task.FEATURE_EXTRACTION: ("last_hidden_state",),
    Task.TEXT_CLASSIFICATION: ("logits", "scores"),
    Task.TOKEN_CLASSIFICATION: ("logits", "scores"),
    Task.TEXT_RANKING: ("logits", "scores"),
}
FULL_RANGE = IntegerRange(activation_max=255, weight_max=127)
"""What row-wise int8 states: it saturates on x86-64 without VNNI."""
REDUCED_RANGE = IntegerRange(activation_max=255, weight_max=64)
"""Weights of 7 bits: exact everywhere."""
_PER_TOKEN = (Task.FEATURE_EXTRACTION, Task.TOKEN_CLASSIFICATION)


def tokenizer_json() -> bytes:
    """A BERT tokenizer of 21 tokens, in the form that the `tokenizers` library writes."""

    def single(token: str) -> dict[str, object]:
        return {"id": token, "ids": [VOCABULARY[token]], "tokens": [token]}

    def special(token: str, type_id: int = 0) -> dict[str, object]:
        return {"SpecialToken": {"id": token, "type_id": type_id}}

    def sequence(name: str, type_id: int = 0) -> dict[str, object]:
        return {"Sequence": {"id": name, "type_id": type_id}}

    first = [special("[CLS]"), sequence("A"), special("[SEP]")]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": VOCABULARY[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in SPECIAL
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": first,
            "pair": [*first, sequence("B", 1), special("[SEP]", 1)],
            "special_tokens": {token: single(token) for token in ("[CLS]", "[SEP]")},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": VOCABULARY,
        },
    }
    return json.dumps(document).encode()


def weights(seed: int = SEED) -> dict[str, np.ndarray]:
    """The weights that all tiny models of a seed share; float32."""
    rng = np.random.default_rng(seed)
    shapes = {"words": (len(VOCABULARY), DIM), "types": (2, DIM), "head": (DIM, len(LABELS)), "rank": (DIM, 1)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def reference(task: Task, inputs: dict[str, np.ndarray], seed: int = SEED) -> dict[str, np.ndarray]:
    """What the tiny model of a task computes, in plain NumPy (float64 inside, float32 out)."""
    table = {name: value.astype(np.float64) for name, value in weights(seed).items()}
    hidden = table["words"][inputs["input_ids"]] + table["types"][inputs["token_type_ids"]]
    mask = inputs["attention_mask"][:, :, None].astype(np.float64)
    pooled = (hidden * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1e-9)
    if task is Task.EMBEDDING:
        found = {"sentence_embedding": pooled / np.sqrt((pooled * pooled).sum(axis=1, keepdims=True))}
    elif task is Task.FEATURE_EXTRACTION:
        found = {"last_hidden_state": hidden}
    elif task is Task.TEXT_RANKING:
        logits = pooled @ table["rank"]
        found = {"logits": logits, "scores": 1 / (1 + np.exp(-logits))}
    else:
        logits = (hidden if task is Task.TOKEN_CLASSIFICATION else pooled) @ table["head"]
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        found = {"logits": logits, "scores": powers / powers.sum(axis=-1, keepdims=True)}
    return {name: value.astype(np.float32) for name, value in found.items()}


def tokens_of(texts: tuple[str, ...], pairs: tuple[str, ...] | None) -> dict[str, np.ndarray]:
    """The graph's inputs by the `tokenizers` library itself."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json().decode())
    tokenizer.enable_truncation(MAX_LENGTH)
    tokenizer.enable_padding(pad_id=0)
    rows = tokenizer.encode_batch(list(texts) if pairs is None else list(zip(texts, pairs, strict=True)))
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return {name: np.array([getattr(row, key) for row in rows], dtype=np.int64) for name, key in columns.items()}


def signature(task: Task) -> ModelSignature:
    """The signature of the tiny model of a task."""
    inputs = tuple(TensorSpec(name=name, dtype=DType.INT64, shape=("batch", "sequence")) for name in INPUTS)
    last = {Task.EMBEDDING: DIM, Task.FEATURE_EXTRACTION: DIM, Task.TEXT_RANKING: 1}.get(task, len(LABELS))
    shape = ("batch", "sequence", last) if task in _PER_TOKEN else ("batch", last)
    outputs = tuple(TensorSpec(name=name, dtype=DType.FLOAT, shape=shape) for name in OUTPUTS[task])
    return ModelSignature(inputs=inputs, outputs=outputs)


@dataclass(frozen=True, kw_only=True)
class TinyVariant:
    """One variant of a tiny bundle. Its graph computes in fp32 whatever `precision` says; only selection looks at that.

    Attributes:
        precision: What the variant calls itself; `<provider>-<precision>` is its name.
        provider: Execution provider.
        instruction_sets: CPU features that it requires.
        integer: Range of 8-bit products that it states.
        external: Tensors that lie outside the graph.
    """

    precision: str = "fp32"
    provider: str = CPU
    instruction_sets: tuple[str, ...] = ()
    integer: IntegerRange | None = None
    external: tuple[str, ...] = ("words",)

    @property
    def name(self) -> str:
        """The variant's name."""
        return f"{self.provider.removesuffix('ExecutionProvider').lower()}-{self.precision}"


CPU_VARIANTS = (
    TinyVariant(precision="int8", integer=FULL_RANGE),
    TinyVariant(precision="int8-7bit", integer=REDUCED_RANGE, external=("words", "types")),
    TinyVariant(),
)
"""What a packager may build for CPUs: the fastest first, each with a graph of its own over the same tensors."""


def graph(
    task: Task, *, bias: float = 0.0, external: tuple[str, ...] = ("words",), seed: int = SEED
) -> tuple[bytes, dict[str, bytes]]:
    """The tiny model: its graph, and its external tensors by file name (their SHA-256).

    Args:
        task: What it computes.
        bias: Added to every hidden state: a model that is not the one the golden set was made with.
        external: Names of the weights that lie outside the graph.
        seed: Of the weights.
    """
    table = weights(seed)
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word"]),
        helper.make_node("Gather", ["types", "token_type_ids"], ["type"]),
        helper.make_node("Add", ["word", "type"], ["sum"]),
        helper.make_node("Add", ["sum", "bias"], ["hidden"]),
        helper.make_node("Cast", ["attention_mask"], ["mask2"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask2", "last"], ["mask"]),
        helper.make_node("Mul", ["hidden", "mask"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "tokens"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "tokens"], ["count"], keepdims=0),
        helper.make_node("Div", ["total", "count"], ["pooled"]),
        *_head(task),
    ]
    outside = {name: _external(name, table[name]) for name in external}
    inline = {name: value for name, value in table.items() if name not in external}
    inline |= {"bias": np.float32(bias), "last": np.array([2], np.int64), "tokens": np.array([1], np.int64)}
    used = {name for node in nodes for name in node.input}
    initializers = [numpy_helper.from_array(np.asarray(v), n) for n, v in inline.items() if n in used]
    initializers += [tensor for _, tensor in outside.values()]
    kinds = {DType.INT64: TensorProto.INT64, DType.FLOAT: TensorProto.FLOAT}

    def infos(specs: tuple[TensorSpec, ...]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(spec.name, kinds[spec.dtype], spec.shape) for spec in specs]

    described = signature(task)
    body = helper.make_graph(nodes, "tiny", infos(described.inputs), infos(described.outputs), initializers)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    tensors = {digest: table[name].tobytes() for name, (digest, _) in outside.items()}
    return model.SerializeToString(deterministic=True), tensors


def _head(task: Task) -> list[onnx.NodeProto]:
    if task is Task.EMBEDDING:
        return [helper.make_node("LpNormalization", ["pooled"], ["sentence_embedding"], axis=1, p=2)]
    if task is Task.FEATURE_EXTRACTION:
        return [helper.make_node("Identity", ["hidden"], ["last_hidden_state"])]
    if task is Task.TEXT_RANKING:
        return [
            helper.make_node("MatMul", ["pooled", "rank"], ["logits"]),
            helper.make_node("Sigmoid", ["logits"], ["scores"]),
        ]
    source = "hidden" if task is Task.TOKEN_CLASSIFICATION else "pooled"
    return [
        helper.make_node("MatMul", [source, "head"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=-1),
    ]


def _external(name: str, value: np.ndarray) -> tuple[str, onnx.TensorProto]:
    digest = hashlib.sha256(value.tobytes()).hexdigest()
    tensor = TensorProto(name=name, dims=value.shape, data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", digest), ("offset", "0"), ("length", str(value.nbytes))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    return digest, tensor


def make_bundle(
    folder: Path,
    task: Task = Task.EMBEDDING,
    *,
    name: str = "tiny",
    version: str = "1.0.0",
    seed: int = SEED,
    bias: float = 0.0,
    providers: tuple[str, ...] = (CPU,),
    variants: tuple[TinyVariant, ...] = (),
    prefix: str = "",
) -> Path:
    """Write a tiny bundle to `folder/<name>-<version>` and return its path.

    Args:
        folder: Where; the bundle's own folder must not exist.
        task: What it computes.
        name: The bundle's name.
        version: The bundle's version.
        seed: Of the weights: another seed is another model, with a golden set of its own.
        bias: Not 0: the graph does not agree with the golden set.
        providers: One fp32 variant for each, in this order.
        variants: The variants, instead of those for `providers`. All refer to one folder with the tensors of all.
        prefix: The default prompt.
    """
    target = folder / f"{name}-{version}"
    tiny = variants or tuple(TinyVariant(provider=provider) for provider in providers)
    graphs = {item.name: graph(task, bias=bias, external=item.external, seed=seed) for item in tiny}
    golden = golden_set(task, prefix, seed)
    with BundleWriter(target) as writer:
        tensor_asset = writer.add_asset(
            {digest: data for _, tensors in graphs.values() for digest, data in tensors.items()}
        )
        tokenizer_asset = writer.add_asset({"tokenizer.json": tokenizer_json()})
        golden_asset = writer.add_asset(golden.to_files())
        for variant_name, (data, _) in graphs.items():
            writer.add(f"encoder/{variant_name}/model.onnx", data)
        described = tuple(_variant(item, tensor_asset, len(graphs[item.name][0])) for item in tiny)
        component = Component(name="encoder", signature=signature(task), variants=described)
        manifest = Manifest(
            name=name,
            version=version,
            task=task,
            components={"encoder": component},
            entry="encoder",
            processing=TextProcessing(
                tokenizer=f"{tokenizer_asset}/tokenizer.json",
                backend="wordpiece",
                max_length=MAX_LENGTH,
                pad_id=0,
                prefix=prefix,
            ),
            golden=golden_asset,
            labels=LABELS if "classification" in task.value else (),
            properties={"dimension": DIM} if task is Task.EMBEDDING else {},
        )
        writer.finish(manifest, Evidence(source={}, tools={}))
        writer.publish()
    return target


def golden_set(task: Task, prefix: str = "", seed: int = SEED) -> GoldenSet:
    """The golden set of a tiny model; rows of outputs per token are filled up with zeros."""
    pairs = PAIRS if task.takes_pairs else None
    inputs = tokens_of(tuple(prefix + text for text in TEXTS), pairs)
    outputs = reference(task, inputs, seed)
    if task in _PER_TOKEN:
        outputs = {name: value * inputs["attention_mask"][:, :, None] for name, value in outputs.items()}
    return GoldenSet(
        texts=TEXTS, pairs=pairs, inputs=inputs, outputs={n: v.astype(np.float32) for n, v in outputs.items()}
    )


def _variant(tiny: TinyVariant, tensors: str, size: int) -> Variant:
    return Variant(
        name=tiny.name,
        device="cpu" if tiny.provider == CPU else "gpu",
        model_file="model.onnx",
        tensors=tensors,
        precision=tiny.precision,
        requirements=Requirements(
            provider=tiny.provider,
            instruction_sets=tiny.instruction_sets,
            memory_bytes=size,
            integer=tiny.integer,
        ),
        golden=(Threshold(metric="scaled_diff", at_most=1e-4), Threshold(metric="min_cosine", at_least=0.9999)),
        recipe={"precision": tiny.precision},
    )
