"""How fast does the agent decode SmolLM2-135M, against llama.cpp, ORT GenAI, and the least that ONNX Runtime takes?

Greedy, 128 new tokens after 21, two threads. Each runtime has a process of its own, which is stopped while another one
is measured; rounds go A B C, B C A, ...; a ratio is the median over the rounds of neighbouring figures. The peers:

- llama.cpp on the GGUF file (Q4_1), compiled for this machine, through the low-level calls of llama-cpp-python;
- ORT GenAI on what its own builder makes of the same weights, with its defaults, at equal bits;
- ORT GenAI on the variant of our bundle;
- the bare loop: `run_with_iobinding` and an `argmax` a token, on the agent's own session.

Then: 8 streams against one, the first token after 512 (never seen before, so that nothing is reused), memory, the
seconds and the memory that `edgeonnx package` takes, and how near int8, int4 and llama.cpp's own Q4_1 are to fp32.

Run it with `PYTHONPATH=. python bench/decode.py BUNDLE [--rounds N] [--only PART ...]`. The peers' environments and
models are made at the first run (`.work/peers`; llama.cpp is compiled, which takes some minutes; EDGEONNX_LLAMA_PYTHON
names the interpreter of an environment that has it already).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from bench.decode_figures import Goal, Measured, best_ratio, cell, ratio, rotated, row, weight_bytes
from bench.peers.environments import ROOT, PeerFailsError, make_environment
from bench.peers.language_models import genai_folder, gguf_file, huggingface_folder, opens_in_genai
from bench.peers.runtimes import Process
from edgeonnx.bundle import Bundle, open_bundle
from edgeonnx.evaluate.speed import machine
from edgeonnx.spec.manifest import Variant

PARTS = ("speed", "machine", "package", "quality")
BITS = (8, 4)
NEW_TOKENS = 128
PROMPT_TOKENS = 21
LONG_TOKENS = 512
STREAMS = 8
QUESTION = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
LLAMA = "llama"
SINGLE, EIGHT, FIRST, TOTAL = "tokens/s", "8 streams", "first of 512", "1 stream"

FASTER_THAN_LLAMA = {8: 1.4, 4: 2.0}
FASTER_THAN_GENAI = 1.5
FASTER_TOGETHER = 2.0
FIRST_TOKEN = 1.2
OVERHEAD = 1.05
MEMORY = 1.3
TOP1 = {8: 0.97, 4: 0.90}


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A runtime that is measured.

    Attributes:
        name: Its key.
        label: For people.
        command: Makes its command line; what it needs is made first.
        parts: What is measured of it.
    """

    name: str
    label: str
    command: Callable[[], list[str | Path]]
    parts: tuple[str, ...] = (SINGLE,)


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Token ids of what all runtimes are asked.

    Attributes:
        short: 21 tokens, always the same.
        text: Ids of a long text, from which prompts of 512 are cut.
        show: Text of some ids.
    """

    short: list[int]
    text: list[int] = field(repr=False)
    show: Callable[[Sequence[int]], str]

    def long(self, turn: int) -> list[int]:
        """512 tokens that begin like no prompt before."""
        start = (turn * 37) % (len(self.text) - LONG_TOKENS)
        return self.text[start : start + LONG_TOKENS]


def read_prompts(bundle: Bundle) -> Prompts:
    """Prompts in the bundle's own tokens."""
    tokenizer = Tokenizer.from_buffer(bundle.tokenizer_json())
    prose = (ROOT / "README.md").read_text(encoding="utf-8")
    short = tokenizer.encode(QUESTION, add_special_tokens=False).ids[:PROMPT_TOKENS]
    text = tokenizer.encode(prose, add_special_tokens=False).ids
    return Prompts(short=short, text=text, show=lambda ids: str(tokenizer.decode(list(ids))))


def variant_of(bundle: Bundle, bits: int) -> Variant | None:
    """The bundle's CPU variant of so many bits."""
    variants = bundle.manifest.entry_component.variants
    return next((each for each in variants if each.name == f"cpu-int{bits}"), None)


