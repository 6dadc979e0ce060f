"""Binary tensors that do not add up, over HTTP and gRPC: a clear 400 or 413 each, while a bystander is served."""

from __future__ import annotations

import gzip
import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from device_agent.api.open_inference.binary import HEADER_LENGTH
from tests.support import bundles
from tests.support.agent import Agent
from tests.support.hostile import Bystander

URL = "/v2/models/tiny/infer"
MIB = 1 << 20


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    arguments = ("--runners", "1", "--threads", "1", "--grpc-port", "0")
    with Agent(bundle=bundles.make_bundle(tmp_path_factory.mktemp("binary")), arguments=arguments) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def bystander(agent: Agent) -> Iterator[None]:
    """Bodies are at most 8 MiB, and what parsing takes is about ten times as much."""
    with Bystander(agent, growth=160 * MIB):
        yield


@pytest.fixture(scope="module")
def client(agent: Agent) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=agent.url, timeout=30) as connected:
        yield connected


def tensor(size: object, *, name: str = "text", datatype: str = "BYTES", shape: Any = (1,)) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def send(client: httpx.Client, inputs: list[Any], tail: bytes, **headers: str) -> httpx.Response:
    header = json.dumps({"inputs": inputs}).encode()
    return client.post(URL, content=header + tail, headers={HEADER_LENGTH: str(len(header)), **headers})


def element(data: bytes, length: int | None = None) -> bytes:
    return struct.pack("<I", len(data) if length is None else length) + data


ONE = element(b"the cat")
IDS = np.array([[2, 5, 3]], dtype="<i8").tobytes()


@pytest.mark.parametrize(
    ("inputs", "tail", "message"),
    [
        ([tensor(11)], ONE[:-1], "does not fit into the body; expected 0 to 10 bytes"),
        ([tensor(11)], ONE + b"\x00", "goes on after the last tensor"),
        ([tensor(0)], b"", "too short for its shape"),
        ([tensor(2**63)], ONE, "does not fit into the body"),
        ([tensor(-1)], ONE, "does not fit into the body"),
        ([tensor(10**30)], ONE, ""),
        ([tensor(1.5)], ONE, "is of the wrong type; expected an integer"),
        ([tensor("11")], ONE, "is of the wrong type; expected an integer"),
        ([tensor(True)], ONE, "is of the wrong type; expected an integer"),
        ([tensor(None)], ONE, "inputs[0].data: is missing"),
        ([tensor(11, shape=[2])], ONE, "ends within an element"),
        ([tensor(22)], ONE + ONE, "goes on after its last element"),
        ([tensor(11)], element(b"the cat", 2**32 - 1), "ends within an element; expected 4,294,967,295 bytes"),
        ([tensor(11)], element(b"the cat", 8), "ends within an element"),
        ([tensor(11)], element(b"the c\xff\xff"), "expected UTF-8"),
        ([tensor(11), tensor(11, name="other")], ONE + ONE, "no such input"),
        ([tensor(11), tensor(11)], ONE + ONE, "occurs twice"),
        ([tensor(11) | {"data": ["a"]}], ONE, "has data as well as binary data"),
        ([tensor(11, shape=[2**62, 2**62])], ONE, "has the wrong shape"),
        ([tensor(11, shape=[1] * 3000)], ONE, "has the wrong shape"),
        ([tensor(11, shape=[2**31])], ONE, "has too many texts"),
        ([tensor(11, shape=[-1])], ONE, "is empty"),
        ([tensor(11, datatype="INT64")], ONE, "has the wrong datatype"),
        ([tensor(24, name=name, datatype="INT64", shape=[1, 3]) for name in bundles.INPUTS], IDS * 2, "does not fit"),
        ([tensor(23, name=name, datatype="INT64", shape=[1, 3]) for name in bundles.INPUTS], IDS * 3, ""),
        ([tensor(24, name=name, datatype="INT64", shape=[1, 4]) for name in bundles.INPUTS], IDS * 3, "another size"),
        ([tensor(24, name=name, datatype="INT64", shape=[3, 0]) for name in bundles.INPUTS], IDS * 3, "at least 1"),
        ([tensor(24, name=name, datatype="INT64", shape=[2**40, 2**40]) for name in bundles.INPUTS], IDS * 3, ""),
        (
            [tensor(24, name=name, datatype="INT64", shape=[1, 3]) for name in bundles.INPUTS],
            np.array([[2**62] * 3] * 3, dtype="<i8").tobytes(),
            "is not a token id",
        ),
    ],
)
def test_sizes_that_do_not_add_up(client: httpx.Client, inputs: list[Any], tail: bytes, message: str) -> None:
    response = send(client, inputs, tail)
    assert response.status_code in (400, 413), response.text
    assert message in response.json()["error"]


def test_the_same_when_they_add_up(client: httpx.Client) -> None:
    assert send(client, [tensor(11)], ONE).status_code == 200
    inputs = [tensor(24, name=name, datatype="INT64", shape=[1, 3]) for name in bundles.INPUTS]
    tail = IDS + np.ones(3, "<i8").tobytes() + np.zeros(3, "<i8").tobytes()
    assert send(client, inputs, tail).status_code == 200


@pytest.mark.parametrize("length", ["", "-1", "1e3", "0x10", "99999999", "9" * 4000, "1, 2"])
def test_lengths_that_are_none(client: httpx.Client, length: str) -> None:
    response = client.post(URL, content=b"{}" + ONE, headers={HEADER_LENGTH: length})
    assert response.status_code == 400
    assert response.json()["error"].startswith(HEADER_LENGTH)


