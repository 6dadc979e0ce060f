"""What does an update cost on the wire? Real fine-tunes of MiniLM, packaged, published and counted as a device fetches.

Four updates, each built with `--base` on the bundle that the device has, published by the real publisher, with deltas:

- head: the sentiment classifier of `bench/sentiment.py`, its encoder frozen and its linear head trained anew;
- fine-tune: all weights of MiniLM, 250 steps of 32 texts at 2e-5 (AdamW), on human sentiment scores;
- the same, packaged without `--base`: the peer, made with the same tools in the same run;
- unchanged: the same model under a new version.

A device fetches the contents that it lacks (of each the smaller one of blob and delta), the signed release, the
channel, and the metadata that changed. It holds the whole bundle, or one variant and what all variants share; shares
are of the same files compressed whole.

Models and bundles go to `.work/finetune/`. Training takes some minutes and is done once; bundles are built anew. Run it
with `PYTHONPATH=. python bench/update_bytes.py [--reuse-bundles]`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.deltas import parts
from bench.sentiment import (
    BATCH,
    JOBS,
    MAX_TOKENS,
    RANGE,
    SEED,
    THREADS,
    Job,
    split_rows,
    targets,
    train,
    training_batches,
)
from edgeonnx.bundle import Bundle, open_bundle
from edgeonnx.repository.publish import DeltaBase
from edgeonnx.spec.release import blob_path, channel_target, release_target
from tests.support.models import minilm_directory
from tests.support.repository import TestRepository

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeonnx.repository import Published

WORK = Path(__file__).resolve().parents[1] / ".work" / "finetune"
STEPS = 250
RATE = 2e-5
HEAD_RATE = 1e-3
"""The head of the fine-tune starts from noise and is thrown away: it learns fast, and the steps go to the encoder."""
MEASURED_TEXTS = 2000
CLASSIFIER_STEPS = 200
HEAD_TEXTS = 4000
HEAD_STEPS = 400

WHOLE, INT8, FP32 = "whole bundle", "encoder/cpu-int8 alone", "encoder/cpu-fp32 alone"
MOST_HEAD = 0.02
MOST_FINE_TUNE = 0.15
MOST_UNCHANGED = 20_000
FIDELITY = ("cosine_mean", "cosine_p1", "cosine_min")
HEAD_TENSORS = {"model.classifier.weight", "model.classifier.bias"}


@dataclass(frozen=True, kw_only=True)
class Update:
    """One published update.

    Attributes:
        name: What it is.
        old: The bundle that the device has.
        new: The bundle that it gets.
        published: What publishing it did.
        metadata: Bytes of signed metadata that it fetches: TUF's, the release, the channel.
    """

    name: str
    old: Bundle
    new: Bundle
    published: Published
    metadata: int

    def fetched(self, folder: Path, part: str) -> tuple[int, int]:
        """Bytes that a device fetches which holds a part of the old bundle, and those of the new part, compressed."""
        has, wants = parts(self.old)[part], parts(self.new)[part]
        whole = {digest: (folder / blob_path(digest)).stat().st_size for digest in wants}
        lacks = {digest: whole[digest] for digest in wants - has}
        for delta in self.published.release.deltas:
            if delta.target in lacks and delta.base in has:
                lacks[delta.target] = min(lacks[delta.target], delta.size)
        return self.metadata + sum(lacks.values()), sum(whole.values())


def main() -> None:
    """Train what is not there, build, publish, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reuse-bundles", action="store_true", help="take the bundles of an earlier run")
    reuse = parser.parse_args().reuse_bundles
    WORK.mkdir(parents=True, exist_ok=True)
    fine_tuned, heads = train_all()
    start = minilm_directory()
    assert start is not None
    first = build(start, "minilm", "1.0.0", reuse=reuse)
    unchanged = build(start, "minilm", "1.0.1", first, reuse=reuse)
    kept = build(fine_tuned, "minilm", "1.1.0", first, reuse=reuse)
    anew = build(fine_tuned, "minilm", "1.2.0", reuse=reuse)
    head = build(heads[0], "head", "1.0.0", reuse=reuse)
    new_head = build(heads[1], "head", "1.1.0", head, reuse=reuse)
    check_head_only(new_head)
    with TemporaryDirectory() as folder:
        repository = TestRepository.create(Path(folder) / "repository")
        print("publishing ...", flush=True)
        for bundle in (first, head):
            repository.publish(bundle.root)
        updates = [
            publish(repository, "head", head, new_head),
            publish(repository, "fine-tune", first, kept),
            publish(repository, "fine-tune without --base", first, anew),
            publish(repository, "unchanged", first, unchanged),
        ]
        reached = show(updates, repository.path)
    show_fidelity({"1.0.0": first, "fine-tune": kept, "fine-tune without --base": anew})
    sys.exit(0 if reached else 1)


