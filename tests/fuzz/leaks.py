"""No kernel loses memory: many calls of each, good and bad ones, and the memory in use stays where it is.

    python -m tests.fuzz.leaks [NAME...] [--calls 1000000]

A case is one small call of a kernel, and some that it must refuse: every 16th call is refused. After a warm-up of a
tenth of the calls, three things are measured over the rest, and each has a bound:

- resident memory of the process (/proc/self/statm): what an operator sees; blind while freed memory is used again;
- bytes that malloc has given out (mallinfo2 of glibc): exact for what a kernel allocates; the smallest leak of one call
  in sixteen would be 1,000 KB in a million calls;
- objects that Python's allocator holds (sys.getallocatedblocks): exact for small Python objects.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.target import twins

EVERY = 16
PAGE = os.sysconf("SC_PAGE_SIZE")
CALLS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a process holds, or by how much that grew.

    Attributes:
        resident_kb: Resident memory.
        malloc_kb: What malloc has given out; 0 where the C library cannot tell.
        objects: Python's small objects.
    """

    resident_kb: int
    malloc_kb: int
    objects: int

    def grown_since(self, before: Memory) -> Memory:
        """The growth from `before` to this."""
        return Memory(
            resident_kb=self.resident_kb - before.resident_kb,
            malloc_kb=self.malloc_kb - before.malloc_kb,
            objects=self.objects - before.objects,
        )

    def is_within(self, bound: Memory) -> bool:
        """Whether no part is more than that of `bound`."""
        return (
            self.resident_kb <= bound.resident_kb
            and self.malloc_kb <= bound.malloc_kb
            and self.objects <= bound.objects
        )


# What a run may grow by, whatever its calls: pages that the allocators and Python's own caches keep.
BOUND = Memory(resident_kb=256, malloc_kb=16, objects=400)


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _mallinfo() -> Callable[[], Any] | None:
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _MallInfo
    return function


MALLINFO = _mallinfo()


def memory() -> Memory:
    """What this process holds now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    info = MALLINFO() if MALLINFO else _MallInfo()
    return Memory(
        resident_kb=pages * PAGE // 1024,
        malloc_kb=(info.uordblks + info.hblkhd) // 1024,
        objects=sys.getallocatedblocks(),
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel, called well and badly.

    Attributes:
        good: Calls it with the number of the call; the result is dropped.
        bad: Calls that it refuses with a ValueError or TypeError (AttributeError for what is no model).
        cost: A call counts as this many, where it takes that much longer than others.
    """

    good: Callable[[int], object]
    bad: list[Callable[[], object]]
    cost: int = 1


