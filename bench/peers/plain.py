"""What people write first: FastAPI around sentence-transformers, in fp32. Started as `plain.py MODEL PORT THREADS`."""

from __future__ import annotations

import sys

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

torch.set_num_threads(int(sys.argv[3]))
model = SentenceTransformer(sys.argv[1], device="cpu")
app = FastAPI()


class Request(BaseModel):
    """Texts to embed."""

    input: str | list[str]


@app.post("/v1/embeddings")
def embed(request: Request) -> dict[str, list[dict[str, list[float]]]]:
    """FastAPI runs this in its thread pool, as it is no coroutine."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    return {"data": [{"embedding": row} for row in model.encode(texts, show_progress_bar=False).tolist()]}


@app.get("/ready")
def ready() -> dict[str, bool]:
    """For the bench, which waits for it."""
    return {"ready": True}


uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
