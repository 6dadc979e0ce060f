"""Unmodified `tritonclient.grpc`, blocking and asyncio, against a live agent: every public method of both clients."""

from __future__ import annotations

import asyncio
import inspect
import queue
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from edgeonnx.spec.manifest import Task
from tests.support import bundles
from tests.support.agent import Agent

grpc = pytest.importorskip("grpc")
triton = pytest.importorskip("tritonclient.grpc")
triton_aio = pytest.importorskip("tritonclient.grpc.aio")

from tritonclient.grpc.auth import BasicAuth  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

TEXTS = ("the cat sat", "", "hello world !")
OUTPUT = "sentence_embedding"
CLASSES = "classes"
LISTENS = re.compile(r"gRPC listens on (\S+)")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Serves an embedding model; its repository holds a classifier too."""
    folder = tmp_path_factory.mktemp("grpc")
    bundle = bundles.make_bundle(folder)
    bundles.make_bundle(folder, Task.TEXT_CLASSIFICATION, name=CLASSES)
    arguments = ("--repository", str(folder), "--grpc-port", "0", "--runners", "1", "--threads", "1")
    with Agent(bundle=bundle, arguments=arguments) as running:
        yield running


def address_of(agent: Agent) -> str:
    match = LISTENS.search(agent.log)
    assert match is not None, agent.log
    return match.group(1)


@pytest.fixture
def client(agent: Agent) -> Iterator[Any]:
    with triton.InferenceServerClient(address_of(agent)) as connected:
        yield connected


def expected(texts: tuple[str, ...] = TEXTS) -> np.ndarray:
    return bundles.reference(Task.EMBEDDING, bundles.tokens_of(texts, None))[OUTPUT]


def texts_input(texts: tuple[Any, ...] = TEXTS) -> Any:
    values = np.array(texts, dtype=np.object_)
    return triton.InferInput("text", list(values.shape), "BYTES").set_data_from_numpy(values)


def tensors_input() -> list[Any]:
    return [
        triton.InferInput(name, list(value.shape), "INT64").set_data_from_numpy(value)
        for name, value in bundles.tokens_of(TEXTS, None).items()
    ]


def check_embeddings(result: Any, texts: tuple[str, ...] = TEXTS) -> None:
    np.testing.assert_allclose(result.as_numpy(OUTPUT), expected(texts), atol=1e-5)


def check_config(found: Any) -> None:
    config = found["config"]
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("tiny", "onnxruntime", 2048)
    assert config["input"][1] == {"name": "input_ids", "data_type": "TYPE_INT64", "dims": ["-1"], "optional": True}
    assert config["instance_group"][0]["kind"] == "KIND_CPU"
    assert config["parameters"]["variant"] == {"string_value": "cpu-fp32"}


def check_metadata(found: Any) -> None:
    assert (found.name, list(found.versions)) == ("tiny", ["1.0.0"])
    assert [tensor.name for tensor in found.inputs] == ["text", *bundles.INPUTS]
    assert (found.outputs[0].datatype, list(found.outputs[0].shape)) == ("FP32", [-1, bundles.DIM])


def check_statistics(found: Any) -> None:
    (stats,) = found.model_stats
    assert stats.inference_count >= stats.inference_stats.success.count >= 1
    assert stats.inference_stats.success.ns > stats.inference_stats.compute_infer.ns > 0
    assert stats.batch_stats[0].compute_infer.count >= 1


def check_index(found: Any) -> None:
    assert {entry.name: entry.state for entry in found.models} == {"tiny": "READY", CLASSES: "READY"}


def nothing(result: Any) -> None:
    assert result is None


def true(result: Any) -> None:
    assert result is True


ANSWERED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], None]]] = {
    "is_server_live": (lambda client: client.is_server_live(), true),
    "is_server_ready": (lambda client: client.is_server_ready(), true),
    "is_model_ready": (lambda client: client.is_model_ready("tiny", "1.0.0"), true),
    "get_server_metadata": (lambda client: client.get_server_metadata(), lambda found: check_name(found)),
    "get_model_metadata": (lambda client: client.get_model_metadata("tiny"), check_metadata),
    "get_model_config": (lambda client: client.get_model_config("tiny", "1.0.0", as_json=True), check_config),
    "infer": (lambda client: client.infer("tiny", [texts_input()]), check_embeddings),
    "get_inference_statistics": (lambda client: client.get_inference_statistics("tiny"), check_statistics),
    "load_model": (lambda client: client.load_model(CLASSES), nothing),
    "get_model_repository_index": (lambda client: client.get_model_repository_index(), check_index),
    "unload_model": (lambda client: client.unload_model(CLASSES, unload_dependents=True), nothing),
    "register_plugin": (lambda client: client.register_plugin(BasicAuth("user", "secret")), nothing),
    "plugin": (lambda client: client.plugin(), lambda found: assert_basic(found)),
    "unregister_plugin": (lambda client: client.unregister_plugin(), nothing),
}
"""In the order in which they are called: statistics after a request, the index between load and unload."""

REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "get_trace_settings": (lambda client: client.get_trace_settings(), "trace settings"),
    "update_trace_settings": (lambda client: client.update_trace_settings(settings={"a": "1"}), "trace settings"),
    "get_log_settings": (lambda client: client.get_log_settings(), "log settings"),
    "update_log_settings": (lambda client: client.update_log_settings({"log_info": True}), "log settings"),
    "get_system_shared_memory_status": (lambda client: client.get_system_shared_memory_status(), "shared memory"),
    "register_system_shared_memory": (
        lambda client: client.register_system_shared_memory("region", "/key", 64),
        "shared memory",
    ),
    "unregister_system_shared_memory": (lambda client: client.unregister_system_shared_memory(), "shared memory"),
    "get_cuda_shared_memory_status": (lambda client: client.get_cuda_shared_memory_status(), "shared memory"),
    "register_cuda_shared_memory": (
        lambda client: client.register_cuda_shared_memory("region", b"AAAA", 0, 64),
        "shared memory",
    ),
    "unregister_cuda_shared_memory": (lambda client: client.unregister_cuda_shared_memory(), "shared memory"),
}


def check_name(found: Any) -> None:
    assert found.name == "edgeonnx-agent"
    assert "binary_tensor_data" in found.extensions


def assert_basic(found: Any) -> None:
    assert type(found) is BasicAuth


def public_methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_no_method_of_either_client_is_left_out() -> None:
    """A newer client with a further call fails here. Those added below have tests of their own."""
    known = {*ANSWERED, *REFUSED, "close"}
    streams = {"async_infer", "start_stream", "async_stream_infer", "stop_stream"}
    assert public_methods(triton.InferenceServerClient) == known | streams
    assert public_methods(triton_aio.InferenceServerClient) == known | {"stream_infer"}


def test_every_call(client: Any) -> None:
    for name, (call, check) in ANSWERED.items():
        try:
            check(call(client))
        except Exception as error:
            raise AssertionError(name) from error
    for name, (call, message) in REFUSED.items():
        with pytest.raises(InferenceServerException, match=message) as caught:
            call(client)
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED", name
    client.close()


def test_every_call_of_asyncio(agent: Agent) -> None:
    async def requests() -> Any:
        for text in TEXTS * 20:
            yield {"model_name": "tiny", "inputs": [texts_input((text,))], "request_id": text}
        yield {"model_name": "other", "inputs": [texts_input()], "request_id": "last"}

    async def call_all() -> None:
        async with triton_aio.InferenceServerClient(address_of(agent)) as client:
            for name, (call, check) in ANSWERED.items():
                try:
                    result = call(client)
                    check(await result if inspect.isawaitable(result) else result)
                except Exception as error:
                    raise AssertionError(name) from error
            for name, (call, message) in REFUSED.items():
                with pytest.raises(InferenceServerException, match=message) as caught:
                    await call(client)
                assert caught.value.status() == "StatusCode.UNIMPLEMENTED", name
            many = await asyncio.gather(
                *(client.infer("tiny", [texts_input((text,))]) for text in TEXTS for _ in range(5))
            )
            for index, result in enumerate(many):
                check_embeddings(result, (TEXTS[index // 5],))
            answers = [answer async for answer in client.stream_infer(requests())]
            for text, (result, error) in zip(TEXTS * 20, answers[:-1], strict=True):
                assert error is None
                assert result.get_response().id == text
                check_embeddings(result, (text,))
            assert "no such model" in str(answers[-1][1])

    asyncio.run(call_all())


def test_async_infer_and_streams(client: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def on_answer(result: Any, error: Any) -> None:
        answers.put((result, error))

    def next_answer() -> Any:
        result, error = answers.get(timeout=10)
        if error is not None:
            raise error
        return result

    client.async_infer("tiny", [texts_input()], on_answer)
    check_embeddings(next_answer())
    client.start_stream(on_answer)
    for text in TEXTS:
        client.async_stream_infer("tiny", [texts_input((text,))], request_id=text)
    for text in TEXTS:
        result = next_answer()
        check_embeddings(result, (text,))
        assert result.get_response().parameters["triton_final_response"].bool_param
    client.async_stream_infer("tiny", [texts_input(())])
    with pytest.raises(InferenceServerException, match="at least one text"):
        next_answer()
    client.async_stream_infer("tiny", [texts_input()])
    check_embeddings(next_answer())
    client.stop_stream()


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_texts_and_tensors(client: Any, compression: str | None) -> None:
    for inputs in ([texts_input()], tensors_input()):
        outputs = [triton.InferRequestedOutput(OUTPUT)]
        result = client.infer(
            "tiny", inputs, outputs=outputs, request_id="seven", compression_algorithm=compression, timeout=5_000_000
        )
        check_embeddings(result)
        assert result.get_response().id == "seven"
        assert result.get_response().model_version == "1.0.0"


def test_typed_contents(agent: Agent) -> None:
    """tritonclient sends raw contents only, so its stub is used below it."""
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    with grpc.insecure_channel(address_of(agent)) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="tiny")
        for name, value in bundles.tokens_of(TEXTS, None).items():
            tensor = request.inputs.add(name=name, datatype="INT64", shape=value.shape)
            tensor.contents.int64_contents.extend(value.reshape(-1).tolist())
        found = np.frombuffer(stub.ModelInfer(request, timeout=10).raw_output_contents[0], dtype="<f4")
        np.testing.assert_allclose(found.reshape(3, -1), expected(), atol=1e-5)
        request = service_pb2.ModelInferRequest(model_name="tiny")
        tensor = request.inputs.add(name="text", datatype="BYTES", shape=[3])
        tensor.contents.bytes_contents.extend(text.encode() for text in TEXTS)
        found = np.frombuffer(stub.ModelInfer(request, timeout=10).raw_output_contents[0], dtype="<f4")
        np.testing.assert_allclose(found.reshape(3, -1), expected(), atol=1e-5)


def test_classes(client: Any) -> None:
    client.load_model(CLASSES)
    try:
        asked = [triton.InferRequestedOutput("scores", class_count=1)]
        found = client.infer(CLASSES, [texts_input(("a good film",))], outputs=asked).as_numpy("scores")
    finally:
        client.unload_model(CLASSES)
    assert found.shape == (1, 1)
    assert found[0, 0].decode().split(":")[2] in bundles.LABELS


def test_errors_have_their_status(client: Any) -> None:
    for call, status, message in (
        (lambda: client.infer("other", [texts_input()]), "NOT_FOUND", "no such model"),
        (lambda: client.infer("tiny", [texts_input()], model_version="2"), "NOT_FOUND", "no such version"),
        (lambda: client.get_model_metadata("other"), "NOT_FOUND", "no such model"),
        (lambda: client.infer("tiny", tensors_input()[:1]), "INVALID_ARGUMENT", "is missing"),
        (lambda: client.infer("tiny", [texts_input()], sequence_id=5), "INVALID_ARGUMENT", "sequences"),
        (lambda: client.infer("tiny", [texts_input((b"\xff",))]), "INVALID_ARGUMENT", "UTF-8"),
        (lambda: client.infer("tiny", [texts_input(("a",) * 2049)]), "INVALID_ARGUMENT", "too many texts"),
        (lambda: client.load_model(CLASSES, config="{}"), "INVALID_ARGUMENT", "repository only"),
        (lambda: client.load_model("other"), "NOT_FOUND", "other"),
    ):
        with pytest.raises(InferenceServerException, match=message) as caught:
            call()
        assert caught.value.status() == f"StatusCode.{status}"
    assert not client.is_model_ready("other")
    assert not client.is_model_ready("tiny", "2")


def test_a_deadline_that_is_over(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED"):
        client.infer("tiny", [texts_input()], client_timeout=1e-6)
    check_embeddings(client.infer("tiny", [texts_input()], client_timeout=10))