def contenders(bundle: Bundle, threads: int, *, spinning: bool) -> list[Contender]:
    """All runtimes, by the variants that the bundle has. Peers' threads spin while they wait, as their makers chose."""
    ours = ROOT / "bench" / "decode_ours.py"
    peer = ROOT / "bench" / "peers" / "genai_runtime.py"

    def own(kind: str, variant: Variant) -> Callable[[], list[str | Path]]:
        waiting = "spinning" if spinning else "blocking"
        return lambda: [sys.executable, ours, kind, bundle.root, variant.name, str(threads), waiting]

    def genai(folder: Callable[[], Path]) -> Callable[[], list[str | Path]]:
        return lambda: [sys.executable, peer, folder(), str(threads)]

    def built(bits: int) -> Callable[[], Path]:
        return lambda: genai_folder(huggingface_folder(gguf_file()), bits)

    def packed(variant: Variant) -> Callable[[], Path]:
        return lambda: _genai_variant(bundle, variant)

    found = [Contender(name=LLAMA, label="llama.cpp Q4_1", command=lambda: _llama(threads), parts=(SINGLE, FIRST))]
    for bits in BITS:
        variant = variant_of(bundle, bits)
        if variant is None:
            print(f"the bundle has no variant cpu-int{bits}", file=sys.stderr)
            continue
        kind = f"int{bits}"
        found += [
            Contender(
                name=f"ours-{bits}",
                label=f"edgeonnx {kind}",
                command=own("generator", variant),
                parts=(SINGLE, EIGHT, FIRST),
            ),
            Contender(name=f"bare-{bits}", label=f"bare loop, {kind}", command=own("bare", variant)),
            Contender(
                name=f"genai-{bits}",
                label=f"ORT GenAI, its own {kind}",
                command=genai(built(bits)),
                parts=(SINGLE, FIRST),
            ),
            Contender(
                name=f"packed-{bits}",
                label=f"ORT GenAI, our {kind}",
                command=genai(packed(variant)),
                parts=(SINGLE, FIRST),
            ),
        ]
    return found


def _llama(threads: int) -> list[str | Path]:
    python = os.environ.get("EDGEONNX_LLAMA_PYTHON") or make_environment("llama")
    return [python, ROOT / "bench" / "peers" / "llama_runtime.py", gguf_file(), str(threads)]


def _genai_variant(bundle: Bundle, variant: Variant) -> Path:
    folder = bundle.model_path(bundle.manifest.entry, variant).parent
    if not opens_in_genai(folder):
        raise PeerFailsError("the variant has no genai_config.json")
    return folder


@contextmanager
def started(
    every: Sequence[Contender], threads: int, found: dict[str, Measured]
) -> Iterator[dict[str, tuple[Contender, Process]]]:
    """Start all; one that fails is noted, and not measured."""
    with ExitStack() as stack:
        running = {}
        for contender in every:
            try:
                process = stack.enter_context(Process(contender.command(), threads))
            except PeerFailsError as error:
                found[contender.name].failed = str(error)
            else:
                running[contender.name] = (contender, process)
        yield running


def measure(contender: Contender, process: Process, prompts: Prompts, turn: int, found: Measured) -> None:
    """All figures of one runtime in one round.

    Raises:
        PeerFailsError: It fails.
    """
    run = process.ask("generate", prompts=[prompts.short], count=NEW_TOKENS)
    found.add(SINGLE, (NEW_TOKENS - 1) / run["rest"])
    found.add(TOTAL, NEW_TOKENS / run["seconds"])
    found.answers = run["answers"][0]
    if FIRST in contender.parts:
        found.add(FIRST, 1e3 * process.ask("generate", prompts=[prompts.long(turn)], count=2)["first"])
    if EIGHT in contender.parts:
        run = process.ask("generate", prompts=[prompts.short] * STREAMS, count=NEW_TOKENS)
        found.add(EIGHT, STREAMS * NEW_TOKENS / run["seconds"])
    found.memory = process.ask("memory")


def compare(every: Sequence[Contender], prompts: Prompts, rounds: int, threads: int) -> dict[str, Measured]:
    """Measure all in turn."""
    found = {each.name: Measured(label=each.label) for each in every}
    with started(every, threads, found) as running:
        for turn in range(rounds + 1):
            for name in rotated(list(running), turn):
                contender, process = running[name]
                into = found[name] if turn else Measured(label="")  # what a first run loads and compiles is no speed
                try:
                    measure(contender, process, prompts, turn, into)
                except PeerFailsError as error:
                    found[name].failed = str(error)
                    del running[name]
            print(".", end="" if turn < rounds else "\n", file=sys.stderr, flush=True)
    return found


def show_speed(found: dict[str, Measured]) -> None:
    """The table."""
    print(row("", ("tokens/s", "best", "1st of 512", "8 streams", "memory")))
    print(row("", ("median", "", "ms", "tokens/s", "MB")))
    for measured in found.values():
        if measured.failed is not None:
            print(f"{measured.label:<36}not measured: {measured.failed}")
            continue
        best = max(measured.blocks[SINGLE])
        figures = (measured.median(SINGLE), best, measured.median(FIRST), measured.median(EIGHT))
        grown = measured.memory["grown"] / 1e6
        print(row(measured.label, [*(cell(figure) for figure in figures), cell(grown, 0)]))


def show_answers(found: dict[str, Measured], prompts: Prompts) -> None:
    """Whether the runtime's answer is that of the bare loop on the same graph."""
    for bits in BITS:
        ours, bare = found.get(f"ours-{bits}"), found.get(f"bare-{bits}")
        if ours is None or bare is None or ours.answers is None or not isinstance(bare.answers, list):
            continue
        same = ours.answers == prompts.show(bare.answers)
        print(f"int{bits}: the generator's answer is {'that' if same else 'NOT that'} of the bare loop")


