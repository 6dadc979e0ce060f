"""The tokenizers that the text targets run over: documents that the `tokenizers` library itself wrote."""

from __future__ import annotations

import json
import unicodedata
from functools import lru_cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.fuzz.strings import MARKS, POOLS, WORDS
from tests.support.texts import ROOT, minilm_tokenizer_json, vader_texts
from tests.support.tokenizers import LLAMA3, QWEN2, smollm2_tokenizer_json, trained_bpe_json

TEXTS = ROOT / "edgeonnx" / "data" / "texts.jsonl"


def own_texts() -> list[str]:
    """The texts that ship with edgeonnx: many scripts, punctuation, numbers, code."""
    return [json.loads(line) for line in TEXTS.read_text("utf-8").splitlines()]


def _spelling() -> list[str]:
    """All characters that the generator likes, and what normalization can make of them."""
    chars = (
        set("".join("".join(pool) for pool in POOLS)) | set(MARKS) | set("".join(WORDS)) | set(map(chr, range(33, 127)))
    )
    chars |= set(unicodedata.normalize("NFD", "".join(chars)))
    chars |= set("".join(chars).lower())
    chars |= set(unicodedata.normalize("NFD", "".join(chars)))
    return sorted(chars)


def _wordpiece(*, clean: bool, cjk: bool, accents: bool | None, lower: bool) -> bytes:
    """A BERT tokenizer that spells: its ids show exactly what normalization made of a text. With added tokens."""
    tokenizer = Tokenizer.from_str(minilm_tokenizer_json().decode())
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocab = {token: tokenizer.token_to_id(token) for token in specials}
    free = set(range(104)) - set(vocab.values())  # without holes, as the library numbers added tokens from the size on
    vocab.update({f"[unused{index}]": index for index in free})
    pieces = [piece for char in _spelling() for piece in (char, f"##{char}")]
    pieces += ["##ing", "##s", "the", "un", "##able", "##ab", "##aba"]
    pieces = [piece for piece in dict.fromkeys(pieces) if piece not in vocab]
    vocab.update({piece: 104 + index for index, piece in enumerate(pieces)})
    tokenizer.model = models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100)
    tokenizer.normalizer = normalizers.BertNormalizer(clean, cjk, accents, lower)
    return tokenizer.to_str().encode()


@lru_cache(maxsize=1)
def wordpiece_documents() -> dict[str, bytes]:
    """WordPiece: MiniLM's own, and vocabularies that spell under different normalizers."""
    found = {
        "minilm": minilm_tokenizer_json(),
        "cased": _wordpiece(clean=True, cjk=True, accents=False, lower=False),
        "uncased": _wordpiece(clean=True, cjk=True, accents=None, lower=True),
        "bare": _wordpiece(clean=False, cjk=False, accents=False, lower=False),
        "accents": _wordpiece(clean=False, cjk=True, accents=True, lower=False),
    }
    flagged = Tokenizer.from_str(found["uncased"].decode())
    added = [
        AddedToken("<left>", lstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, normalized=False, special=True),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("<lef", normalized=False),
        AddedToken("Ünï", normalized=False),
    ]
    flagged.add_tokens(added)
    return {**found, "added": flagged.to_str().encode()}


def _trained(kind: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = {"llama3": LLAMA3, "qwen2": QWEN2}.get(kind)
    if split is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "roberta")
    else:
        steps = [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=kind == "roberta")
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if kind == "roberta" else ["<|endoftext|>", "<|im_start|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=specials,
        show_progress=False,
    )
    tokenizer.train_from_iterator([*own_texts() * 2, " ".join(WORDS)] * 2, trainer)
    return tokenizer


def _roberta() -> bytes:
    tokenizer = _trained("roberta")
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=True
    )
    root = json.loads(tokenizer.to_str())
    for entry in root["added_tokens"]:
        entry["lstrip"], entry["normalized"] = entry["content"] == "<mask>", entry["content"] != "<mask>"
    return json.dumps(root, ensure_ascii=False).encode()


def _template() -> bytes:
    """Llama 3 with a template for texts and pairs, and `ignore_merges`."""
    tokenizer = _trained("llama3")
    template = processors.TemplateProcessing(
        single="<|endoftext|> $A",
        pair="<|endoftext|> $A <|im_start|>:1 $B:1",
        special_tokens=[("<|endoftext|>", 0), ("<|im_start|>", 1)],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    root = json.loads(tokenizer.to_str())
    root["model"]["ignore_merges"] = True
    return json.dumps(root, ensure_ascii=False).encode()


def _holes() -> bytes:
    """GPT-2 whose vocabulary lacks some single bytes, as SmolLM2's: the library drops such characters."""
    root = json.loads(_trained("gpt2").to_str())
    missing = {"Ą", "Ć", "õ", "ö", "÷"}
    root["model"]["vocab"] = {token: index for token, index in root["model"]["vocab"].items() if token not in missing}
    vocab = root["model"]["vocab"]
    root["model"]["merges"] = [
        merge for merge in root["model"]["merges"] if all(part in vocab for part in merge) and "".join(merge) in vocab
    ]
    return json.dumps(root, ensure_ascii=False).encode()


def _qwen() -> bytes:
    tokenizer = _trained("qwen2")
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer.to_str().encode()


def _digits() -> bytes:
    """SmolLM2's pre-tokenizer: single digits, then the pattern of GPT-2."""
    tokenizer = _trained("gpt2")
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer.to_str().encode()


@lru_cache(maxsize=1)
def bpe_documents() -> dict[str, bytes]:
    """Byte-level BPE in the forms of the models that use it, with small vocabularies trained here."""
    return {
        "gpt2": _trained("gpt2").to_str().encode(),
        "llama3": _trained("llama3").to_str().encode(),
        "digits": _digits(),
        "holes": _holes(),
        "roberta": _roberta(),
        "template": _template(),
        "qwen2": _qwen(),
    }


def added_contents(library: Tokenizer) -> list[str]:
    """The contents of the added tokens, for the generator."""
    return [token.content for token in library.get_added_tokens_decoder().values()]


@lru_cache(maxsize=1)
def large_documents() -> dict[str, bytes]:
    """Real tokenizers for the large comparison: MiniLM, SmolLM2, and trained ones like GPT-2's and Llama 3's."""
    texts = vader_texts()
    return {
        "minilm": minilm_tokenizer_json(),
        "smollm2": smollm2_tokenizer_json(),
        "gpt2": _decoding(trained_bpe_json("gpt2", texts, vocab_size=8000)),
        "llama3": _decoding(trained_bpe_json("llama3", texts, vocab_size=8000)),
    }


def _decoding(data: bytes) -> bytes:
    tokenizer = Tokenizer.from_str(data.decode())
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str().encode()
