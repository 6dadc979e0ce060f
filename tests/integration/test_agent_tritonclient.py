"""Unmodified `tritonclient.http`, blocking and asyncio, against a live agent: every public method of both clients."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.http.auth import BasicAuth
from tritonclient.utils import InferenceServerException

from device_agent.api.open_inference.metadata import EXTENSIONS
from edgeonnx.spec.manifest import Task
from tests.support import bundles
from tests.support.agent import Agent

TEXTS = ("the cat sat", "", "hello world !")
OUTPUT = "sentence_embedding"
CLASSES = "classes"
TAGGER = "tagger"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Serves an embedding model; its repository holds a classifier and a tagger too."""
    folder = tmp_path_factory.mktemp("triton")
    bundle = bundles.make_bundle(folder)
    bundles.make_bundle(folder, Task.TEXT_CLASSIFICATION, name=CLASSES)
    bundles.make_bundle(folder, Task.TOKEN_CLASSIFICATION, name=TAGGER)
    with Agent(bundle=bundle, arguments=("--repository", str(folder), "--runners", "1", "--threads", "1")) as running:
        yield running


@pytest.fixture
def client(agent: Agent) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(agent.address, concurrency=4) as connected:
        yield connected


def expected(texts: tuple[str, ...] = TEXTS) -> np.ndarray:
    return bundles.reference(Task.EMBEDDING, bundles.tokens_of(texts, None))[OUTPUT]


def texts_input(texts: tuple[Any, ...] = TEXTS, *, binary: bool = True, column: bool = False) -> triton.InferInput:
    values = np.array(texts, dtype=np.object_)
    values = values.reshape(-1, 1) if column else values
    tensor = triton.InferInput("text", list(values.shape), "BYTES")
    return tensor.set_data_from_numpy(values, binary_data=binary)


def tensors_input(*, binary: bool = True) -> list[triton.InferInput]:
    return [
        triton.InferInput(name, list(value.shape), "INT64").set_data_from_numpy(value, binary_data=binary)
        for name, value in bundles.tokens_of(TEXTS, None).items()
    ]


def check_embeddings(result: Any, texts: tuple[str, ...] = TEXTS) -> None:
    np.testing.assert_allclose(result.as_numpy(OUTPUT), expected(texts), atol=1e-5)


def check_config(config: Any) -> None:
    assert (config["name"], config["backend"]) == ("tiny", "onnxruntime")
    assert [item["name"] for item in config["input"]] == ["text", *bundles.INPUTS]


def check_statistics(found: Any) -> None:
    (stats,) = found["model_stats"]
    assert (stats["name"], stats["version"]) == ("tiny", "1.0.0")
    assert stats["inference_count"] >= stats["inference_stats"]["success"]["count"] >= 1
    assert stats["inference_stats"]["success"]["ns"] > stats["inference_stats"]["compute_infer"]["ns"] > 0
    assert stats["execution_count"] >= sum(batch["compute_infer"]["count"] for batch in stats["batch_stats"]) >= 1


def check_index(found: Any) -> None:
    states = {entry["name"]: entry["state"] for entry in found}
    assert states == {"tiny": "READY", CLASSES: "READY", TAGGER: "UNAVAILABLE"}


def check_body(body: Any) -> None:
    data, header_length = body
    assert data[header_length:].startswith(b"\x0b\x00\x00\x00the cat sat")


def check_parsed(result: Any) -> None:
    assert result.as_numpy("x").tolist() == [1.0, 2.0]


def nothing(result: Any) -> None:
    assert result is None


def true(result: Any) -> None:
    assert result is True


Call = tuple[Callable[[Any], Any], Callable[[Any], None]]