def show(updates: Sequence[Update], folder: Path) -> bool:
    """Print what each update costs, and whether the bounds are kept."""
    print(f"{'update':<26}{'device holds':<24}{'whole, MB':>10}{'fetches, MB':>13}{'share':>9}  asked")
    reached = True
    for update in updates:
        for part in (WHOLE, INT8, FP32):
            fetched, whole = update.fetched(folder, part)
            asked, kept = judged(update.name, part, fetched, whole)
            reached &= kept
            figures = f"{whole / 1e6:>10.2f}{fetched / 1e6:>13.4f}{100 * fetched / whole:>8.2f} %"
            print(f"{update.name:<26}{part:<24}{figures}  {asked}")
        print(f"{'':<26}of it signed metadata: {update.metadata:,} bytes")
    return reached


def judged(name: str, part: str, fetched: int, whole: int) -> tuple[str, bool]:
    """The bound on an update, in words, and whether it is kept."""
    bounds: dict[tuple[str, str], tuple[str, float]] = {
        ("head", WHOLE): (f"at most {MOST_HEAD:.0%}", MOST_HEAD * whole),
        ("head", INT8): (f"at most {MOST_HEAD:.0%}", MOST_HEAD * whole),
        ("fine-tune", INT8): (f"at most {MOST_FINE_TUNE:.0%}", MOST_FINE_TUNE * whole),
        ("unchanged", WHOLE): (f"at most {MOST_UNCHANGED / 1e3:g} KB", MOST_UNCHANGED),
        ("unchanged", INT8): (f"at most {MOST_UNCHANGED / 1e3:g} KB", MOST_UNCHANGED),
    }
    if (name, part) not in bounds:
        return "", True
    words, most = bounds[name, part]
    return f"{words}: {'reached' if fetched <= most else 'NOT REACHED'}", fetched <= most


def show_fidelity(bundles: dict[str, Bundle]) -> None:
    """Print what int8 costs in fidelity, each against its own source model."""
    print(f"{'cpu-int8 against its source':<30}{''.join(f'{name:>14}' for name in FIDELITY)}{'kept in fp32':>14}")
    for name, bundle in bundles.items():
        evidence = bundle.evidence()
        found = evidence.variants["cpu-int8"]
        figures = "".join(f"{found.fidelity[metric]:>14.5f}" for metric in FIDELITY)
        print(f"{name:<30}{figures}{len(found.kept):>14}")
        base: Any = evidence.source.get("base")
        if base is not None:
            facts = base["variants"]["cpu-int8"]
            scales = f"{facts['new_weight_scales']} of {facts['weight_scales']} weight scales new"
            print(f"{'':<30}{facts['recipe']}; {scales}")


def check_head_only(bundle: Bundle) -> None:
    """All tensors but the head's must be the same bytes in both variants, or the comparison is of something else."""
    base: Any = bundle.evidence().source["base"]
    for name, facts in base["variants"].items():
        if facts["changed_tensors"] == 0 or not set(facts["changed"]) <= HEAD_TENSORS:
            sys.exit(f"{name}: expected that nothing but the head changed, found {facts['changed']}")


def publish(repository: TestRepository, name: str, old: Bundle, new: Bundle) -> Update:
    """Publish an update with deltas from the old bundle, and count the metadata that is new."""
    before = state_of(repository.path / "metadata")
    published = repository.publish(new.root, deltas=DeltaBase(version=old.manifest.version))
    after = state_of(repository.path / "metadata")
    signed = sum(len(data) for file, data in after.items() if before.get(file) != data)
    targets = (release_target(new.manifest.name, new.manifest.version), channel_target("stable"))
    signed += sum(newest(repository.path, target) for target in targets)
    return Update(name=name, old=old, new=new, published=published, metadata=signed)


def state_of(folder: Path) -> dict[str, bytes]:
    """The files of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def newest(repository: Path, target: str) -> int:
    """Bytes of a target's newest file; its name begins with its digest."""
    folder, _, name = target.rpartition("/")
    files = (repository / "targets" / folder).glob(f"*.{name}")
    return max(files, key=lambda path: path.stat().st_mtime_ns).stat().st_size


def build(source: Path, name: str, version: str, base: Bundle | None = None, *, reuse: bool) -> Bundle:
    """Package a model as a user would."""
    out = WORK / "bundles"
    path = out / f"{name}-{version}"
    if not (reuse and path.is_dir()):
        print(f"packaging {path.name} ...", flush=True)
        options = ["--name", name, "--version", version, "--out", str(out), "--force", "--quiet"]
        follow = [] if base is None else ["--base", str(base.root)]
        command = [sys.executable, "-m", "edgeonnx.cli.main", "package", str(source), *options, *follow]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"edgeonnx package failed with exit code {result.returncode}:\n{result.stderr}")
    return open_bundle(path)


