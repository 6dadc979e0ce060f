"""Targets of the tokenizers, the decoder and NFC."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from edgeonnx_ext.layout import Padding, Truncation
from edgeonnx_ext.wordpiece import WordPieceModel
from tokenizers import Tokenizer, normalizers

from tests.fuzz import documents
from tests.fuzz.strings import random_text, with_surrogate
from tests.fuzz.target import Attempt, Target, same_refusal, twins
from tests.fuzz.text_rows import Options, assert_same, library_rows, written_rows


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One tokenizer in every implementation.

    Attributes:
        name: Of the document.
        library: The oracle.
        contents: Contents of the added tokens.
        kernels: Our tokenizer by kind, "compiled" and "reference".
    """

    name: str
    library: Tokenizer
    contents: list[str]
    kernels: Mapping[str, Any]


def _subjects(found: Mapping[str, bytes], read: Callable[[bytes], Any], kernel: str, module: str) -> list[Subject]:
    kinds = twins(f"_{module}", module)
    subjects = []
    for name, data in found.items():
        library, model = Tokenizer.from_str(data.decode()), read(data)
        kernels = {kind: getattr(twin, kernel)(model) for kind, twin in kinds.items()}
        contents = documents.added_contents(library)
        subjects.append(Subject(name=name, library=library, contents=contents, kernels=kernels))
    return subjects


@lru_cache(maxsize=1)
def wordpiece_subjects() -> list[Subject]:
    """Every WordPiece document of the fuzz tests."""
    return _subjects(
        documents.wordpiece_documents(), WordPieceModel.from_tokenizer_json, "WordPieceTokenizer", "wordpiece"
    )


@lru_cache(maxsize=1)
def bpe_subjects() -> list[Subject]:
    """Every byte-level BPE document of the fuzz tests."""
    from edgeonnx_ext.bpe import BpeModel

    return _subjects(documents.bpe_documents(), BpeModel.from_tokenizer_json, "BpeTokenizer", "bpe")


def _texts_target(subjects: Callable[[], list[Subject]]) -> Callable[[], Attempt]:
    def open_target() -> Attempt:
        found = subjects()

        def attempt(rng: random.Random) -> None:
            subject = rng.choice(found)
            texts = [random_text(rng, subject.contents) for _ in range(rng.randint(1, 3))]
            if rng.random() < 0.05:
                _refuses_a_surrogate(rng, subject, texts)
                return
            expected = library_rows(subject.library, texts, None)
            for kind, kernel in subject.kernels.items():
                assert_same(written_rows(kernel, texts, None), expected, f"{subject.name}, {kind}", texts)

        return attempt

    return open_target


def _refuses_a_surrogate(rng: random.Random, subject: Subject, texts: list[str]) -> None:
    row = rng.randrange(len(texts))
    broken, place = with_surrogate(rng, texts[row])
    texts = [*texts[:row], broken, *texts[row + 1 :]]
    for kind, kernel in subject.kernels.items():
        message = _refusal(kernel, texts)
        assert message is not None, f"{subject.name}, {kind}: a lone surrogate was accepted in {texts!a}"
        assert f"texts[{row}]" in message, message
        assert f"character {place}." in message, message


def _refusal(kernel: Any, texts: list[str]) -> str | None:
    try:
        kernel.tokenize(texts)
    except ValueError as error:
        return str(error)
    return None


def random_truncation(rng: random.Random, *, pairs: bool) -> Truncation | None:
    """Some truncation that is valid for texts, or for pairs; often none."""
    if rng.random() < 0.25:
        return None
    strategies = ["longest_first", "only_first", "only_second"] if pairs else ["longest_first", "only_first"]
    strategy: Any = rng.choice(strategies)
    overflow = rng.random() < 0.4 and not (pairs and strategy == "longest_first")
    return Truncation(
        max_length=rng.choice((3, 4, 5, 6, 7, 8, 9, 12, 16, 33)),
        strategy=strategy,
        side=rng.choice(("right", "left")),
        overflow=overflow,
        stride=rng.choice((0, 0, 1, 2, 3)) if overflow else 0,
    )


def random_options(rng: random.Random, *, pairs: bool) -> Options:
    """Any way to cut, pad and write."""
    padding = Padding(
        pad_id=rng.choice((0, 1, 77, 2**31 - 1)), pad_type_id=rng.choice((0, 1, 9)), side=rng.choice(("right", "left"))
    )
    return Options(
        truncation=random_truncation(rng, pairs=pairs),
        special_tokens=rng.random() < 0.8,
        padding=padding,
        multiple=rng.choice((None, None, 1, 4, 8)),
        dtype=rng.choice((np.int64, np.int32)),
        threads=rng.choice((1, 1, 1, 2, 3)),
    )


