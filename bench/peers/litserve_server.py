"""The int8 graph in LitServe, batched. Started as `litserve_server.py FOLDER PORT WORKERS THREADS BATCH TIMEOUT`.

Processes and batches as LitServe's guide to batching has it; the answers are base64, as are those of edgeonnx.
"""

from __future__ import annotations

import base64
import sys
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import litserve
import numpy as np
from encoder import Encoder

FOLDER, PORT, WORKERS, THREADS, BATCH, TIMEOUT = sys.argv[1:]


class Embeddings(litserve.LitAPI):
    """A request is a text or a list of texts; a batch is several requests."""

    def setup(self, _device: str) -> None:
        """Open the model, once in each worker."""
        self.encoder = Encoder(Path(FOLDER), int(THREADS))

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # LitServe reads an annotation as a schema
        """The texts of a request."""
        texts = request["input"]
        return [texts] if isinstance(texts, str) else texts

    def batch(self, inputs: list[list[str]]) -> list[list[str]]:
        """The requests stay apart, as their sizes are needed to take the answer apart."""
        return inputs

    def predict(self, inputs: list[list[str]]) -> list[np.ndarray]:
        """One run for all texts."""
        rows = self.encoder.encode([text for texts in inputs for text in texts])
        ends = accumulate((len(texts) for texts in inputs), initial=0)
        return [rows[start:end] for start, end in pairwise(ends)]

    def unbatch(self, output: list[np.ndarray]) -> list[np.ndarray]:
        """An array of rows for each request."""
        return output

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        """Base64 of float32, as OpenAI's clients ask for."""
        return {"data": [{"embedding": base64.b64encode(row.tobytes()).decode()} for row in output]}


if __name__ == "__main__":
    api = Embeddings(max_batch_size=int(BATCH), batch_timeout=float(TIMEOUT), api_path="/v1/embeddings")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=int(WORKERS), timeout=120, fast_queue=True)
    server.run(host="127.0.0.1", port=int(PORT), log_level="error", generate_client_file=False)
