"""How fast is text to padded batches, and is every id that of Hugging Face `tokenizers`?

One thread. Every contender does the same job on the same batches of 32 and of 1,024 texts: three padded int64 arrays
(ids, mask, type ids), made anew each time. They take turns, beginning with another one each round, and the best pass
of each counts, in processor time of the process: with one thread that is the time that it takes, and other processes do
not disturb it. Every pass gets the texts as new objects. A pass that repeats the one before favours who keeps most of
what it has seen, so another measurement gives each text once. Before that all ids are compared with those of
`tokenizers`, ours and the peers'. Speed is megabytes of UTF-8 a second.

- WordPiece (MiniLM): against `tokenizers` (`encode_batch`, and `encode_batch_fast`, which has no offsets) and tokie.
- Byte-level BPE (SmolLM2; vocabularies trained as GPT-2's and Llama 3's): against these, tiktoken and gigatoken.
- What else the path does: into buffers that the caller keeps, with offsets, sorted by length, with two threads;
  decoding, whole and as a stream; images.

The texts: 23,703 short English ones, and a multilingual mix.

Run it with `PYTHONPATH=. python bench/text.py [--quick] [--only NAME]`; the peers come with
`pip install tokie tiktoken gigatoken`.
"""

from __future__ import annotations

import os

# Before the peers are imported: each of them gets one thread.
os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from edgeonnx_ext import HAS_NATIVE, NATIVE_PROBLEM

from bench.text_corpora import corpora, megabytes, new_texts
from bench.text_extras import decode_rows, image_rows
from bench.text_peers import (
    FAST,
    GIGATOKEN,
    LIBRARY,
    TIKTOKEN,
    TOKIE,
    Arrays,
    Encode,
    Peer,
    library_of,
    open_peer,
)
from edgeonnx.evaluate.speed import machine
from tests.fuzz.compare import open_kernel
from tests.fuzz.documents import large_documents

BATCHES = (32, 1024)
TURN = 0.15  # seconds: quick passes are repeated, so that all are warm and none is timed by one unlucky moment
THREADED_BATCH = 8192
OURS = "edgeonnx"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How much faster than peers we must be.

    Attributes:
        library: Times `tokenizers` with `encode_batch`.
        fastest: Times the fastest of `peers`.
        peers: Who is measured.
    """

    library: float
    fastest: float
    peers: tuple[Peer, ...]


WORDPIECE = Asked(library=30.0, fastest=1.5, peers=(LIBRARY, FAST, TOKIE))
BPE = Asked(library=20.0, fastest=1.0, peers=(LIBRARY, FAST, TOKIE, TIKTOKEN, GIGATOKEN))


def our_job(kernel: Any, *, offsets: bool = False, by_length: bool = False, threads: int = 1) -> Encode:
    """Our tokenizer as the job: new arrays for each batch."""

    def job(texts: Sequence[str]) -> Arrays:
        tokenized = kernel.tokenize(texts, offsets=offsets, threads=threads)
        shape = (tokenized.rows, tokenized.width)
        ids, mask, types = np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(shape, np.int64)
        places = np.empty((*shape, 2), np.int64) if offsets else None
        rows = tokenized.order_by_length() if by_length else None
        tokenized.write_into(ids, mask, types, offsets=places, rows=rows)
        return ids, mask, types

    return job


def kept_buffers_job(kernel: Any, texts: Sequence[str], size: int) -> Callable[[Sequence[str]], object]:
    """Our tokenizer, writing into three buffers that are large enough for every batch, and used for each."""
    width = max(kernel.tokenize(texts[start : start + size]).width for start in range(0, len(texts), size))
    buffers = [np.empty((size, width), np.int64) for _ in range(3)]

    def job(batch: Sequence[str]) -> object:
        tokenized = kernel.tokenize(batch)
        place = [buffer.reshape(-1)[: len(batch) * tokenized.width].reshape(len(batch), -1) for buffer in buffers]
        tokenized.write_into(*place)
        return place

    return job


def batches_of(texts: Sequence[str], size: int) -> list[Sequence[str]]:
    """The texts in the given order, `size` at a time."""
    return [texts[start : start + size] for start in range(0, len(texts), size)]


def copied(batches: Sequence[Sequence[str]]) -> list[list[str]]:
    """The same texts as new objects: CPython keeps in a str the UTF-8 that some contenders have made of it."""
    return [[text.encode().decode() for text in batch] for batch in batches]


def take_turns(
    jobs: Mapping[str, Callable[[Sequence[str]], object]],
    batches: Sequence[Sequence[str]],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Seconds of the best pass of each job over all batches; every round begins with another one."""
    best = dict.fromkeys(jobs, float("inf"))
    names = list(jobs)
    for _ in range(rounds):
        for name in names:
            turn = clock()
            while clock() < turn + TURN:
                fresh = copied(batches)
                begin = clock()
                for batch in fresh:
                    jobs[name](batch)
                best[name] = min(best[name], clock() - begin)
        names = [*names[1:], names[0]]
    return best