def speed_goals(found: dict[str, Measured], weights: dict[int, int]) -> list[Goal]:
    """What the speeds, and the memory, must reach."""
    goals = []

    def goal(what: str, value: float | None, bound: float, *, at_least: bool = True) -> None:
        if value is not None:
            goals.append(Goal(what=what, value=value, bound=bound, at_least=at_least))

    for bits, weight in weights.items():
        ours, genai = found[f"ours-{bits}"], found[f"genai-{bits}"]
        packed, bare, llama = found[f"packed-{bits}"], found[f"bare-{bits}"], found[LLAMA]
        if ours.failed is not None:
            continue
        kind = f"int{bits}"
        goal(f"{kind} over llama.cpp Q4_1", ratio(ours, llama, SINGLE), FASTER_THAN_LLAMA[bits])
        goal("  best over best", best_ratio(ours, llama, SINGLE, most=True), FASTER_THAN_LLAMA[bits])
        goal(f"{kind} over ORT GenAI, its own {kind}", ratio(ours, genai, SINGLE), FASTER_THAN_GENAI)
        goal(f"{kind} over ORT GenAI, our {kind}", ratio(ours, packed, SINGLE), FASTER_THAN_GENAI)
        goal(f"{kind}: 8 streams over one", ratio(ours, ours, EIGHT, TOTAL), FASTER_TOGETHER)
        first = [each for each in (genai, packed) if each.median(FIRST) is not None]
        for each in first:
            goal(f"{kind}: first of 512 over {each.label}", ratio(ours, each, FIRST), FIRST_TOKEN, at_least=False)
        goal(f"{kind}: time of a token over the bare loop", ratio(bare, ours, SINGLE), OVERHEAD, at_least=False)
        goal("  best over best", best_ratio(bare, ours, SINGLE, most=True), OVERHEAD, at_least=False)
        caches = ours.memory["caches"]
        what = f"{kind}: memory over weights ({weight / 1e6:.0f} MB) and caches ({caches / 1e6:.0f} MB)"
        goal(what, ours.memory["grown"] / (weight + caches), MEMORY, at_least=False)
    return goals


def show_machine(found: dict[str, Measured], weights: dict[int, int], threads: int) -> None:
    """Bytes of a token against what the machine can read."""
    from bench.decode_machine import bandwidth

    large = bandwidth(512 << 20, threads)
    print(f"{threads} threads read {large.read / 1e9:.1f} GB/s and copy {large.copied / 1e9:.1f} GB/s of 537 MB")
    for bits, weight in weights.items():
        again = bandwidth(weight, threads).read
        line = f"int{bits}: {weight / 1e6:.0f} MB of weights a token; read again and again at {again / 1e9:.1f} GB/s"
        speed = found[f"ours-{bits}"].median(SINGLE) if f"ours-{bits}" in found else None
        if speed is not None:
            line += (
                f"; at {speed:.0f} tokens/s it is {speed * weight / 1e9:.1f} GB/s, {speed * weight / again:.0%} of that"
            )
        print(line)


def main() -> None:
    """Measure, print, and say what is reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the first one, which is thrown away")
    parser.add_argument("--threads", type=int, default=2, help="threads, and cores, of each runtime (default: 2)")
    parser.add_argument("--spinning", action="store_true", help="our threads spin while they wait (runtime.spinning)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts (default: all)")
    options = parser.parse_args()
    bundle = open_bundle(options.bundle)
    entry = bundle.manifest.entry
    variants = {bits: variant for bits in BITS if (variant := variant_of(bundle, bits)) is not None}
    weights = {bits: weight_bytes(bundle.model_path(entry, variant)) for bits, variant in variants.items()}
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    goals: list[Goal] = []
    found: dict[str, Measured] = {}
    if "speed" in options.only:
        prompts = read_prompts(bundle)
        waiting = "spinning" if options.spinning else "not spinning"
        print(f"greedy, {NEW_TOKENS} tokens after {len(prompts.short)}, {options.threads} threads, ours {waiting}\n")
        every = contenders(bundle, options.threads, spinning=options.spinning)
        found = compare(every, prompts, options.rounds, options.threads)
        show_speed(found)
        show_answers(found, prompts)
        goals += speed_goals(found, weights)
    if "machine" in options.only:
        print()
        show_machine(found, weights, options.threads)
    if "package" in options.only:
        from bench.decode_package import package_goals

        goals += package_goals(gguf_file())
    if "quality" in options.only:
        from bench.decode_quality import quality_goals

        reached = {variant.name: TOP1[bits] for bits, variant in variants.items()}
        goals += quality_goals(bundle, reached, gguf_file(), lambda: _llama(options.threads), options.threads)
    print()
    for goal in goals:
        print(goal.line())


if __name__ == "__main__":
    main()
