"""What does an update cost on the wire? MiniLM fine-tuned, published, and counted as a device would fetch it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.sentiment import BATCH, MAX_TOKENS, RANGE, SEED, THREADS, split_rows, training_batches
from tests.support.models import minilm_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

WORK = Path(__file__).resolve().parents[1] / ".work" / "finetune"
STEPS = 250
RATE = 2e-5
HEAD_RATE = 1e-3
"""The head starts from noise and is thrown away: it learns faster than the encoder, so that the steps go to that."""
MEASURED_TEXTS = 2000


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


if __name__ == "__main__":
    WORK.mkdir(parents=True, exist_ok=True)
    print(fine_tune(WORK / "minilm-sentiment"))