def mismatches(job: Encode, data: bytes, batches: Sequence[Sequence[str]]) -> int:
    """How many texts have other ids, mask or type ids than `tokenizers` gives."""
    library = library_of(data)
    wrong = 0
    for batch in batches:
        ids, mask, types = job(batch)
        for row, encoding in enumerate(library.encode_batch_fast(batch)):
            kept = mask[row] == 1
            same = ids[row, kept].tolist() == encoding.ids and types[row, kept].tolist() == encoding.type_ids
            wrong += not same or not kept[: len(encoding.ids)].all()
    return wrong


def take_new_texts(jobs: Mapping[str, Encode], parts: Sequence[Sequence[Sequence[str]]]) -> dict[str, float]:
    """Seconds of each job for all parts but the first, which warms up; no part is ever seen twice."""
    total = dict.fromkeys(jobs, 0.0)
    names = list(jobs)
    for number, batches in enumerate(parts):
        for name in names:
            fresh = copied(batches)
            begin = time.process_time()
            for batch in fresh:
                jobs[name](batch)
            total[name] += (time.process_time() - begin) * (number > 0)
        names = [*names[1:], names[0]]
    return total


def ratio_line(name: str, ratio: float, asked: float | None) -> str:
    """One ratio beside what was asked for."""
    if asked is None:
        return f"    {name:<40}{ratio:>8.1f} x"
    return f"    {name:<40}{ratio:>8.1f} x   >= {asked:g}   {'reached' if ratio >= asked else 'NOT REACHED'}"


def open_jobs(data: bytes) -> tuple[Asked, dict[str, Encode]]:
    """What is asked of us for this tokenizer, and everyone's job; says which peers cannot do it."""
    kernel = open_kernel(data)
    asked = WORDPIECE if "WordPiece" in type(kernel).__name__ else BPE
    jobs: dict[str, Encode] = {OURS: our_job(kernel)}
    for peer in asked.peers:
        job = open_peer(peer, data)
        if isinstance(job, str):
            print(f"  {peer.name}: {' '.join(job.split())}")
        else:
            jobs[peer.name] = job
    return asked, jobs


def print_ratios(asked: Asked, seconds: Mapping[str, float], size: float, title: str) -> None:
    """Print everyone's speed, and ours beside what was asked for."""
    print(f"  {title}: {', '.join(f'{peer} {size / value:.1f}' for peer, value in seconds.items())} MB/s")
    others = {peer: seconds[peer] for peer in seconds if peer not in (OURS, LIBRARY.name, FAST.name)}
    print(ratio_line("times tokenizers", seconds[LIBRARY.name] / seconds[OURS], asked.library))
    print(ratio_line("times tokenizers, encode_batch_fast", seconds[FAST.name] / seconds[OURS], None))
    for peer in others:
        fastest = others[peer] == min(others.values())
        print(ratio_line(f"times {peer}", others[peer] / seconds[OURS], asked.fastest if fastest else None))


