"""What does the agent add to a request, beyond tokenizing and `InferenceSession.run`?

One text a request at concurrency 1, over one kept-alive connection on loopback, from this process to an agent in a
process of its own; real texts of mixed length. The peer is the least that must be done: the same bundle, tokenized and
run in this process, in turn with blocks of requests. The server's own figures come from its `Server-Timing` header;
client latency also holds what the header cannot: parsing HTTP, sending, two wake-ups, and this client.

Run it with `PYTHONPATH=. python bench/serving.py BUNDLE [--requests N]`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import socket
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from device_agent.config import AgentConfig
from device_agent.inference.processing import TextModel
from device_agent.models import load_model
from tests.support.agent import Agent
from tests.support.texts import vader_texts

# Served and in-process texts come in turn, in blocks: one after the other, each would find the caches full of the
# other process's weights, which no server meets.
BLOCK = 50
WARM_UP = 5
LIMIT_MS = 1.0
Figures = TypeVar("Figures")
TIMING = re.compile(r"(\w+);dur=([\d.]+)")


class Client:
    """One connection that asks for embeddings."""

    def __init__(self, address: str, model: str, encoding: str) -> None:
        host, port = address.split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fields = {"model": model, "encoding_format": encoding}

    def ask(self, text: str) -> dict[str, float]:
        """One request: its latency and the server's parts, in milliseconds."""
        body = json.dumps({**self._fields, "input": text}).encode()
        begin = time.perf_counter()
        self._connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        response.read()
        latency = (time.perf_counter() - begin) * 1e3
        if response.status != 200:
            raise SystemExit(f"the agent answered {response.status}")
        parts = {name: float(value) for name, value in TIMING.findall(response.headers["Server-Timing"])}
        parts["added"] = parts["total"] - parts["tokenize"] - parts["infer"]
        return {"latency": latency, **parts}


def bare(model: TextModel, text: str) -> float:
    """Milliseconds to tokenize and run in this process."""
    begin = time.perf_counter()
    model.run(model.text.tensors(model.text.encode([text])), None)
    return (time.perf_counter() - begin) * 1e3


def sample(count: int) -> list[str]:
    """Real texts, drawn with a fixed seed."""
    texts = vader_texts()
    return [texts[index] for index in np.random.default_rng(7).integers(0, len(texts), count)]


def measure(bundle: Path, count: int, encoding: str, threads: int) -> dict[str, list[float]]:
    """Ask and run in turn; every figure of every request by name."""
    config = AgentConfig(threads=threads)
    loaded = load_model(bundle, config)
    found: dict[str, list[float]] = {}
    texts = sample(count)
    with Agent(bundle=bundle, arguments=("--threads", str(threads))) as agent:
        client = Client(agent.address, loaded.manifest.name, encoding)
        for start in range(0, count, BLOCK):
            block = texts[start : start + BLOCK]
            for figures in after_warm_up(client.ask, block):
                for name, value in figures.items():
                    found.setdefault(name, []).append(value)
            found.setdefault("bare", []).extend(after_warm_up(partial(bare, loaded.model), block))
    return found


def after_warm_up(measured: Callable[[str], Figures], block: list[str]) -> list[Figures]:
    """The figures of a block, after some texts of which the figures are thrown away."""
    for text in block[:WARM_UP]:
        measured(text)
    return [measured(text) for text in block]


ROWS = (
    ("latency", "client latency"),
    ("total", "  in the server, in all"),
    ("tokenize", "    tokenizing"),
    ("infer", "    InferenceSession.run"),
    ("added", "    added by the server"),
    ("bare", "tokenize and run, in process"),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--requests", type=int, default=1000, help="requests (default: 1000)")
    parser.add_argument("--encoding", choices=("float", "base64"), default="base64", help="of the embeddings")
    parser.add_argument("--threads", type=int, default=AgentConfig().threads, help="threads of one run")
    options = parser.parse_args()
    found = measure(options.bundle, options.requests, options.encoding, options.threads)
    print(f"{options.requests} requests of one text, concurrency 1, {options.threads} threads, {options.encoding}")
    print(f"{'milliseconds':<32}{'median':>9}{'p90':>9}{'p99':>9}")
    for name, label in ROWS:
        percentiles = [float(np.percentile(found[name], q)) for q in (50, 90, 99)]
        print(f"{label:<32}" + "".join(f"{value:>9.3f}" for value in percentiles))
    ratios = [served / alone for served, alone in zip(found["latency"], found["bare"], strict=True)]
    print(f"client latency / tokenize and run in process: median {statistics.median(ratios):.2f}")
    print(f"must reach: added by the server at most {LIMIT_MS:g} ms at the median")


if __name__ == "__main__":
    main()