def train_all() -> tuple[Path, list[Path]]:
    """The fine-tuned model, and the classifier with its old and its new head; what is there already is taken."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    fine_tuned, new_head = WORK / "minilm-sentiment", WORK / "new-head"
    if not fine_tuned.is_dir():
        print(f"training all weights for {STEPS} steps ...", flush=True)
        print(f"correlation with human sentiment on held-out texts: {fine_tune(fine_tuned):.3f}", flush=True)
    classifier = JOBS[0]
    if not classifier.directory.is_dir():
        print(f"training the classifier for {CLASSIFIER_STEPS} steps ...", flush=True)
        train(classifier, split_rows()[0], CLASSIFIER_STEPS)
    if not new_head.is_dir():
        print("training its head anew ...", flush=True)
        before, after = train_head(classifier, new_head)
        print(f"accuracy on held-out texts: {before:.3f} before, {after:.3f} with the new head", flush=True)
    return fine_tuned, [classifier.directory, new_head]


def fine_tune(folder: Path) -> float:
    """Fine-tune all weights of MiniLM on human sentiment and save it as a sentence-transformers directory.

    The loss is the squared error of a linear head on the mean of the token vectors; the head is not saved.

    Args:
        folder: Is made when the model is complete.

    Returns:
        Pearson's correlation with the human scores on held-out texts.
    """
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.manual_seed(SEED)
    torch.set_num_threads(THREADS)
    training, held_out = split_rows()
    start = minilm_directory()
    assert start is not None
    encoder = AutoModel.from_pretrained(start).train()
    tokenizer = AutoTokenizer.from_pretrained(start)
    head = torch.nn.Linear(encoder.config.hidden_size, 1)
    optimizer = torch.optim.AdamW(
        [{"params": encoder.parameters(), "lr": RATE}, {"params": head.parameters(), "lr": HEAD_RATE}]
    )

    def predict(texts: Sequence[str]) -> torch.Tensor:
        inputs = tokenizer(list(texts), padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        mask = inputs["attention_mask"].unsqueeze(-1)
        pooled = (encoder(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)
        return head(pooled).squeeze(-1)

    for batch in training_batches(training, STEPS):
        scores = torch.tensor([score / RANGE for score, _ in batch])
        loss = torch.nn.functional.mse_loss(predict([text for _, text in batch]), scores)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    encoder.eval()
    measured = held_out[:MEASURED_TEXTS]
    with torch.no_grad():
        rows = [measured[place : place + BATCH] for place in range(0, len(measured), BATCH)]
        found = torch.cat([predict([text for _, text in batch]) for batch in rows]).numpy()
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(start, partial)
    encoder.save_pretrained(partial)
    partial.rename(folder)
    return float(np.corrcoef(found, [score for score, _ in measured])[0, 1])


def train_head(job: Job, folder: Path) -> tuple[float, float]:
    """Train the linear head of a classifier from noise, its encoder frozen, and save the model.

    Args:
        job: The classifier.
        folder: Is made when the model is complete.

    Returns:
        Accuracy on held-out texts with the old head and with the new one.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(SEED)
    torch.set_num_threads(THREADS)
    model = AutoModelForSequenceClassification.from_pretrained(job.directory).eval()
    tokenizer = AutoTokenizer.from_pretrained(job.directory)

    def pooled(rows: Sequence[tuple[float, str]]) -> tuple[torch.Tensor, torch.Tensor]:
        found = []
        for place in range(0, len(rows), BATCH):
            texts = [text for _, text in rows[place : place + BATCH]]
            inputs = tokenizer(texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
            found.append(model.base_model(**inputs).pooler_output)
        return torch.cat(found), torch.tensor(targets(job, [score for score, _ in rows]))

    def accuracy() -> float:
        return float((model.classifier(held_out).argmax(-1) == expected).float().mean())

    training, held = split_rows()
    with torch.no_grad():
        features, labels = pooled(training[:HEAD_TEXTS])
        held_out, expected = pooled(held[:MEASURED_TEXTS])
        before = accuracy()
    model.classifier.reset_parameters()
    optimizer = torch.optim.AdamW(model.classifier.parameters(), lr=HEAD_RATE)
    for _ in range(HEAD_STEPS):
        loss = torch.nn.functional.cross_entropy(model.classifier(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)
    with torch.no_grad():
        return before, accuracy()


if __name__ == "__main__":
    main()