def _within(options: Options, subject: Subject) -> Options:
    """`options`, without a stride that the library refuses whatever the texts are."""
    cut = options.truncation
    if cut is None or cut.stride < cut.max_length - subject.library.num_special_tokens_to_add(is_pair=False):
        return options
    return replace(options, truncation=replace(cut, stride=0))


def must_refuse(subject: Subject, texts: list[str], pairs: list[str] | None, options: Options) -> bool:
    """Whether the library could not cut one of these rows: no text to cut from, or windows that do not advance."""
    cut = options.truncation
    if cut is None:
        return False
    specials = subject.library.num_special_tokens_to_add(is_pair=pairs is not None) if options.special_tokens else 0
    budget = cut.max_length - specials
    if budget < 0:
        return True
    whole = Options(special_tokens=False)
    counts = [library_rows(subject.library, texts, None, whole)["lengths"]]
    counts.append([0] * len(texts) if pairs is None else library_rows(subject.library, pairs, None, whole)["lengths"])
    return any(_row_is_refused(first, second, budget, cut) for first, second in zip(*counts, strict=True))


def _row_is_refused(first: int, second: int, budget: int, cut: Truncation) -> bool:
    excess = first + second - budget
    if excess <= 0:
        return False
    if budget == 0:
        return cut.overflow  # everything goes, and no window could hold it
    if cut.strategy == "longest_first":
        return cut.overflow and budget <= cut.stride
    length = first if cut.strategy == "only_first" else second
    return length <= excess or (cut.overflow and length - excess <= cut.stride)


def _open_rows() -> Attempt:
    subjects = [*wordpiece_subjects(), *bpe_subjects()]

    def attempt(rng: random.Random) -> None:
        subject = rng.choice(subjects)
        count = rng.randint(1, 4)
        texts = [random_text(rng, subject.contents) for _ in range(count)]
        pairs = [random_text(rng, subject.contents) for _ in range(count)] if rng.random() < 0.5 else None
        options = _within(random_options(rng, pairs=pairs is not None), subject)
        if must_refuse(subject, texts, pairs, options):
            actions = {
                kind: lambda kernel=kernel: written_rows(kernel, texts, pairs, options)
                for kind, kernel in subject.kernels.items()
            }
            same_refusal(actions, ValueError)
            return
        expected = library_rows(subject.library, texts, pairs, options)
        if subject.name == "roberta" and options.truncation is not None:
            # The library trims the spaces of offsets after it cuts, and then takes the first token of what is left
            # for that of a text, whose added space is not counted. Ours are those of the whole text.
            del expected["offsets"]
            # And without special tokens it makes the type ids of a pair 0 only in the first row, not in what overflows.
            if options.truncation.overflow and not options.special_tokens:
                del expected["token_type_ids"]
        for kind, kernel in subject.kernels.items():
            found = written_rows(kernel, texts, pairs, options)
            assert_same(found, expected, f"{subject.name}, {kind}, {options}", (texts, pairs))

    return attempt


def _open_selection() -> Attempt:
    subjects = wordpiece_subjects()

    def attempt(rng: random.Random) -> None:
        subject = rng.choice(subjects)
        texts = [random_text(rng, subject.contents) for _ in range(rng.randint(1, 5))]
        tokenized = {kind: kernel.tokenize(texts) for kind, kernel in subject.kernels.items()}
        rows = rng.choices(range(len(texts)), k=rng.randint(0, 6))
        for kind, batch in tokenized.items():
            lengths = batch.lengths.tolist()
            assert lengths == library_rows(subject.library, texts, None)["lengths"], kind
            expected_order = sorted(range(len(texts)), key=lambda row: -lengths[row])
            assert batch.order_by_length().tolist() == expected_order, kind
            for wanted in (rows, expected_order):
                width = max((lengths[row] for row in wanted), default=0)
                ids = np.full((len(wanted), width), -7, dtype=np.int64)
                batch.write_into(ids, rows=np.array(wanted, dtype=np.int64), padding=Padding(pad_id=3))
                whole = library_rows(subject.library, texts, None, Options(padding=Padding(pad_id=3)))["input_ids"]
                assert ids.tolist() == [whole[row][:width] for row in wanted], kind

    return attempt