ANSWERED: dict[str, Call] = {
    "is_server_live": (lambda client: client.is_server_live(), true),
    "is_server_ready": (lambda client: client.is_server_ready(), true),
    "is_model_ready": (lambda client: client.is_model_ready("tiny", "1.0.0"), true),
    "get_server_metadata": (
        lambda client: client.get_server_metadata(),
        lambda found: assert_equal((found["name"], found["extensions"]), ("edgeonnx-agent", list(EXTENSIONS))),
    ),
    "get_model_metadata": (
        lambda client: client.get_model_metadata("tiny"),
        lambda found: assert_equal(
            found["outputs"], [{"name": OUTPUT, "datatype": "FP32", "shape": [-1, bundles.DIM]}]
        ),
    ),
    "get_model_config": (lambda client: client.get_model_config("tiny", "1.0.0"), check_config),
    "infer": (lambda client: client.infer("tiny", [texts_input()]), check_embeddings),
    "get_inference_statistics": (lambda client: client.get_inference_statistics("tiny"), check_statistics),
    "load_model": (lambda client: client.load_model(CLASSES), nothing),
    "get_model_repository_index": (lambda client: client.get_model_repository_index(), check_index),
    "unload_model": (lambda client: client.unload_model(CLASSES, unload_dependents=True), nothing),
    "generate_request_body": (lambda client: client.generate_request_body([texts_input()]), check_body),
    "parse_response_body": (
        lambda client: client.parse_response_body(
            b'{"outputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}'
        ),
        check_parsed,
    ),
    "register_plugin": (lambda client: client.register_plugin(BasicAuth("user", "secret")), nothing),
    "plugin": (lambda client: client.plugin(), lambda found: assert_equal(type(found), BasicAuth)),
    "unregister_plugin": (lambda client: client.unregister_plugin(), nothing),
}
"""In the order in which they are called: statistics after a request, the index between load and unload."""

REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "get_trace_settings": (lambda client: client.get_trace_settings(), "trace settings are not supported"),
    "update_trace_settings": (
        lambda client: client.update_trace_settings("tiny", {"trace_rate": "1"}),
        "trace settings are not supported",
    ),
    "get_log_settings": (lambda client: client.get_log_settings(), "log settings cannot be changed"),
    "update_log_settings": (
        lambda client: client.update_log_settings({"log_info": True}),
        "log settings cannot be changed",
    ),
    "get_system_shared_memory_status": (
        lambda client: client.get_system_shared_memory_status(),
        "shared memory is not supported",
    ),
    "register_system_shared_memory": (
        lambda client: client.register_system_shared_memory("region", "/key", 64),
        "shared memory is not supported",
    ),
    "unregister_system_shared_memory": (
        lambda client: client.unregister_system_shared_memory("region"),
        "shared memory is not supported",
    ),
    "get_cuda_shared_memory_status": (
        lambda client: client.get_cuda_shared_memory_status("region"),
        "shared memory is not supported",
    ),
    "register_cuda_shared_memory": (
        lambda client: client.register_cuda_shared_memory("region", "AAAA", 0, 64),
        "shared memory is not supported",
    ),
    "unregister_cuda_shared_memory": (
        lambda client: client.unregister_cuda_shared_memory(),
        "shared memory is not supported",
    ),
}


def assert_equal(found: object, want: object) -> None:
    assert found == want


def public_methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_no_method_of_either_client_is_left_out() -> None:
    """A newer client with a further call fails here. `close` and `async_infer` have tests of their own."""
    known = {*ANSWERED, *REFUSED, "close"}
    assert public_methods(triton.InferenceServerClient) == known | {"async_infer"}
    assert public_methods(triton_aio.InferenceServerClient) == known


def test_every_call(client: triton.InferenceServerClient) -> None:
    for name, (call, check) in ANSWERED.items():
        try:
            check(call(client))
        except Exception as error:
            raise AssertionError(name) from error
    for name, (call, message) in REFUSED.items():
        with pytest.raises(InferenceServerException, match=message) as caught:
            call(client)
        assert caught.value.status() == "400", name
    client.close()