def measure(data: bytes, texts: list[str], rounds: int) -> int:
    """Print speeds, ratios and mismatches of one tokenizer on one corpus; return our mismatches."""
    asked, jobs = open_jobs(data)
    batches = batches_of(texts, BATCHES[-1])
    wrong = {
        peer: mismatches(job, data, batches) for peer, job in jobs.items() if peer not in (LIBRARY.name, FAST.name)
    }
    print(f"  texts with other ids than tokenizers: {', '.join(f'{peer} {count}' for peer, count in wrong.items())}")
    for count in BATCHES:
        seconds = take_turns(jobs, batches_of(texts, count), rounds)
        print_ratios(asked, seconds, megabytes(texts), f"batches of {count}")
    return wrong[OURS]


def measure_new(data: bytes, parts: list[list[str]]) -> None:
    """Print speeds and ratios of one tokenizer on texts that it has not seen: what a server gets."""
    asked, jobs = open_jobs(data)
    seconds = take_new_texts(jobs, [batches_of(part, BATCHES[0]) for part in parts])
    print_ratios(asked, seconds, sum(map(megabytes, parts[1:])), f"batches of {BATCHES[0]}")


def measure_own(name: str, data: bytes, texts: list[str], rounds: int) -> None:
    """Print what the further abilities of our path cost, against the plain job."""
    kernel = open_kernel(data)
    size = BATCHES[-1]
    batches = batches_of(texts, size)
    jobs: dict[str, Callable[[Sequence[str]], object]] = {
        "plain": our_job(kernel),
        "into kept buffers": kept_buffers_job(kernel, texts, size),
        "sorted by length": our_job(kernel, by_length=True),
        "with offsets": our_job(kernel, offsets=True),
    }
    seconds = take_turns(jobs, batches, rounds)
    # The time on the wall, in batches that are worth a second thread.
    threaded = {f"{count} thread(s)": our_job(kernel, threads=count) for count in (1, 2)}
    seconds |= take_turns(threaded, batches_of(texts, THREADED_BATCH), rounds, clock=time.perf_counter)
    for job, value in seconds.items():
        base = seconds["1 thread(s)" if job in threaded else "plain"]
        print(f"  {name}, {job:<22}{megabytes(texts) / value:>8.1f} MB/s{base / value:>8.2f} x")


def main() -> None:
    """Measure and print; exit with 1 if an id of ours is wrong."""
    parser = argparse.ArgumentParser(description="Measure text to padded batches, against peers.")
    parser.add_argument("--quick", action="store_true", help="an eighth of the texts, and fewer rounds")
    parser.add_argument("--only", help="one tokenizer: minilm, smollm2, gpt2 or llama3")
    arguments = parser.parse_args()
    if not HAS_NATIVE:
        sys.exit(f"the compiled kernels are not in use: {NATIVE_PROBLEM}")
    rounds = 2 if arguments.quick else 4
    found = corpora(share=8 if arguments.quick else 1)
    documents = large_documents()
    if arguments.only:
        documents = {arguments.only: documents[arguments.only]}
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    for corpus, (texts, note) in found.items():
        print(f"{corpus}: {len(texts)} texts, {megabytes(texts):.2f} MB; {note}")
    wrong = 0
    for name, data in documents.items():
        for corpus, (texts, _) in found.items():
            print(f"\n{name}, {corpus}")
            wrong += measure(data, texts, rounds)
    parts = new_texts(share=8 if arguments.quick else 1)
    for name, data in documents.items() if parts else ():
        print(f"\n{name}, multilingual, every text once: {sum(map(len, parts[1:]))} texts after {len(parts[0])} others")
        measure_new(data, parts)
    print("\nwhat else it does, on the English texts")
    english = found["english"][0]
    for name, data in documents.items():
        measure_own(name, data, english, rounds)
    print("\ndecoding the English texts")
    for name, data in documents.items():
        wrong += decode_rows(name, data, english, rounds)
    print("\nimages")
    image_rows(rounds)
    print(f"\n{wrong} mismatches of ours with tokenizers")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