def test_the_length_counts_after_decompression(client: httpx.Client) -> None:
    header = json.dumps({"inputs": [tensor(11)]}).encode()
    body = gzip.compress(header + ONE)
    headers = {"Content-Encoding": "gzip", HEADER_LENGTH: str(len(header))}
    assert client.post(URL, content=body, headers=headers).status_code == 200
    headers[HEADER_LENGTH] = str(len(body))
    assert client.post(URL, content=body, headers=headers).status_code == 400


def test_no_header_where_the_body_has_one(client: httpx.Client) -> None:
    response = client.post(URL, content=json.dumps({"inputs": [tensor(11)]}).encode() + ONE)
    assert response.status_code == 400
    assert "the body is not JSON" in response.json()["error"]


def test_two_million_elements_of_nothing(client: httpx.Client) -> None:
    """8 bytes in Python for each byte on the wire, if they were ever made."""
    tail = bytes(4 * MIB)
    begun = time.perf_counter()
    for count in (1, 2048, len(tail) // 4, 2**40):
        response = send(client, [tensor(len(tail), shape=[count])], tail)
        assert response.status_code in (400, 413)
    assert time.perf_counter() - begun < 3


def test_many_inputs_and_long_shapes(client: httpx.Client) -> None:
    inputs: list[Any] = [tensor(0, name=str(index)) for index in range(10_000)]
    assert send(client, inputs, b"").status_code == 400
    inputs = [tensor(0, name="input_ids", datatype="INT64", shape=[2**62] * 50_000)]
    begun = time.perf_counter()
    assert send(client, inputs, b"").status_code == 400
    assert time.perf_counter() - begun < 2


def test_numbers_that_json_does_not_have(client: httpx.Client) -> None:
    for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
        data = b'{"inputs": [{"name": "input_ids", "shape": [1, 1], "datatype": "INT64", "data": [' + number + b"]}]}"
        response = client.post(URL, content=data)
        assert response.status_code == 400, response.text


class Rpc:
    """tritonclient's stub, below its checks."""

    def __init__(self, agent: Agent) -> None:
        self.grpc = pytest.importorskip("grpc")
        self.messages = pytest.importorskip("tritonclient.grpc.service_pb2")
        stubs = pytest.importorskip("tritonclient.grpc.service_pb2_grpc")
        match = re.search(r"gRPC listens on (\S+):(\d+)", agent.log)
        assert match is not None
        self.address = (match.group(1), int(match.group(2)))
        self.channel = self.grpc.insecure_channel(":".join(match.groups()))
        self.stub = stubs.GRPCInferenceServiceStub(self.channel)

    def request(self, shape: list[int], *raw: bytes, name: str = "text", datatype: str = "BYTES") -> Any:
        message = self.messages.ModelInferRequest(model_name="tiny", raw_input_contents=raw)
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        return message

    def error(self, message: Any) -> str:
        with pytest.raises(self.grpc.RpcError) as caught:
            self.stub.ModelInfer(message, timeout=20)
        return f"{caught.value.code().name} {caught.value.details()}"


@pytest.fixture(scope="module")
def rpc(agent: Agent) -> Iterator[Rpc]:
    made = Rpc(agent)
    with made.channel:
        yield made


@pytest.mark.parametrize(
    ("shape", "raw", "message"),
    [
        ([1], (ONE[:-1],), "ends within an element"),
        ([1], (ONE, ONE), "has another number of elements than inputs"),
        ([2], (ONE,), "ends within an element"),
        ([1], (element(b"the cat", 2**32 - 1),), "ends within an element"),
        ([2**62, 2**62], (ONE,), "has the wrong shape"),
        ([2**62], (ONE,), "has too many texts"),
        ([-1], (ONE,), "is empty"),
        ([1], (b"",), "too short for its shape"),
        ([1] * 100_000, (ONE,), "has the wrong shape"),
        ([1], (), "has another number of elements"),
    ],
)
def test_raw_contents_that_do_not_add_up(rpc: Rpc, shape: list[int], raw: tuple[bytes, ...], message: str) -> None:
    found = rpc.error(rpc.request(shape, *raw))
    assert found.startswith("INVALID_ARGUMENT ")
    assert message in found


def test_large_messages(rpc: Rpc) -> None:
    assert rpc.error(rpc.request([1], element(b"a" * 9 * MIB))).startswith("RESOURCE_EXHAUSTED")
    message = rpc.messages.ModelInferRequest(model_name="tiny")
    for index in range(20_000):
        message.parameters[str(index)].int64_param = index
    assert rpc.error(message).startswith("INVALID_ARGUMENT")
    message = rpc.request([1], bytes(4 * MIB))
    assert rpc.error(message).startswith("INVALID_ARGUMENT")


def test_noise_on_the_port(rpc: Rpc) -> None:
    """What is no HTTP/2, and what is no more after its preface."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(1000), preface + bytes([255] * 500), preface + bytes(9) * 100):
        with socket.create_connection(rpc.address, timeout=5) as connection:
            connection.sendall(data)
    assert rpc.stub.ServerLive(rpc.messages.ServerLiveRequest(), timeout=10).live
    assert rpc.stub.ModelInfer(rpc.request([1], ONE), timeout=10).outputs[0].name == "sentence_embedding"