def test_every_call_of_asyncio(agent: Agent) -> None:
    async def call_all() -> None:
        async with triton_aio.InferenceServerClient(agent.address) as client:
            for name, (call, check) in ANSWERED.items():
                try:
                    result = call(client)
                    check(await result if inspect.isawaitable(result) else result)
                except Exception as error:
                    raise AssertionError(name) from error
            for name, (call, message) in REFUSED.items():
                with pytest.raises(InferenceServerException, match=message) as caught:
                    await call(client)
                assert caught.value.status() == "400", name
            both = await asyncio.gather(
                *(client.infer("tiny", [texts_input((text,))]) for text in TEXTS for _ in range(5))
            )
            for index, result in enumerate(both):
                check_embeddings(result, (TEXTS[index // 5],))
            await client.close()

    asyncio.run(call_all())


def test_async_infer(client: triton.InferenceServerClient) -> None:
    pending = [client.async_infer("tiny", [texts_input((text,))], request_id=text) for text in TEXTS]
    for text, request in zip(TEXTS, pending, strict=True):
        result = request.get_result(timeout=10)
        check_embeddings(result, (text,))
        assert result.get_response().get("id", "") == text
    request = client.async_infer("other", [texts_input()])
    with pytest.raises(InferenceServerException, match="no such model"):
        request.get_result(timeout=10)


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
@pytest.mark.parametrize("form", ["texts", "column", "tensors"])
def test_binary_and_json_both_ways(
    client: triton.InferenceServerClient, form: str, binary_in: bool, binary_out: bool | None
) -> None:
    if form == "tensors":
        inputs = tensors_input(binary=binary_in)
    else:
        inputs = [texts_input(binary=binary_in, column=form == "column")]
    outputs = None if binary_out is None else [triton.InferRequestedOutput(OUTPUT, binary_data=binary_out)]
    result = client.infer("tiny", inputs, outputs=outputs, request_id="seven", model_version="1.0.0")
    check_embeddings(result)
    assert result.get_response()["id"] == "seven"
    assert ("parameters" in result.get_output(OUTPUT)) is (binary_out is not False)


@pytest.mark.parametrize("there", [None, "gzip", "deflate"])
@pytest.mark.parametrize("back", [None, "gzip", "deflate"])
def test_compression_both_ways(client: triton.InferenceServerClient, there: str | None, back: str | None) -> None:
    texts = ("the cat sat on the mat",) * 150
    result = client.infer(
        "tiny",
        [texts_input(texts)],
        request_compression_algorithm=there,
        response_compression_algorithm=back,
    )
    check_embeddings(result, texts)


def test_texts_as_the_client_may_hold_them(client: triton.InferenceServerClient) -> None:
    texts = ("naïve café", "日本語", "the 🐈", "a\x00b")
    for values in (texts, tuple(text.encode() for text in texts)):
        check_embeddings(client.infer("tiny", [texts_input(values)]), texts)
    fixed = np.array([b"the cat", b"hello"])
    tensor = triton.InferInput("text", [2], "BYTES").set_data_from_numpy(fixed)
    check_embeddings(client.infer("tiny", [tensor]), ("the cat", "hello"))


def test_classes(client: triton.InferenceServerClient) -> None:
    client.load_model(CLASSES)
    try:
        plain = client.infer(CLASSES, [texts_input(("a good film",))]).as_numpy("scores")
        for binary in (True, False):
            asked = [triton.InferRequestedOutput("scores", binary_data=binary, class_count=2)]
            found = client.infer(CLASSES, [texts_input(("a good film",))], outputs=asked).as_numpy("scores")
            best = np.argsort(-plain[0])[:2]
            want = [f"{plain[0, index]:.6f}:{index}:{bundles.LABELS[index]}" for index in best]
            assert [item.decode() if binary else item for item in found[0].tolist()] == want
    finally:
        client.unload_model(CLASSES)
    assert not client.is_model_ready(CLASSES)


@pytest.mark.parametrize("binary", [True, False])
def test_outputs_per_token(client: triton.InferenceServerClient, binary: bool) -> None:
    client.load_model(TAGGER)
    try:
        result = client.infer(TAGGER, [texts_input()], outputs=[triton.InferRequestedOutput("scores", binary)])
    finally:
        client.unload_model(TAGGER)
    scores = result.as_numpy("scores")
    counts = result.get_response()["parameters"]["token_counts"]
    tokens = bundles.tokens_of(TEXTS, None)
    want = bundles.reference(Task.TOKEN_CLASSIFICATION, tokens)["scores"]
    assert counts == tokens["attention_mask"].sum(axis=1).tolist()
    assert scores.shape == want.shape
    for row, count in enumerate(counts):
        np.testing.assert_allclose(scores[row, :count], want[row, :count], atol=1e-5)
        assert not scores[row, count:].any()


def test_parameters(client: triton.InferenceServerClient) -> None:
    result = client.infer("tiny", [texts_input()], priority=2, timeout=5_000_000, parameters={"mine": "yes"})
    check_embeddings(result)
    with pytest.raises(InferenceServerException, match="sequences are not supported"):
        client.infer("tiny", [texts_input()], sequence_id=7, sequence_start=True)


def shaped(shape: list[int], datatype: str = "INT64") -> list[triton.InferInput]:
    kinds = {"INT64": np.int64, "INT32": np.int32, "FP16": np.float16}
    return [
        triton.InferInput(name, shape, datatype).set_data_from_numpy(np.ones(shape, dtype=kinds[datatype]))
        for name in bundles.INPUTS
    ]


def lying() -> list[triton.InferInput]:
    """Says another shape than that of its data."""
    return [texts_input().set_shape([2])]


@pytest.mark.parametrize(
    ("model", "version", "inputs", "status", "message"),
    [
        ("other", "", texts_input, "404", "no such model"),
        ("tiny", "2", texts_input, "404", "no such version"),
        ("tiny", "", lambda: tensors_input()[:2], "400", "the input token_type_ids is missing"),
        ("tiny", "", lambda: shaped([3]), "400", "has the wrong shape"),
        ("tiny", "", lambda: shaped([1, 0]), "400", "every dimension must be at least 1"),
        ("tiny", "", lambda: shaped([1, 17]), "400", "longer than the model reads"),
        ("tiny", "", lambda: shaped([1, 4], "INT32"), "400", "has the wrong datatype"),
        ("tiny", "", lambda: shaped([1, 4], "FP16"), "400", "has the wrong datatype"),
        ("tiny", "", lying, "400", "goes on after its last element"),
        ("tiny", "", lambda: [texts_input((b"\xff",))], "400", "expected UTF-8"),
        ("tiny", "", lambda: [texts_input(())], "400", "at least one text"),
    ],
)
def test_what_is_wrong(
    client: triton.InferenceServerClient,
    model: str,
    version: str,
    inputs: Callable[[], Any],
    status: str,
    message: str,
) -> None:
    made = inputs()
    made = made if isinstance(made, list) else [made]
    with pytest.raises(InferenceServerException, match=message) as caught:
        client.infer(model, made, model_version=version)
    assert caught.value.status() == status


def test_shared_memory_in_a_request(client: triton.InferenceServerClient) -> None:
    tensor = triton.InferInput("text", [1], "BYTES")
    tensor.set_shared_memory("region", 64)
    with pytest.raises(InferenceServerException, match="shared memory is not supported"):
        client.infer("tiny", [tensor])
    output = triton.InferRequestedOutput(OUTPUT)
    output.set_shared_memory("region", 64)
    with pytest.raises(InferenceServerException, match="shared memory is not supported"):
        client.infer("tiny", [texts_input()], outputs=[output])


def test_loading_what_is_not_there(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("other")
    assert caught.value.status() == "404"
    with pytest.raises(InferenceServerException, match="from the agent's repository only"):
        client.load_model(CLASSES, config="{}", files={"file:1/model.onnx": b"onnx"})
    with pytest.raises(InferenceServerException) as caught:
        client.unload_model("other")
    assert caught.value.status() == "404"
