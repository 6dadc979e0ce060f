"""What does int8 cost on a real task, held against human labels?

MiniLM is fine-tuned on 23,703 short texts with human sentiment scores from -4 to 4: a classifier (negative below -0.5,
positive above 0.5, neutral between) and a regressor (score / 4). A seeded shuffle holds out a fifth of the texts.
Both models are packaged with 2,000 held-out texts as labelled texts; the figures come from the bundles' evidence. The
peers are the source model and the fp32 variant of the same bundle, on the same texts.

Models, texts and bundles go to `.work/bench/`. Run it with `PYTHONPATH=. python bench/sentiment.py [--skip-training]`;
training takes one to two minutes a model on two threads.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeonnx.bundle import open_bundle
from tests.support.models import minilm_directory
from tests.support.texts import vader_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT_POINTS = 0.3
WORK = Path(__file__).resolve().parents[1] / ".work" / "bench"
LABELS = ("negative", "neutral", "positive")
EDGE = 0.5
RANGE = 4.0
SEED = 17
HELD_OUT = 0.2
LABELLED = 2000
MAX_TOKENS = 64
BATCH = 32
POOL = 10
"""Batches that are sorted by length together."""
RATE = 5e-5
WARM_UP = 0.1
THREADS = 2
VARIANTS = ("cpu-fp32", "cpu-int8")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One model to train and package.

    Attributes:
        name: `classifier` or `regressor`.
        metric: The task metric, as the evidence calls it.
        agreement: The evidence's metric of agreement with the source model.
    """

    name: str
    metric: str
    agreement: str

    @property
    def directory(self) -> Path:
        """Where the trained model lies."""
        return WORK / f"sentiment-{self.name}"

    @property
    def texts(self) -> Path:
        """The held-out texts with their labels."""
        return WORK / f"sentiment-{self.name}.jsonl"

    def label(self, score: float) -> str | float:
        """The label that a human score stands for."""
        return score / RANGE if self.name == "regressor" else LABELS[int(score > -EDGE) + int(score > EDGE)]


JOBS = (
    Job(name="classifier", metric="accuracy", agreement="agreement"),
    Job(name="regressor", metric="pearson", agreement="score_correlation"),
)


def split_rows() -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
    """The labelled texts, (score, text), for training and those held out.

    A text that occurs twice is kept once, or it could be in both.
    """
    rows = list({text: (score, text) for score, text in vader_rows()}.values())
    random.Random(SEED).shuffle(rows)
    held = int(len(rows) * HELD_OUT)
    return rows[held:], rows[:held]


def write_texts(job: Job, rows: Sequence[tuple[float, str]]) -> None:
    """Write held-out texts as the packager reads them."""
    lines = [json.dumps({"text": text, "label": job.label(score)}) for score, text in rows[:LABELLED]]
    job.texts.write_text("\n".join(lines) + "\n", encoding="utf-8")


