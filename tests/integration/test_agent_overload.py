"""A real agent that gets more than it can do: it answers what it took, refuses the rest at once, and recovers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator

import httpx
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support import bundles
from tests.support.agent import Agent

DEADLINE = 0.8
SIZE = 300  # of the squares that are multiplied: a few milliseconds a run
TEXT = "the cat sat on a mat ."
INFER = "/v2/models/tiny/infer"
CONFIG = f"""
[queue]
batch_tokens = 18
deadline_seconds = {DEADLINE}
[runtime]
runners = 1
threads = 1
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("overload")
    plain = bundles.graph
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundles, "graph", lambda *args, **kwargs: slowed(*plain(*args, **kwargs)))
        bundle = bundles.make_bundle(folder)
    (folder / "agent.toml").write_text(CONFIG)
    with Agent(bundle=bundle, arguments=("--config", str(folder / "agent.toml"))) as running:
        yield running


def slowed(data: bytes, tensors: dict[str, bytes]) -> tuple[bytes, dict[str, bytes]]:
    """The graph with a chain of matrix products that adds zero: each run takes milliseconds, whatever its size."""
    model = onnx.ModelProto.FromString(data)
    adding = next(node for node in model.graph.node if "bias" in node.input)
    adding.input[list(adding.input).index("bias")] = "slow_bias"
    extra = [
        # It depends on an input, so that it is not computed once and for all.
        helper.make_node("Cast", ["input_ids"], ["slow_ids"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["slow_ids"], ["slow_max"], keepdims=0),
        helper.make_node("Mul", ["slow_max", "slow_zero"], ["slow_none"]),
        helper.make_node("Expand", ["slow_none", "slow_shape"], ["slow_0"]),
        *(helper.make_node("MatMul", [f"slow_{at}", f"slow_{at}"], [f"slow_{at + 1}"]) for at in range(8)),
        helper.make_node("ReduceMax", ["slow_8"], ["slow_end"], keepdims=0),
        helper.make_node("Add", ["bias", "slow_end"], ["slow_bias"]),
    ]
    nodes = [*extra, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    zero = numpy_helper.from_array(bundles.np.float32(0).reshape(()), "slow_zero")
    shape = numpy_helper.from_array(bundles.np.array([SIZE, SIZE], dtype=bundles.np.int64), "slow_shape")
    model.graph.initializer.extend([zero, shape])
    return model.SerializeToString(deterministic=True), tensors


def metric(agent: Agent, name: str, **labels: str) -> float:
    text = httpx.get(f"{agent.url}/metrics").text
    for line in text.splitlines():
        if re.match(rf"{name}[{{ ]", line) and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no metric {name} {labels}")


def until(agent: Agent, name: str, value: float, **labels: str) -> None:
    end = time.perf_counter() + 5
    while metric(agent, name, **labels) != value:
        assert time.perf_counter() < end, f"{name} {labels} is {metric(agent, name, **labels)}, not {value}"
        time.sleep(0.02)


def embed(agent: Agent, text: str | list[str] = TEXT) -> httpx.Response:
    return httpx.post(f"{agent.url}/v1/embeddings", json={"model": "tiny", "input": text})


async def flood(agent: Agent, bodies: list[dict[str, object]]) -> list[tuple[int, int | None]]:
    """Send all requests at once, each on a connection of its own; status and Retry-After of each answer."""
    host, port = agent.address.split(":")
    connections = [await asyncio.open_connection(host, int(port)) for _ in bodies]
    for (_, writer), body in zip(connections, bodies, strict=True):
        writer.write(post(body, "Connection: close\r\n"))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, int | None]:
        head, _, _ = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        wait = re.search(rb"(?i)\r\nretry-after: (\d+)", head)
        return int(head.split()[1]), int(wait[1]) if wait else None

    return await asyncio.gather(*(answer(*connection) for connection in connections))


def post(body: object, headers: str = "", path: str = "/v1/embeddings") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def test_overload(agent: Agent) -> None:
    bodies: list[dict[str, object]] = [{"model": "tiny", "input": TEXT if at % 2 else [TEXT]} for at in range(400)]
    answers = asyncio.run(flood(agent, bodies))
    statuses = [status for status, _ in answers]
    assert set(statuses) <= {200, 429, 504}
    # What was taken is answered, with few exceptions, whatever else this machine does meanwhile.
    assert statuses.count(200) > 10
    assert statuses.count(429) > 50
    assert statuses.count(504) <= statuses.count(200) // 4
    assert all(wait is not None and wait >= 1 for status, wait in answers if status == 429)
    # One text and a list of one text are the same request.
    for form in (0, 1):
        assert {200, 429} <= set(statuses[form::2])

    until(agent, "edgeonnx_queue_rows", 0)
    assert embed(agent).status_code == 200


def test_a_request_of_any_size_is_taken_by_an_idle_model(agent: Agent) -> None:
    until(agent, "edgeonnx_running_tokens", 0)
    before = metric(agent, "edgeonnx_queue_refusals_total", reason="expired")
    # 2,000 rows of 9 tokens, two a run: more than the deadline allows. It is tried, and ended in time.
    began = time.perf_counter()
    assert embed(agent, [TEXT] * 2000).status_code == 504
    assert DEADLINE - 0.05 < time.perf_counter() - began < DEADLINE + 2
    assert metric(agent, "edgeonnx_queue_refusals_total", reason="expired") == before + 1
    until(agent, "edgeonnx_running_tokens", 0)
    assert embed(agent, [TEXT] * 4).status_code == 200


def infer(texts: list[str], seconds: float) -> dict[str, object]:
    """A request of the Open Inference Protocol with a time of its own."""
    tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}
    return {"inputs": [tensor], "parameters": {"timeout": int(seconds * 1e6)}}


def test_the_clients_own_time(agent: Agent) -> None:
    url = f"{agent.url}{INFER}"
    # So many runs that no pause of the machine lets the answer and the deadline be seen at one time.
    response = httpx.post(url, json=infer([TEXT] * 100, 0.005))
    assert response.status_code == 504
    assert "at most 0.005 s" in response.json()["error"]
    assert httpx.post(url, json=infer([TEXT], 20)).status_code == 200


def test_rows_of_clients_that_left_are_not_run(agent: Agent) -> None:
    until(agent, "edgeonnx_running_tokens", 0)
    left = metric(agent, "edgeonnx_queue_refusals_total", reason="cancelled")
    rows = metric(agent, "edgeonnx_batch_rows_sum")
    host, port = agent.address.split(":")
    clients = [socket.create_connection((host, int(port))) for _ in range(5)]
    for client in clients:
        client.sendall(post(infer([TEXT] * 200, 60), path=INFER))
    for client in clients:
        client.close()
    until(agent, "edgeonnx_queue_refusals_total", left + 5, reason="cancelled")
    until(agent, "edgeonnx_queue_rows", 0)
    until(agent, "edgeonnx_running_tokens", 0)
    assert metric(agent, "edgeonnx_batch_rows_sum") - rows < 500  # of 1,000
    assert embed(agent).status_code == 200
