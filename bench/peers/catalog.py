"""The peers: how each is started, asked and read. Settings are those that its documentation recommends for a CPU.

Each gets two threads in all, as edgeonnx does: the torch servers run one batch over both; the ONNX servers run two
batches at a time with one thread each wherever they can do that (it is the fastest for this model), and with two
threads where they run one at a time.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.peers.environments import PeerFailsError, make_environment
from bench.peers.models import hidden_folder, int8_folder
from tests.support.texts import minilm_directory

HERE = Path(__file__).resolve().parent
THREADS = 2
Vectors = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Api:
    """How a server is asked.

    Attributes:
        path: Where requests go.
        body: The JSON document for texts.
        vectors: The embeddings in an answer, float32 (texts, dimension).
    """

    path: str
    body: Callable[[Sequence[str]], object]
    vectors: Callable[[Any], Vectors]


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a server is started.

    Attributes:
        command: Its command line.
        environment: Variables that it needs beyond ours.
        folder: Its working directory.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = HERE


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A server.

    Attributes:
        name: For `--only`.
        label: In the table.
        api: How it is asked.
        start: Makes what it needs (environment, model) and says how it is started: of the bundle, a port, and a
            folder for its settings. May raise PeerFailsError.
    """

    name: str
    label: str
    api: Api
    start: Callable[[Path, int, Path], Start]


def one_or_many(texts: Sequence[str]) -> object:
    """A text alone, or the list."""
    return texts[0] if len(texts) == 1 else list(texts)


def _openai_vectors(answer: Any) -> Vectors:
    rows = [item["embedding"] for item in answer["data"]]
    if isinstance(rows[0], str):
        return np.stack([np.frombuffer(base64.b64decode(row), dtype=np.float32) for row in rows])
    return np.array(rows, dtype=np.float32)


def openai_api(path: str, model: str, encoding: str = "base64") -> Api:
    """OpenAI's embeddings."""
    return Api(
        path=path,
        body=lambda texts: {"model": model, "input": one_or_many(texts), "encoding_format": encoding},
        vectors=_openai_vectors,
    )


def _inference_body(texts: Sequence[str]) -> object:
    tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}
    return {"inputs": [{**tensor, "parameters": {"content_type": "str"}}]}


def _inference_vectors(answer: Any) -> Vectors:
    output = answer["outputs"][0]
    return np.array(output["data"], dtype=np.float32).reshape(output["shape"])


def _plain(_bundle: Path, port: int, _folder: Path) -> Start:
    if importlib.util.find_spec("sentence_transformers") is None:
        raise PeerFailsError("sentence-transformers is not installed beside edgeonnx: pip install 'edgeonnx[test]'")
    command = (sys.executable, str(HERE / "plain.py"), str(minilm_directory()), str(port), str(THREADS))
    return Start(command=command, environment=_threads(THREADS))


def _threads(count: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(count), "TOKENIZERS_PARALLELISM": "false"}


def _infinity(model: Path, engine: str, port: int, *more: str) -> Start:
    binary = make_environment("infinity").parent / "infinity_emb"
    served = ("--model-id", str(model), "--served-model-name", "minilm", "--engine", engine, "--device", "cpu")
    # 32 is its default; its queue is sorted by length, so that such a batch has little padding.
    settings = ("--batch-size", "32", "--dtype", "float32", "--port", str(port), "--host", "127.0.0.1")
    quiet = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    return Start(
        command=(str(binary), "v2", *served, *settings, "--log-level", "error", "--no-model-warmup", *more),
        environment={**quiet, **_threads(THREADS)},
    )


def _infinity_torch(_bundle: Path, port: int, _folder: Path) -> Start:
    # As infinity itself recommends for BERT: BetterTransformer, and no torch.compile, which it does not go with.
    return _infinity(minilm_directory(), "torch", port, "--no-compile", "--bettertransformer")


def _infinity_onnx(bundle: Path, port: int, _folder: Path) -> Start:
    return _infinity(hidden_folder(bundle), "optimum", port, "--pooling-method", "mean")


def _mlserver(bundle: Path, port: int, folder: Path) -> Start:
    python = make_environment("mlserver")
    settings = {
        "http_port": port,
        "grpc_port": port + 1,
        "metrics_port": port + 2,
        "host": "127.0.0.1",
        "debug": False,
        "gzip_enabled": False,
        # Its batcher runs several batches at a time, in threads; worker processes would pickle each batch twice.
        "parallel_workers": 0,
    }
    model = {
        "name": "minilm",
        "implementation": "mlserver_runtime.Embeddings",
        # Tried: 8, 16, 32 requests; 1 to 5 ms. Waiting longer only slowed requests that came alone.
        "max_batch_size": 16,
        "max_batch_time": 0.002,
        "parameters": {"extra": {"folder": str(int8_folder(bundle)), "threads": 1, "runs": THREADS}},
    }
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "model-settings.json").write_text(json.dumps(model), encoding="utf-8")
    command = (str(python.parent / "mlserver"), "start", str(folder))
    return Start(command=command, environment={"PYTHONPATH": str(HERE), **_threads(1)}, folder=folder)


def _litserve(bundle: Path, port: int, _folder: Path) -> Start:
    # Two workers, each a process with one thread and its own copy of the model, fed by its faster queue. Tried: batches
    # of 4, 8 and 16 requests, 0 to 5 ms, one worker with two threads; none was faster.
    arguments = (str(int8_folder(bundle)), str(port), str(THREADS), "1", "8", "0.002")
    python = make_environment("litserve")
    return Start(command=(str(python), str(HERE / "litserve_server.py"), *arguments), environment=_threads(1))


FLOATS = Api(path="/v1/embeddings", body=lambda texts: {"input": one_or_many(texts)}, vectors=_openai_vectors)
INFERENCE = Api(path="/v2/models/minilm/infer", body=_inference_body, vectors=_inference_vectors)

PLAIN = Peer(name="plain", label="FastAPI + sentence-transformers, fp32", api=FLOATS, start=_plain)
PEERS = (
    PLAIN,
    Peer(
        name="infinity-torch",
        label="infinity 0.0.78, torch fp32",
        api=openai_api("/embeddings", "minilm"),
        start=_infinity_torch,
    ),
    Peer(
        name="infinity-onnx",
        label="infinity 0.0.78, ONNX int8",
        api=openai_api("/embeddings", "minilm"),
        start=_infinity_onnx,
    ),
    Peer(name="mlserver", label="MLServer 1.7.1, ONNX int8", api=INFERENCE, start=_mlserver),
    Peer(name="litserve", label="LitServe 0.2.19, ONNX int8", api=openai_api("/v1/embeddings", "x"), start=_litserve),
)


def environment(start: Start) -> dict[str, str]:
    """The variables of a server's process: ours, without the path to our packages."""
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**ours, **start.environment}