def call(case: Case, calls: int) -> None:
    """Call the kernel `calls` times; every 16th call is one that it must refuse."""
    for number in range(calls):
        if number % EVERY:
            case.good(number)
            continue
        try:
            case.bad[number // EVERY % len(case.bad)]()
        except (ValueError, TypeError, AttributeError):
            continue
        raise AssertionError("a bad call was accepted")


def growth(case: Case, calls: int) -> Memory:
    """How much memory grows over `calls` calls, after a warm-up of a tenth of them."""
    calls = max(calls // case.cost, 2 * EVERY * len(case.bad))
    call(case, max(calls // 10, 2 * EVERY * len(case.bad)))
    before = memory()
    call(case, calls)
    return memory().grown_since(before)


def _texts() -> list[list[str]]:
    from tests.fuzz.strings import random_text

    return [[random_text(random.Random(seed)) for _ in range(2)] for seed in range(64)]


def _tokenizer_case(kernel: Any) -> Case:
    from edgeonnx_ext.layout import Truncation

    texts = _texts()
    ids = np.zeros((2, 8), dtype=np.int64)
    ids32, offsets = np.zeros((2, 8), dtype=np.int32), np.zeros((2, 8, 2), dtype=np.int32)
    cut, left = Truncation(max_length=8), Truncation(max_length=8, side="left")

    def good(number: int) -> None:
        batch = texts[number % len(texts)]
        if number % 3 == 0:
            kernel.tokenize(batch, truncation=cut).write_into(ids)
        elif number % 3 == 1:
            kernel.tokenize(batch, truncation=cut, offsets=True).write_into(ids32, offsets=offsets)
        else:
            kernel.tokenize(batch, batch[::-1], truncation=left).write_into(ids)

    done = kernel.tokenize(["some text", "more"])
    bad = [
        lambda: kernel.tokenize(["a", "b\ud800"]),
        lambda: kernel.tokenize(["a", 1]),
        lambda: kernel.tokenize("a"),
        lambda: kernel.tokenize(["a"], ["b", "c"]),
        lambda: kernel.tokenize(["a"], truncation=Truncation(max_length=8, strategy="only_second")),
        lambda: done.write_into(np.zeros((1, 1), dtype=np.int64)),
        lambda: done.write_into(np.zeros((2, 99), dtype=np.float32)),
        lambda: done.write_into(np.zeros((2, 99), dtype=np.int64), rows=[0, 2]),
    ]
    return Case(good=good, bad=bad)


def construction() -> Case:
    """Tokenizers and decoders, made and dropped."""
    from edgeonnx_ext.bpe import BpeModel
    from edgeonnx_ext.decoding import DecoderModel
    from edgeonnx_ext.wordpiece import WordPieceModel

    from tests.fuzz import documents

    words, pieces = documents.wordpiece_documents()["added"], documents.bpe_documents()["roberta"]
    makers = [
        (twins("_wordpiece", "wordpiece")["compiled"].WordPieceTokenizer, WordPieceModel.from_tokenizer_json(words)),
        (twins("_bpe", "bpe")["compiled"].BpeTokenizer, BpeModel.from_tokenizer_json(pieces)),
        (twins("_decode", "decoding")["compiled"].Decoder, DecoderModel.from_tokenizer_json(pieces)),
    ]

    def good(number: int) -> None:
        make, model = makers[number % len(makers)]
        made = make(model)
        if hasattr(made, "tokenize"):
            made.tokenize(["some text", "é 中"])  # its work memory goes with it

    return Case(good=good, bad=[lambda make=make: make(None) for make, _ in makers], cost=200)


def wordpiece() -> Case:
    """Texts and pairs through the WordPiece kernel."""
    from tests.fuzz.text_targets import wordpiece_subjects

    return _tokenizer_case(wordpiece_subjects()[-1].kernels["compiled"])


def bpe() -> Case:
    """Texts and pairs through the BPE kernel."""
    from tests.fuzz.text_targets import bpe_subjects

    return _tokenizer_case(bpe_subjects()[1].kernels["compiled"])


def decode() -> Case:
    """Whole decoding, batches, and streams."""
    from edgeonnx_ext.decoding import DecoderModel

    from tests.fuzz import documents

    module = twins("_decode", "decoding")["compiled"]
    model = DecoderModel.from_tokenizer_json(documents.bpe_documents()["gpt2"])
    decoder = module.Decoder(model)
    ids = [[random.Random(seed).randrange(model.size - 1) for _ in range(8)] for seed in range(64)]

    def good(number: int) -> None:
        row = ids[number % len(ids)]
        if number % 2:
            decoder.decode(row)
            return
        stream = module.DecodeStream(decoder)
        for token_id in row:
            stream.push(token_id)
        stream.finish()

    bad = [
        lambda: decoder.decode([1, model.size]),
        lambda: decoder.decode(["a"]),
        lambda: decoder.decode(np.zeros((2, 2), dtype=np.int64)),
        lambda: decoder.token_bytes(-1),
        lambda: module.DecodeStream(decoder).push(model.size),
    ]
    return Case(good=good, bad=bad)


def nfc() -> Case:
    """Texts through NFC."""
    module = twins("_nfc", "nfc")["compiled"]
    texts = [text for pair in _texts() for text in pair]
    return Case(
        good=lambda number: module.nfc(texts[number % len(texts)]),
        bad=[lambda: module.nfc(1)],
    )


def pooling() -> Case:
    """Every pooling kernel, and normalization."""
    from tests.fuzz.number_targets import POOLING

    module = twins("_pooling", "pooling")["compiled"]
    hidden, mask = np.ones((2, 3, 8), dtype=np.float32), np.ones((2, 3), dtype=np.int64)
    out = np.zeros((2, 8), dtype=np.float32)
    kernels = [getattr(module, name) for name in POOLING]

    def good(number: int) -> None:
        kernels[number % len(kernels)](hidden, mask, out)
        module.l2_normalize_into(out, out)

    bad = [lambda kernel=kernel: kernel(hidden, mask + 1, out) for kernel in kernels]
    bad += [lambda: module.l2_normalize_into(out, out[:1]), lambda: kernels[0](hidden, mask, out.T)]
    return Case(good=good, bad=bad)


def scores() -> Case:
    """Softmax and kin, top k, argmax."""
    module = twins("_scores", "scores")["compiled"]
    x = np.arange(32, dtype=np.float32).reshape(2, 16)
    nan, out = np.where(x == 20, np.float32(np.nan), x), np.zeros_like(x)
    values, indices = np.zeros((2, 3), dtype=np.float32), np.zeros((2, 3), dtype=np.int64)
    best = np.zeros(2, dtype=np.int64)

    def good(number: int) -> None:
        module.softmax_into(x, out)
        module.log_softmax_into(x, out)
        module.sigmoid_into(x, out)
        module.top_k_into(x, 3, values, indices)
        module.argmax_into(x, best)

    bad = [
        lambda: module.softmax_into(x, out[:1]),
        lambda: module.top_k_into(nan, 3, values, indices),
        lambda: module.top_k_into(x, 0, values, indices),
        lambda: module.argmax_into(nan, best),
    ]
    return Case(good=good, bad=bad, cost=4)


def sampling() -> Case:
    """Draws with every filter, and the probabilities."""
    from edgeonnx_ext.sampling import SamplingParameters

    module = twins("_sampling", "sampling")["compiled"]
    logits = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)
    uniforms, ids = np.array([0.3, 0.8]), np.zeros(2, dtype=np.int64)
    logprobs, probabilities = np.zeros(2, dtype=np.float32), np.zeros_like(logits)
    some = SamplingParameters(repetition_penalty=1.2, temperature=0.7, top_k=20, top_p=0.9, min_p=0.01)
    each = [some, SamplingParameters(temperature=0)]
    history = [np.array([1, 2, 3]), np.array([], dtype=np.int64)]
    nan = np.full_like(logits, np.nan)

    def good(number: int) -> None:
        module.sample_into(logits, uniforms, each if number % 2 else some, ids, history, logprobs)
        module.probabilities_into(logits, some, probabilities, history)

    bad = [
        lambda: module.sample_into(nan, uniforms, some, ids),
        lambda: module.sample_into(np.full_like(logits, -np.inf), uniforms, each, ids),
        lambda: module.sample_into(logits, uniforms + 1, some, ids),
        lambda: module.sample_into(logits, uniforms, each[:1], ids),
        lambda: module.sample_into(logits, uniforms, some, ids, [np.array([-1]), history[1]]),
        lambda: module.probabilities_into(logits, some, probabilities.T),
    ]
    return Case(good=good, bad=bad, cost=4)


def floats() -> Case:
    """float32 to JSON and base64."""
    module = twins("_floats", "floats")["compiled"]
    x = np.random.default_rng(1).standard_normal((2, 16)).astype(np.float32)
    bad = np.where(x == x[1, 3], np.float32(np.inf), x)
    return Case(
        good=lambda _: (module.json_rows(x), module.base64_rows(x)),
        bad=[lambda: module.json_rows(bad), lambda: module.json_rows(x.T), lambda: module.base64_rows([[1.0]])],
    )


def images() -> Case:
    """Images of several sizes, resized and cropped."""
    from edgeonnx_ext.images import ImagePreprocessing

    module = twins("_images", "images")["compiled"]
    preprocessing = ImagePreprocessing(shortest_edge=6, crop=(5, 7), rescale_factor=1 / 255)
    images = [np.full((4 + size, 9, 3), size, dtype=np.uint8) for size in range(4)]
    out, one = np.zeros((2, 3, 5, 7), dtype=np.float32), np.zeros((3, 5, 7), dtype=np.float32)

    def good(number: int) -> None:
        module.preprocess_into(images[number % 4], one, preprocessing)
        module.preprocess_batch_into([images[0], images[number % 4]], out, preprocessing)

    bad = [
        lambda: module.preprocess_into(images[0], one[:, :4], preprocessing),
        lambda: module.preprocess_into(images[0][:0], one, preprocessing),
        lambda: module.preprocess_batch_into(images, out, preprocessing),
        lambda: module.preprocess_batch_into([images[0], None], out, preprocessing),
    ]
    return Case(good=good, bad=bad, cost=4)


CASES: dict[str, Callable[[], Case]] = {
    "construction": construction,
    "wordpiece": wordpiece,
    "bpe": bpe,
    "decode": decode,
    "nfc": nfc,
    "pooling": pooling,
    "scores": scores,
    "sampling": sampling,
    "floats": floats,
    "images": images,
}


def main() -> None:
    """Read the command line, run, and print growth."""
    parser = argparse.ArgumentParser(description="Call every kernel many times and watch resident memory.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(CASES)}; without, all")
    parser.add_argument("--calls", type=int, default=CALLS)
    arguments = parser.parse_args()
    print(f"{'case':<14}{'calls':>9}{'resident':>11}{'malloc':>11}{'objects':>8}")
    failed = False
    for name in arguments.names or CASES:
        case = CASES[name]()
        begin = time.monotonic()
        grown = growth(case, arguments.calls)
        failed |= not grown.is_within(BOUND)
        verdict = "ok" if grown.is_within(BOUND) else f"MORE THAN {BOUND}"
        numbers = f"{grown.resident_kb:>8} KB{grown.malloc_kb:>8} KB{grown.objects:>8}"
        print(
            f"{name:<14}{arguments.calls // case.cost:>9}{numbers}{time.monotonic() - begin:>8.0f} s   {verdict}",
            flush=True,
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