def _open_decode() -> Attempt:
    from edgeonnx_ext.decoding import DecoderModel

    kinds = twins("_decode", "decoding")
    subjects = []
    for name, data in {**documents.bpe_documents(), **documents.wordpiece_documents()}.items():
        model = DecoderModel.from_tokenizer_json(data)
        library = Tokenizer.from_str(data.decode())
        decoders = {kind: (twin, twin.Decoder(model)) for kind, twin in kinds.items()}
        subjects.append((name, library, sorted(model.tokens), documents.added_contents(library), decoders))

    def attempt(rng: random.Random) -> None:
        name, library, known, contents, decoders = rng.choice(subjects)
        ids = _ids_to_decode(rng, library, known, contents)
        skip = rng.random() < 0.5
        expected = library.decode(ids, skip_special_tokens=skip)
        given = rng.choice((ids, tuple(ids), np.array(ids, dtype=np.int64), np.array(ids, dtype=np.int32)))
        for kind, (twin, decoder) in decoders.items():
            what = f"{name}, {kind}, skip_special_tokens={skip}, ids {ids}"
            assert decoder.decode(given, skip) == expected, what
            stream = twin.DecodeStream(decoder, skip)
            for _ in range(2):  # the second time over the used stream
                pieces = [stream.push(token_id) for token_id in ids]
                assert "".join(pieces) + stream.finish() == expected, what
        holes = {
            kind: lambda decoder=decoder: decoder.decode([*ids, known[-1] + 1])
            for kind, (_, decoder) in decoders.items()
        }
        same_refusal(holes, ValueError)

    return attempt


def _ids_to_decode(rng: random.Random, library: Tokenizer, known: list[int], contents: list[str]) -> list[int]:
    """Ids of a text, whole or cut anywhere, any ids, or both mixed."""
    ids: list[int] = []
    if rng.random() < 0.6:
        library.no_truncation()
        library.no_padding()
        ids = library.encode(random_text(rng, contents)).ids
        ids = ids[rng.randint(0, len(ids)) if rng.random() < 0.3 else 0 :]
    if rng.random() < 0.6:
        pool = known[:300] if rng.random() < 0.5 else known  # single bytes stand at the start of a vocabulary
        place = rng.randint(0, len(ids))
        ids[place:place] = rng.choices(pool, k=rng.randint(0, 8))
    return ids


def _open_round_trip() -> Attempt:
    from edgeonnx_ext.decoding import DecoderModel

    kinds = twins("_decode", "decoding")
    names = ("gpt2", "llama3", "digits")  # nothing lost in normalization, no space added, every byte in the vocabulary
    subjects = [
        (
            subject,
            {
                kind: twin.Decoder(DecoderModel.from_tokenizer_json(documents.bpe_documents()[subject.name]))
                for kind, twin in kinds.items()
            },
        )
        for subject in bpe_subjects()
        if subject.name in names
    ]
    assert len(subjects) == len(names)

    def attempt(rng: random.Random) -> None:
        subject, decoders = rng.choice(subjects)
        text = random_text(rng)
        for kind, kernel in subject.kernels.items():
            ids = written_rows(kernel, [text], None)["input_ids"][0]
            found = decoders[kind].decode(ids, skip_special_tokens=False)
            assert found == text, f"{subject.name}, {kind}: {text!a} came back as {found!a}"

    return attempt


def _open_nfc() -> Attempt:
    kinds = twins("_nfc", "nfc")
    library = normalizers.NFC()

    def attempt(rng: random.Random) -> None:
        text = random_text(rng)
        expected = library.normalize_str(text)
        for kind, twin in kinds.items():
            found = twin.nfc(text)
            assert found == expected, f"{kind}: nfc({text!a}) = {found!a}, expected {expected!a}"
            assert twin.nfc(found) == found, f"{kind}: nfc of {found!a} changes it again"
            assert expected == text or not twin.is_stable(text), f"{kind}: {text!a} is called stable"
        aligned = {kind: twin.nfc_aligned(text) for kind, twin in kinds.items()}
        assert {found for found, _ in aligned.values()} == {expected}
        places = {kind: positions.tolist() for kind, (_, positions) in aligned.items()}
        assert len(set(map(str, places.values()))) == 1, f"positions of {text!a}: {places}"
        assert all(len(found) == len(expected) for found in places.values())

    return attempt


TARGETS = [
    Target(
        name="wordpiece",
        invariant="both WordPiece twins give the library's ids, types, masks and offsets; a lone surrogate is refused",
        open=_texts_target(wordpiece_subjects),
    ),
    Target(
        name="bpe",
        invariant="both BPE twins give the library's ids, types, masks and offsets; a lone surrogate is refused",
        open=_texts_target(bpe_subjects),
    ),
    Target(
        name="rows",
        invariant="however a batch is cut, padded and written, the buffers hold what the library gives, and nothing "
        "around them changes; what the library cannot cut is refused by both twins with the same words",
        open=_open_rows,
    ),
    Target(
        name="selection",
        invariant="rows written in any order, or sorted by length, are the library's rows",
        open=_open_selection,
    ),
    Target(
        name="decode",
        invariant="decoding equals the library's, streaming equals decoding, and an id without token is refused",
        open=_open_decode,
    ),
    Target(
        name="round-trip",
        invariant="decode(encode(text)) == text for byte-level BPE without normalizer",
        open=_open_round_trip,
    ),
    Target(
        name="nfc",
        invariant="NFC is the library's and idempotent; a stable text is its own; both twins align alike",
        open=_open_nfc,
        short=500,
    ),
]
