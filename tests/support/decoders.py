"""Tiny decoders for tests: a real graph of the contract in `edgeonnx.spec.generation`, that loads in milliseconds.

The model is Llama-like: RMS norms, rotary grouped-query attention, a gated MLP, weights from a fixed seed. Its
tokenizer is a byte-level BPE with a few merges, so that every text has tokens, and every character that is not ASCII
is split over several of them. The golden outputs come from the graph itself, run without a cache, each row alone.

The embedding of the token `POISON` is not a number: a sequence that has it fails, and no other may notice.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from edgeonnx.bundle import BundleWriter
from edgeonnx.bundle.golden import GoldenSet
from edgeonnx.spec.evidence import Evidence
from edgeonnx.spec.generation import INPUT_IDS, LOGITS, MASK, CacheShape, Generation, SamplingDefaults
from edgeonnx.spec.manifest import (
    EXTERNAL_FOLDER_OPTION,
    Component,
    Manifest,
    Requirements,
    Task,
    TextProcessing,
    Variant,
)
from edgeonnx.spec.report import Threshold
from edgeonnx.spec.tensor import DType, ModelSignature, TensorSpec

CPU = "CPUExecutionProvider"
HEADS = 4
KV_HEADS = 2
HEAD_SIZE = 16
HIDDEN = HEADS * HEAD_SIZE
INNER = 2 * HIDDEN
SHARPNESS = 4.0
"""Factor of the logits: the most probable token leads by far more than rounding."""

LETTERS = tuple(sorted(ByteLevel.alphabet()))
"""The 256 characters that stand for bytes in byte-level BPE."""
MERGES = ("t h", "i n", "a n", "e r", "th e", "Ġ t", "Ġ a", "Ġ the", "in g", "c a", "ca t")
END = "<|endoftext|>"
TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
POISON = "<|poison|>"
SPECIAL = (END, TURN, END_OF_TURN, POISON)
VOCABULARY = {
    token: index for index, token in enumerate((*LETTERS, *(pair.replace(" ", "") for pair in MERGES), *SPECIAL))
}
_LIKELINESS = np.array([1.0 if token.lstrip("Ġ").isascii() else 0.6 for token in VOCABULARY], dtype=np.float32)
"""Bytes that are no ASCII text come now and then, so that answers are text in the main; `POISON` never comes."""
_LIKELINESS[VOCABULARY[POISON]] = 0.0
STOP_IDS = (VOCABULARY[END_OF_TURN], VOCABULARY[END])
POISON_ID = VOCABULARY[POISON]

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML, as SmolLM2 has it, without a system prompt of its own."""

TEXTS = ("the cat sat on the mat.", "h", "Größe: 12 €, 日本語 🙂", "there, and in another thing again")


def tokenizer_json() -> bytes:
    """A byte-level BPE tokenizer of 271 tokens, in the form that the `tokenizers` library writes."""
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
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for token, index in VOCABULARY.items() if token not in SPECIAL},
            "merges": [pair.split(" ") for pair in MERGES],
        },
    }
    return json.dumps(document).encode()


def encode(text: str) -> list[int]:
    """Ids of a text, by the `tokenizers` library itself; special tokens in it are found, none is added."""
    return list(_tokenizer().encode(text).ids)


@functools.cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_str(tokenizer_json().decode())


@dataclass(frozen=True, kw_only=True)
class TinyDecoder:
    """What a tiny decoder is.

    Attributes:
        seed: Of the weights.
        layers: Number of layers.
        context: Most tokens of a sequence.
        half: The caches are float16; all else stays float.
        every_position: Logits at every position, as an exporter gives them, not of the last alone.
    """

    seed: int = 0
    layers: int = 2
    context: int = 256
    half: bool = False
    every_position: bool = False

    @property
    def cache(self) -> CacheShape:
        """Shape of the caches."""
        return CacheShape(layers=self.layers, heads=KV_HEADS, head_size=HEAD_SIZE)