def train(job: Job, rows: Sequence[tuple[float, str]], steps: int) -> None:
    """Fine-tune MiniLM and save it with its tokenizer.

    Args:
        job: What to train.
        rows: (score, text).
        steps: Of `BATCH` texts each; the learning rate rises, then falls to zero.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

    torch.manual_seed(SEED)
    torch.set_num_threads(THREADS)
    if job.name == "regressor":
        heads: dict[str, Any] = {"num_labels": 1, "problem_type": "regression"}
    else:
        heads = {"id2label": dict(enumerate(LABELS)), "label2id": {name: index for index, name in enumerate(LABELS)}}
    start = str(minilm_directory())
    model = AutoModelForSequenceClassification.from_pretrained(start, **heads).train()
    tokenizer = AutoTokenizer.from_pretrained(start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = get_linear_schedule_with_warmup(optimizer, int(steps * WARM_UP), steps)
    for batch in training_batches(rows, steps):
        texts = [text for _, text in batch]
        inputs = tokenizer(texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        loss = model(**inputs, labels=torch.tensor(targets(job, [score for score, _ in batch]))).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval().save_pretrained(job.directory)
    tokenizer.save_pretrained(job.directory)


def training_batches(rows: Sequence[tuple[float, str]], steps: int) -> list[list[tuple[float, str]]]:
    """Batches of texts of similar length, in random order: padding would take half of the time."""
    shuffler = random.Random(SEED)
    chosen = shuffler.sample(list(rows), steps * BATCH)
    batches = []
    for start in range(0, len(chosen), BATCH * POOL):
        pool = sorted(chosen[start : start + BATCH * POOL], key=lambda row: len(row[1]))
        batches += [pool[place : place + BATCH] for place in range(0, len(pool), BATCH)]
    shuffler.shuffle(batches)
    return batches


def targets(job: Job, scores: Sequence[float]) -> list[int] | list[float]:
    """What the loss compares with: class indices, or values."""
    labels = [job.label(score) for score in scores]
    return [LABELS.index(label) if isinstance(label, str) else label for label in labels]  # type: ignore[return-value]


def baseline(job: Job, rows: Sequence[tuple[float, str]]) -> str:
    """What a model that has learnt nothing would reach."""
    if job.name == "regressor":
        return "a constant answer: pearson 0.00"
    _, counts = np.unique([job.label(score) for score, _ in rows], return_counts=True)
    return f"the majority class: accuracy {100 * counts.max() / counts.sum():.2f}"


def build(job: Job) -> tuple[Path, float]:
    """Package the trained model as a user would; the bundle and the seconds that it took."""
    options = ["--name", job.directory.name, "--version", "1.0.0", "--out", str(WORK), "--force", "--quiet"]
    command = [sys.executable, "-m", "edgeonnx.cli.main", "package", str(job.directory), "--texts", str(job.texts)]
    begin = time.perf_counter()
    result = subprocess.run([*command, *options], check=False, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"edgeonnx package failed with exit code {result.returncode}:\n{result.stderr}")
    return WORK / f"{job.directory.name}-1.0.0", time.perf_counter() - begin


def show(job: Job, bundle: Path, seconds: float) -> bool:
    """Print the bundle's figures; whether int8 keeps the limit."""
    evidence = open_bundle(bundle).evidence()
    found = {name: evidence.variants[name] for name in VARIANTS}
    source = found["cpu-fp32"].fidelity[f"source_{job.metric}"]
    print(f"{job.name}: {evidence.texts['labelled']} held-out labelled texts, packaged in {seconds:.0f} s")
    print(f"  {'':<12}{f'{job.metric} x 100':>16}{'drop, points':>16}{job.agreement:>20}{'kept in fp32':>14}")
    print(f"  {'source':<12}{100 * source:>16.2f}")
    for name, variant in found.items():
        figures = variant.fidelity
        row = f"{100 * figures[job.metric]:>16.2f}{figures['metric_drop']:>16.3f}{figures[job.agreement]:>20.5f}"
        print(f"  {name:<12}{row}{len(variant.kept):>14}")
    reached = found["cpu-int8"].fidelity["metric_drop"] <= LIMIT_POINTS
    print(f"  int8 must drop at most {LIMIT_POINTS:g} points: {'reached' if reached else 'NOT REACHED'}", flush=True)
    return reached


def main() -> None:
    """Train, package, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip-training", action="store_true", help="use the models of an earlier run")
    parser.add_argument("--only", choices=[job.name for job in JOBS], help="one of the two models")
    parser.add_argument("--steps", type=int, default=200, help=f"training steps of {BATCH} texts (default: 200)")
    parser.add_argument("--train-only", action="store_true", help="do not package")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    training, held = split_rows()
    reached = True
    for job in JOBS:
        if options.only not in (None, job.name):
            continue
        write_texts(job, held)
        if not options.skip_training:
            begin = time.perf_counter()
            train(job, training, options.steps)
            print(
                f"{job.name}: {options.steps} steps of {BATCH} texts in {time.perf_counter() - begin:.0f} s", end="; "
            )
            print(baseline(job, held[:LABELLED]), flush=True)
        if not options.train_only:
            reached &= show(job, *build(job))
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
