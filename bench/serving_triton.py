"""What does an unmodified tritonclient get, over HTTP and gRPC, as Triton's perf_analyzer would measure it?

For each concurrency that many requests of one real text are kept in flight by a thread each, and throughput and latency
are taken from the client. The peer in the same run is `/v1/embeddings` with the same texts and concurrency through the
bench's own thin client, so the ratio is what the protocol and its client library cost.

Run it with `PYTHONPATH=. python bench/serving_triton.py BUNDLE [--seconds N]`.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from bench.serving_load import Load, Message, post, run
from bench.serving_texts import sample
from edgeonnx.bundle import open_bundle
from tests.support.agent import Agent

CONCURRENCY = (1, 2, 4, 8, 16)
WARM_UP = 0.5
GRPC = re.compile(r"gRPC listens on \S*:(\d+)")


def text_input(module: Any, text: str) -> list[Any]:
    """The input of a request of one text, in binary form."""
    tensor = module.InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
    return [tensor]


def http_asker(address: str, model: str) -> Callable[[list[Any]], None]:
    """A function that asks over a connection of its own, and waits."""
    client = tritonclient.http.InferenceServerClient(address)
    return lambda inputs: client.infer(model, inputs).as_numpy("sentence_embedding")


def grpc_asker(address: str, model: str) -> Callable[[list[Any]], None]:
    """The same over gRPC."""
    client = tritonclient.grpc.InferenceServerClient(address)
    return lambda inputs: client.infer(model, inputs).as_numpy("sentence_embedding")


def loop(
    open_asker: Callable[[], Callable[[list[Any]], None]],
    inputs: Iterator[list[Any]],
    concurrency: int,
    seconds: float,
) -> tuple[float, list[float]]:
    """Keep `concurrency` requests in flight; answers a second, and latencies in seconds, after the warm-up."""
    latencies: queue.SimpleQueue[float] = queue.SimpleQueue()
    begin = time.perf_counter() + WARM_UP
    end = begin + seconds
    lock = threading.Lock()

    def work() -> None:
        ask = open_asker()
        while (started := time.perf_counter()) < end:
            with lock:
                request = next(inputs)
            ask(request)
            finished = time.perf_counter()
            if begin <= finished < end:
                latencies.put(finished - started)

    threads = [threading.Thread(target=work) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [latencies.get() for _ in range(latencies.qsize())]
    return len(found) / seconds, found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (default: 5)")
    options = parser.parse_args()
    model = open_bundle(options.bundle).manifest.name
    texts = sample(2000)
    with Agent(bundle=options.bundle, arguments=("--grpc-port", "0")) as agent:
        match = GRPC.search(agent.ready_line) or GRPC.search(agent.log)
        if match is None:
            raise SystemExit(f"the agent does not say its gRPC port:\n{agent.ready_line}\n{agent.log}")
        kinds = {
            "tritonclient HTTP": (tritonclient.http, lambda: http_asker(agent.address, model)),
            "tritonclient gRPC": (tritonclient.grpc, lambda: grpc_asker(f"127.0.0.1:{match.group(1)}", model)),
        }
        messages = tuple(
            Message(data=post("/v1/embeddings", {"model": model, "input": text, "encoding_format": "base64"}), texts=1)
            for text in texts
        )
        print(f"{'concurrency':>11}  {'client':<20}{'requests/s':>11}{'ratio':>7}{'p50 ms':>9}{'p99 ms':>9}")
        for concurrency in CONCURRENCY:
            load = Load(
                address=agent.address,
                messages=messages,
                seconds=options.seconds,
                warm_up=WARM_UP,
                connections=concurrency,
            )
            own = run(load)
            rate = own.ok / options.seconds
            line(concurrency, "/v1/embeddings", rate, 1.0, own.latency_ms(50), own.latency_ms(99))
            for name, (module, open_asker) in kinds.items():
                inputs = itertools.cycle([text_input(module, text) for text in texts])
                found, latencies = loop(open_asker, inputs, concurrency, options.seconds)
                p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
                line(concurrency, name, found, found / rate, p50, p99)


def line(concurrency: int, name: str, rate: float, ratio: float, p50: float, p99: float) -> None:
    """One line of the table."""
    print(f"{concurrency:>11}  {name:<20}{rate:>11.0f}{ratio:>7.2f}{p50:>9.2f}{p99:>9.2f}", flush=True)


if __name__ == "__main__":
    main()
