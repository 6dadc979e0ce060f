"""How near a quantized model's next-token distributions are to fp32.

Of our variants, the bundle's evidence says it; llama.cpp is measured here, alike.

llama.cpp reads the very file that the source was dequantized from, so what it loses it loses by its arithmetic alone.
It is compared with the same source model, over the same windows of text, by the same code as the bundle's variants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.decode_figures import Goal, row
from bench.peers.environments import PeerFailsError
from bench.peers.runtimes import Process
from edgeonnx.bundle import Bundle
from edgeonnx.evaluate.language import WINDOW, build_language_reference, cut_windows, measure_language
from edgeonnx.export.decoder.load import load_decoder
from edgeonnx.export.source import locate
from edgeonnx.export.tasks import plan_task
from edgeonnx.pipeline.texts import passages

METRICS = ("top1", "kl_mean", "perplexity", "source_perplexity")


def quality_goals(
    bundle: Bundle,
    reached: Mapping[str, float],
    gguf: Path,
    llama: Callable[[], Sequence[str | Path]],
    threads: int,
) -> list[Goal]:
    """Print the table; the goals are those of our variants: what `reached` asks of each, by name."""
    evidence = bundle.evidence()
    positions = evidence.texts.get("positions", "")
    print(f"\n{row('against fp32', METRICS)}{'positions':>12}")
    goals = []
    for name, bound in reached.items():
        metrics = evidence.variants[name].fidelity
        print(row(f"edgeonnx {name}", [f"{metrics[metric]:.4f}" for metric in METRICS]) + f"{positions:>12}")
        goals.append(Goal(what=f"{name}: top-1 agreement", value=metrics["top1"], bound=bound, digits=4))
    try:
        found, counted = llama_quality(gguf, llama(), threads)
    except PeerFailsError as error:
        print(f"llama.cpp Q4_1: not measured: {error}")
    else:
        print(row("llama.cpp Q4_1", [f"{found[name]:.4f}" for name in METRICS]) + f"{counted:>12}")
    return goals


def llama_quality(gguf: Path, command: Sequence[str | Path], threads: int) -> tuple[dict[str, float], int]:
    """The same metrics of llama.cpp, and over how many positions.

    Raises:
        PeerFailsError: It does not run.
    """
    source = locate(str(gguf))
    loaded = load_decoder(source, plan_task(source, None), max_length=None)
    windows = cut_windows(loaded.tokenize(passages()), width=WINDOW)
    with TemporaryDirectory() as folder, Process(command, threads) as process:
        reference = build_language_reference(loaded.logits, windows, Path(folder))
        file = Path(folder, "llama.npy")

        def logits(ids: np.ndarray) -> np.ndarray:
            process.ask("logits", ids=ids[0].tolist(), file=str(file))
            return np.load(file)[None]

        found = measure_language(logits, reference, lambda _: "", worst=0)
        return found.metrics, reference.positions
