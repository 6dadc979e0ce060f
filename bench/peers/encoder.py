"""The int8 graph of a bundle as someone would run it by hand: `tokenizers`, `onnxruntime`, NumPy.

It is imported in the peers' own environments, so it needs nothing of edgeonnx.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

MAX_LENGTH = 256
ROWS = 16


class Encoder:
    """Texts to embeddings; safe in any thread.

    Args:
        folder: Holds `model.onnx` and `tokenizer.json`.
        threads: Threads of one run.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_LENGTH)
        self._tokenizer.enable_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )

    def encode(self, texts: list[str]) -> np.ndarray:
        """Float32 (texts, dimension); sorted by length and a few rows at a time, as sentence-transformers does it."""
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        parts = [order[start : start + ROWS] for start in range(0, len(order), ROWS)]
        rows = np.concatenate([self._run([texts[row] for row in part]) for part in parts])
        found = np.empty_like(rows)
        found[order] = rows
        return found

    def _run(self, texts: list[str]) -> np.ndarray:
        encodings = self._tokenizer.encode_batch_fast(texts)
        inputs = {
            "input_ids": np.array([encoding.ids for encoding in encodings], dtype=np.int64),
            "attention_mask": np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64),
            "token_type_ids": np.array([encoding.type_ids for encoding in encodings], dtype=np.int64),
        }
        found: np.ndarray = self._session.run(["sentence_embedding"], inputs)[0]
        return found