def weights(tiny: TinyDecoder) -> dict[str, np.ndarray]:
    """The weights, float32 by name; matrices are (inputs, outputs)."""
    rng = np.random.default_rng(tiny.seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return np.asarray(rng.standard_normal((rows, columns)) * scale / np.sqrt(rows), dtype=np.float32)

    found = {"embed": matrix(len(VOCABULARY), HIDDEN, np.sqrt(len(VOCABULARY))), "norm": np.ones(HIDDEN, np.float32)}
    found["embed"][POISON_ID] = np.nan
    for layer in range(tiny.layers):
        found[f"{layer}.norm1"] = 1 + 0.1 * rng.standard_normal(HIDDEN).astype(np.float32)
        found[f"{layer}.norm2"] = 1 + 0.1 * rng.standard_normal(HIDDEN).astype(np.float32)
        found[f"{layer}.q"] = matrix(HIDDEN, HIDDEN, 1.5)
        found[f"{layer}.k"] = matrix(HIDDEN, KV_HEADS * HEAD_SIZE, 1.5)
        found[f"{layer}.v"] = matrix(HIDDEN, KV_HEADS * HEAD_SIZE)
        found[f"{layer}.o"] = matrix(HIDDEN, HIDDEN)
        found[f"{layer}.gate"] = matrix(HIDDEN, INNER)
        found[f"{layer}.up"] = matrix(HIDDEN, INNER)
        found[f"{layer}.down"] = matrix(INNER, HIDDEN)
    found["head"] = matrix(HIDDEN, len(VOCABULARY), SHARPNESS) * _LIKELINESS
    angles = np.arange(tiny.context)[:, None] / 10_000.0 ** (np.arange(HEAD_SIZE // 2) / (HEAD_SIZE // 2))
    found["cos"], found["sin"] = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return found


def graph(tiny: TinyDecoder = TinyDecoder()) -> tuple[bytes, dict[str, bytes]]:
    """The graph, and its external tensors by file name (their SHA-256): every weight of at least 1,024 bytes."""
    table = weights(tiny)
    nodes = [
        helper.make_node("Gather", ["embed", INPUT_IDS], ["hidden"]),
        helper.make_node("ReduceSum", [MASK, "one"], ["lengths"], keepdims=0),
        helper.make_node("Sub", ["lengths", "one"], ["last64"]),
        helper.make_node("Cast", ["last64"], ["seqlens"], to=TensorProto.INT32),
        helper.make_node("Shape", [MASK], ["total64"], start=1),
        helper.make_node("Squeeze", ["total64"], ["total0"]),
        helper.make_node("Cast", ["total0"], ["total"], to=TensorProto.INT32),
    ]
    hidden = "hidden"
    for layer in range(tiny.layers):
        nodes += _layer(layer, hidden, half=tiny.half)
        hidden = f"{layer}.out"
    last = hidden
    if not tiny.every_position:
        last = "last"
        nodes += [
            helper.make_node("Gather", [hidden, "minus1"], ["last2"], axis=1),
            helper.make_node("Unsqueeze", ["last2", "one"], ["last"]),
        ]
    nodes += [_norm(last, "norm", "final"), helper.make_node("MatMul", ["final", "head"], [LOGITS])]
    outside = {name: value for name, value in table.items() if value.nbytes >= 1024}
    inline = {name: value for name, value in table.items() if name not in outside}
    inline |= {"one": np.array([1], np.int64), "minus1": np.array(-1, np.int64)}
    initializers = [numpy_helper.from_array(value, name) for name, value in inline.items()]
    initializers += [_external(name, value) for name, value in outside.items()]
    body = helper.make_graph(nodes, "tiny_decoder", _inputs(tiny), _outputs(tiny), initializers)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(body, opset_imports=opsets, ir_version=11)
    return model.SerializeToString(deterministic=True), {_digest(value): value.tobytes() for value in outside.values()}


def _norm(source: str, scale: str, target: str) -> onnx.NodeProto:
    return helper.make_node("RMSNormalization", [source, scale], [target], axis=-1, epsilon=1e-5)


def _layer(layer: int, source: str, *, half: bool) -> list[onnx.NodeProto]:
    def at(name: str) -> str:
        return f"{layer}.{name}"

    def matmul(left: str, right: str, target: str) -> onnx.NodeProto:
        return helper.make_node("MatMul", [at(left), at(right)], [at(target)])

    nodes = [
        _norm(source, at("norm1"), at("normed1")),
        matmul("normed1", "q", "query"),
        matmul("normed1", "k", "key"),
        matmul("normed1", "v", "value"),
    ]
    given = [at(name) for name in ("query", "key", "value")]
    tables, attended = ["cos", "sin"], at("attended")
    if half:
        halves = [(name, f"{layer}.{name}16") for name in (*given, *tables)]
        nodes += [helper.make_node("Cast", [name], [target], to=TensorProto.FLOAT16) for name, target in halves]
        given, tables, attended = [h for _, h in halves[:3]], [h for _, h in halves[3:]], at("attended16")
    past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
    present = [f"present.{layer}.{part}" for part in ("key", "value")]
    nodes.append(
        helper.make_node(
            "GroupQueryAttention",
            [*given, *past, "seqlens", "total", *tables],
            [attended, *present],
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            do_rotary=1,
        )
    )
    if half:
        nodes.append(helper.make_node("Cast", [attended], [at("attended")], to=TensorProto.FLOAT))
    return [
        *nodes,
        matmul("attended", "o", "projected"),
        helper.make_node("Add", [source, at("projected")], [at("middle")]),
        _norm(at("middle"), at("norm2"), at("normed2")),
        matmul("normed2", "gate", "gated"),
        helper.make_node("Sigmoid", [at("gated")], [at("sigmoid")]),
        helper.make_node("Mul", [at("gated"), at("sigmoid")], [at("swish")]),
        matmul("normed2", "up", "upper"),
        helper.make_node("Mul", [at("swish"), at("upper")], [at("inner")]),
        matmul("inner", "down", "lowered"),
        helper.make_node("Add", [at("middle"), at("lowered")], [at("out")]),
    ]


def _caches(tiny: TinyDecoder, names: tuple[str, ...], places: str) -> list[onnx.ValueInfoProto]:
    kind = TensorProto.FLOAT16 if tiny.half else TensorProto.FLOAT
    return [helper.make_tensor_value_info(name, kind, ("batch", KV_HEADS, places, HEAD_SIZE)) for name in names]


def _inputs(tiny: TinyDecoder) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(INPUT_IDS, TensorProto.INT64, ("batch", "sequence")),
        helper.make_tensor_value_info(MASK, TensorProto.INT64, ("batch", "total")),
        *_caches(tiny, tiny.cache.past_names, "places"),
    ]


def _outputs(tiny: TinyDecoder) -> list[onnx.ValueInfoProto]:
    positions = "sequence" if tiny.every_position else 1
    return [
        helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ("batch", positions, len(VOCABULARY))),
        *_caches(tiny, tiny.cache.present_names, "places_after"),
    ]


def _digest(value: np.ndarray) -> str:
    return hashlib.sha256(value.tobytes()).hexdigest()


def _external(name: str, value: np.ndarray) -> onnx.TensorProto:
    tensor = TensorProto(name=name, dims=value.shape, data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", _digest(value)), ("offset", "0"), ("length", str(value.nbytes))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    return tensor


def write_graph(folder: Path, tiny: TinyDecoder = TinyDecoder()) -> Path:
    """Write the graph beside its tensors, for tests that need no bundle; returns its path."""
    data, tensors = graph(tiny)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in tensors.items():
        (folder / name).write_bytes(content)
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


def open_graph(path: Path, *, tensors: Path | None = None) -> ort.InferenceSession:
    """A plain session on a tiny graph."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if tensors is not None:
        options.add_session_config_entry(EXTERNAL_FOLDER_OPTION, str(tensors))
    return ort.InferenceSession(str(path), options, providers=[CPU])


def uncached_logits(session: ort.InferenceSession, tiny: TinyDecoder, ids: list[int]) -> np.ndarray:
    """The oracle: what the graph gives for a whole sequence at once, with empty caches. float32 (vocabulary,)."""
    empty = np.zeros((1, KV_HEADS, 0, HEAD_SIZE), np.float16 if tiny.half else np.float32)
    row = np.array([ids], dtype=np.int64)
    inputs = {INPUT_IDS: row, MASK: np.ones_like(row), **dict.fromkeys(tiny.cache.past_names, empty)}
    logits: np.ndarray = session.run([LOGITS], inputs)[0]
    return np.asarray(logits[0, -1])


def uncached_greedy(
    session: ort.InferenceSession, tiny: TinyDecoder, prompt: list[int], count: int, *, stops: tuple[int, ...] = ()
) -> list[int]:
    """Greedy tokens by the oracle, each from the whole sequence so far; a stop token is the last one."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(uncached_logits(session, tiny, ids).argmax()))
        if ids[-1] in stops:
            break
    return ids[len(prompt) :]


def signature() -> ModelSignature:
    """The signature of a decoder: the caches follow from the manifest."""
    specs = [TensorSpec(name=name, dtype=DType.INT64, shape=("batch", axis)) for name, axis in _ID_AXES]
    logits = TensorSpec(name=LOGITS, dtype=DType.FLOAT, shape=("batch", 1, len(VOCABULARY)))
    return ModelSignature(inputs=tuple(specs), outputs=(logits,))


_ID_AXES = ((INPUT_IDS, "sequence"), (MASK, "total"))


def make_decoder_bundle(
    folder: Path,
    *,
    name: str = "tiny-lm",
    version: str = "1.0.0",
    seed: int = 0,
    layers: int = 2,
    context: int = 256,
    half: bool = False,
    stop_ids: tuple[int, ...] = STOP_IDS,
    chat_template: str | None = TEMPLATE,
    sampling: SamplingDefaults = SamplingDefaults(temperature=0.0),  # noqa: B008 - it is frozen
    providers: tuple[str, ...] = (CPU,),
    golden_error: float = 0.0,
) -> Path:
    """Write a tiny bundle for text generation to `folder/<name>-<version>` and return its path.

    Args:
        folder: Where; the bundle's own folder must not exist.
        name: The bundle's name.
        version: The bundle's version.
        seed: Of the weights: another seed is another model, with a golden set of its own.
        layers: Number of layers.
        context: Most tokens of a sequence.
        half: The caches are float16.
        stop_ids: Tokens that end an answer.
        chat_template: Jinja template of conversations, or None.
        sampling: How to sample where a request does not say: greedy, so that tests need not say it.
        providers: A variant for each, in this order; all have the same graph.
        golden_error: Added to the golden outputs: not 0, the graph does not agree with them.
    """
    tiny = TinyDecoder(seed=seed, layers=layers, context=context, half=half)
    target = folder / f"{name}-{version}"
    data, tensors = graph(tiny)
    files = {"tokenizer.json": tokenizer_json()}
    if chat_template is not None:
        files["chat_template.jinja"] = chat_template.encode()
    with BundleWriter(target) as writer:
        tensor_asset = writer.add_asset(tensors)
        text_asset = writer.add_asset(files)
        variants = tuple(_variant(provider, tensor_asset, data, tensors) for provider in providers)
        for variant in variants:
            writer.add(f"decoder/{variant.name}/model.onnx", data)
        golden_asset = writer.add_asset(golden_set(tiny, error=golden_error).to_files())
        manifest = Manifest(
            name=name,
            version=version,
            task=Task.TEXT_GENERATION,
            components={"decoder": Component(name="decoder", signature=signature(), variants=variants)},
            entry="decoder",
            processing=TextProcessing(
                tokenizer=f"{text_asset}/tokenizer.json", backend="bpe", max_length=context, pad_id=VOCABULARY[END]
            ),
            golden=golden_asset,
            properties={"vocabulary_size": len(VOCABULARY)},
            generation=Generation(
                cache=tiny.cache,
                context_length=context,
                stop_ids=stop_ids,
                chat_template=None if chat_template is None else f"{text_asset}/chat_template.jinja",
                special_tokens={"eos_token": END_OF_TURN, "pad_token": END},
                sampling=sampling,
            ),
        )
        writer.finish(manifest, Evidence(source={}, tools={}))
        writer.publish()
    return target


def _variant(provider: str, tensor_asset: str, data: bytes, tensors: dict[str, bytes]) -> Variant:
    kind = provider.removesuffix("ExecutionProvider").lower()
    return Variant(
        name=f"{kind}-fp32",
        device="cpu" if provider == CPU else "gpu",
        model_file="model.onnx",
        tensors=tensor_asset,
        precision="fp32",
        requirements=Requirements(
            provider=provider, memory_bytes=len(data) + sum(len(content) for content in tensors.values())
        ),
        golden=(Threshold(metric="scaled_diff", at_most=1e-3), Threshold(metric="min_cosine", at_least=0.9999)),
        recipe={"precision": "fp32"},
    )


@functools.cache
def golden_set(tiny: TinyDecoder = TinyDecoder(), *, error: float = 0.0) -> GoldenSet:
    """The golden set: logits after each text's last token, each row alone and without a cache."""
    rows = [encode(text) for text in TEXTS]
    width = max(len(row) for row in rows)
    ids = np.full((len(rows), width), VOCABULARY[END], dtype=np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)], mask[index, : len(row)] = row, 1
    data, tensors = graph(tiny)
    session = _in_memory(data, tensors)
    logits = np.stack([uncached_logits(session, tiny, row) for row in rows])
    return GoldenSet(
        texts=TEXTS,
        pairs=None,
        inputs={INPUT_IDS: ids, MASK: mask},
        outputs={LOGITS: (logits + np.float32(error)).astype(np.float32)},
    )


def _in_memory(data: bytes, tensors: dict[str, bytes]) -> ort.InferenceSession:
    """A session on a graph whose tensors lie on no disk."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    names = list(tensors)
    options.add_external_initializers_from_files_in_memory(
        names, [tensors[name] for name in names], [len(tensors[name]) for name in names]
    )
    return ort.InferenceSession(data, options, providers=[CPU])
