"""The listener in this process: ports, tokens, certificates, deadlines, calls that are cancelled."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc")
pytest.importorskip("grpc.aio")

from device_agent.api.context import Context  # noqa: E402
from device_agent.api.edge.auth import Tokens  # noqa: E402
from device_agent.api.monitoring.metrics import Metrics  # noqa: E402
from device_agent.config import AgentConfig, Limits, SecurityConfig, ServerConfig  # noqa: E402
from device_agent.models.registry import Models  # noqa: E402
from device_agent.rpc import GrpcServer, serve_grpc  # noqa: E402
from device_agent.rpc.descriptors import SERVICE, message_types  # noqa: E402
from device_agent.rpc.inference import STREAM_REQUESTS  # noqa: E402
from edgeonnx.errors import RuntimeUnavailableError, UsageError  # noqa: E402
from edgeonnx.spec.manifest import Task  # noqa: E402

TOKEN, ADMIN = "t" * 16, "a" * 16


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


TOKENS = Tokens(infer=(digest(TOKEN),), admin=(digest(ADMIN),))
needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="the openssl program makes the certificates")

Call = Callable[..., Any]


def server_config(**fields: Any) -> ServerConfig:
    return ServerConfig(grpc_port=0, **fields)


@asynccontextmanager
async def serving(
    loaded: Any = None, config: AgentConfig | None = None, tokens: Callable[[], Tokens] | None = None
) -> AsyncIterator[GrpcServer]:
    config = config or AgentConfig(server=server_config())
    models = Models(config)
    if loaded is not None:
        models.serve(loaded)
    server = await serve_grpc(Context(models=models, config=config, metrics=Metrics()), config, tokens=tokens)
    server.models = models  # type: ignore[attr-defined]
    try:
        yield server
    finally:
        await server.stop(1.0)


@asynccontextmanager
async def connected(server: GrpcServer, credentials: Any = None) -> AsyncIterator[Call]:
    """Gives a function that makes a call and awaits its answer."""
    address = f"127.0.0.1:{server.port}"
    options = [("grpc.ssl_target_name_override", "localhost")]
    channel = (
        grpc.aio.insecure_channel(address)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, options=options)
    )

    async with channel:

        def call(name: str, request: Any = None, *, token: str | None = None, **options: Any) -> Any:
            made = channel.unary_unary(
                f"/{SERVICE}/{name}",
                request_serializer=lambda message: (
                    message if isinstance(message, bytes) else message.SerializeToString()
                ),
                response_deserializer=message_types()[f"{name}Response"].FromString,
            )
            request = message_types()[f"{name}Request"]() if request is None else request
            metadata = () if token is None else (("authorization", f"Bearer {token}"),)
            return made(request, metadata=metadata, timeout=options.pop("timeout", 10), **options)

        yield call


def infer_request(text: str = "the cat", count: int = 1) -> Any:
    message = message_types()["ModelInferRequest"](model_name="tiny")
    message.inputs.add(name="text", datatype="BYTES", shape=[count]).contents.bytes_contents.extend(
        [text.encode()] * count
    )
    return message


async def status_of(call: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return f"{caught.value.code().name}: {caught.value.details()}"


def test_ready_follows_the_models(loaded_models) -> None:
    async def main() -> None:
        async with serving() as server, connected(server) as call:
            assert (await call("ServerLive")).live
            assert not (await call("ServerReady")).ready
            assert (await status_of(call("ModelInfer", infer_request()))).startswith("UNAVAILABLE: the agent is not")
            server.models.serve(loaded_models())  # type: ignore[attr-defined]
            server.models.started = True  # type: ignore[attr-defined]
            assert (await call("ServerReady")).ready
            assert (await call("ModelInfer", infer_request())).outputs[0].shape == [1, 8]
            server.models.drain()  # type: ignore[attr-defined]
            assert not (await call("ServerReady")).ready

    asyncio.run(main())


def test_tokens_are_asked_of_each_call_and_may_change(loaded_models) -> None:
    held = [TOKENS]

    async def main() -> None:
        async with serving(loaded_models(), tokens=lambda: held[0]) as server, connected(server) as call:
            assert (await call("ServerLive")).live
            assert (await call("ModelInfer", infer_request(), token=TOKEN)).outputs
            assert (await call("ModelInfer", infer_request(), token=ADMIN)).outputs
            assert "UNAUTHENTICATED" in await status_of(call("ModelInfer", infer_request()))
            assert "UNAUTHENTICATED" in await status_of(call("ModelMetadata"))
            assert "UNAUTHENTICATED" in await status_of(call("RepositoryIndex", token="x" * 16))
            assert "PERMISSION_DENIED" in await status_of(call("RepositoryModelUnload", token=TOKEN))
            assert "NOT_FOUND" in await status_of(call("RepositoryModelUnload", token=ADMIN))
            held[0] = Tokens(infer=(digest("n" * 16),))
            assert "UNAUTHENTICATED" in await status_of(call("ModelInfer", infer_request(), token=TOKEN))
            assert "PERMISSION_DENIED" in await status_of(call("RepositoryModelLoad", token=ADMIN))

    asyncio.run(main())


def test_tokens_of_the_files(loaded_models, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(TOKEN, encoding="utf-8")
    file.chmod(0o600)
    config = AgentConfig(server=server_config(), security=SecurityConfig(token_file=file))

    async def main() -> None:
        async with serving(loaded_models(), config) as server, connected(server) as call:
            assert (await call("ModelInfer", infer_request(), token=TOKEN)).outputs
            assert "UNAUTHENTICATED" in await status_of(call("ModelInfer", infer_request()))
            assert "PERMISSION_DENIED" in await status_of(call("RepositoryModelLoad", token=TOKEN))

    asyncio.run(main())


def test_a_model_that_generates_text_has_metadata_and_takes_no_inference(loaded_models) -> None:
    async def main() -> None:
        async with serving(loaded_models(Task.TEXT_GENERATION)) as server, connected(server) as call:
            types = message_types()
            metadata = await call("ModelMetadata", types["ModelMetadataRequest"](name="tiny"))
            assert [tensor.name for tensor in metadata.inputs] == ["input_ids", "attention_mask"]
            assert [model.state for model in (await call("RepositoryIndex")).models] == ["READY"]
            assert "INVALID_ARGUMENT: model: this model generates text" in await status_of(
                call("ModelInfer", infer_request())
            )

    asyncio.run(main())


def test_a_port_that_is_taken() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            config = AgentConfig(server=ServerConfig(grpc_port=taken.getsockname()[1]))
            with pytest.raises(UsageError, match="cannot be listened on"):
                async with serving(config=config):
                    pass

    asyncio.run(main())


def test_two_agents_do_not_share_a_port() -> None:
    async def main() -> None:
        async with serving() as server:
            config = AgentConfig(server=ServerConfig(grpc_port=server.port))
            with pytest.raises(UsageError, match="cannot be listened on"):
                async with serving(config=config):
                    pass

    asyncio.run(main())


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "device_agent.rpc.service", raising=False)

    async def main() -> None:
        with pytest.raises(RuntimeUnavailableError, match=r"pip install 'edgeonnx\[grpc\]'"):
            async with serving():
                pass

    asyncio.run(main())


def test_deadlines_and_cancelled_calls(loaded_models, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner is held up; what nobody waits for any more leaves the queue."""
    loaded = loaded_models()
    original = loaded.engine.run
    monkeypatch.setattr(loaded.engine, "run", lambda *args, **kwargs: (time.sleep(0.5), original(*args, **kwargs))[1])

    async def main() -> None:
        async with serving(loaded) as server, connected(server) as call:
            first = call("ModelInfer", infer_request())
            await asyncio.sleep(0.1)
            waiting = call("ModelInfer", infer_request("hello"))
            await asyncio.sleep(0.05)
            waiting.cancel()
            request = infer_request()
            request.parameters["timeout"].int64_param = 50_000
            begun = time.perf_counter()
            assert (await status_of(call("ModelInfer", request))).split(":")[0] in (
                "DEADLINE_EXCEEDED",
                "RESOURCE_EXHAUSTED",
            )
            assert time.perf_counter() - begun < 0.35
            assert "DEADLINE_EXCEEDED" in await status_of(call("ModelInfer", infer_request(), timeout=0.05))
            assert (await first).outputs
            await asyncio.sleep(0.05)
            assert loaded.batcher.state().rows == 0
            assert server.models.in_flight == 0  # type: ignore[attr-defined]

    asyncio.run(main())


def test_too_busy_says_when_to_come_back(loaded_models, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeonnx.errors import OverloadedError

    loaded = loaded_models()

    def submit(*_: object, **__: object) -> None:
        raise OverloadedError("the queue is full", retry_after=2.1)

    monkeypatch.setattr(loaded.batcher, "submit", submit)

    async def main() -> None:
        async with serving(loaded) as server, connected(server) as call:
            with pytest.raises(grpc.RpcError) as caught:
                await call("ModelInfer", infer_request())
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert dict(caught.value.trailing_metadata())["retry-after"] == "3"

    asyncio.run(main())


def test_a_fault_of_ours_is_logged_and_never_shown(loaded_models, monkeypatch, caplog) -> None:
    loaded = loaded_models()
    monkeypatch.setattr(loaded.batcher, "submit", lambda *_, **__: 1 / 0)

    async def main() -> None:
        async with serving(loaded) as server, connected(server) as call:
            assert await status_of(call("ModelInfer", infer_request())) == (
                "INTERNAL: internal error; the agent's log has the details"
            )

    asyncio.run(main())
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("compression", ["NoCompression", "Gzip"])
def test_a_message_that_is_too_large(loaded_models, compression: str) -> None:
    """Also one that is small only while it is compressed."""
    config = AgentConfig(server=server_config(), limits=Limits(max_body_bytes=20_000))

    async def main() -> None:
        async with serving(loaded_models(), config) as server, connected(server) as call:
            request = infer_request("a" * 30_000)
            answer = await status_of(call("ModelInfer", request, compression=getattr(grpc.Compression, compression)))
            assert "RESOURCE_EXHAUSTED" in answer
            assert (await call("ModelInfer", infer_request())).outputs

    asyncio.run(main())


def test_bytes_that_are_no_message(loaded_models) -> None:
    async def main() -> None:
        async with serving(loaded_models()) as server, connected(server) as call:
            for name in ("ModelInfer", "ModelReady", "RepositoryModelLoad"):
                assert "INVALID_ARGUMENT" in await status_of(call(name, b"\xff\xff\xff"))

    asyncio.run(main())


def open_stream(channel: Any) -> Any:
    make = channel.stream_stream(
        f"/{SERVICE}/ModelStreamInfer",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_types()["ModelStreamInferResponse"].FromString,
    )
    return make(timeout=10)


def test_a_stream_answers_in_order_and_goes_on_after_an_error(loaded_models) -> None:
    async def main() -> None:
        async with (
            serving(loaded_models()) as server,
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
        ):
            stream = open_stream(channel)
            for index in range(40):
                request = infer_request("the cat " * (index % 3), count=1 + index % 5)
                request.id = str(index)
                if index == 7:
                    request.model_name = "other"
                await stream.write(request)
            await stream.done_writing()
            answers = [answer async for answer in stream]
            assert [answer.infer_response.id for answer in answers] == [str(index) for index in range(40)]
            assert [index for index, answer in enumerate(answers) if answer.error_message] == [7]
            assert "no such model" in answers[7].error_message
            assert [answer.infer_response.outputs[0].shape[0] for answer in answers[8:]] == [
                1 + index % 5 for index in range(8, 40)
            ]

    asyncio.run(main())


def test_a_stream_that_its_client_leaves(loaded_models, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is dropped, and no more than the bound was taken."""
    loaded = loaded_models()
    original = loaded.engine.run
    monkeypatch.setattr(loaded.engine, "run", lambda *args, **kwargs: (time.sleep(0.3), original(*args, **kwargs))[1])

    async def main() -> None:
        async with (
            serving(loaded) as server,
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
        ):
            stream = open_stream(channel)
            for _ in range(4 * STREAM_REQUESTS):
                await stream.write(infer_request())
            await asyncio.sleep(0.1)
            # One more has been answered to nobody yet, and one more waits for its place.
            assert 0 < server.models.in_flight <= STREAM_REQUESTS + 2  # type: ignore[attr-defined]
            stream.cancel()
            await asyncio.sleep(0.1)
            assert loaded.batcher.state().rows == 0
            assert server.models.in_flight == 0  # type: ignore[attr-defined]

    asyncio.run(main())


def make_pair(folder: Path, name: str) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    extension = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", certificate, "-keyout", key]
    subprocess.run([*command.split(), *extension], check=True, capture_output=True, timeout=30)
    return certificate, key


@needs_openssl
def test_tls_and_a_new_certificate(loaded_models, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = make_pair(tmp_path, "served")
    other = make_pair(tmp_path, "other")
    old, new = certificate.read_bytes(), other[0].read_bytes()
    config = AgentConfig(server=server_config(tls_certificate=certificate, tls_key=key))

    async def live(server: GrpcServer, trusted: bytes) -> bool:
        async with connected(server, grpc.ssl_channel_credentials(trusted)) as call:
            try:
                return bool((await call("ServerLive", timeout=2)).live)
            except grpc.RpcError:
                return False

    async def main() -> None:
        async with serving(loaded_models(), config) as server:
            assert await live(server, old)
            assert not await live(server, new)
            certificate.write_bytes(new)
            server.reload()
            assert "the certificate of gRPC stays as it was" in caplog.text
            assert await live(server, old)
            key.write_bytes(other[1].read_bytes())
            server.reload()
            assert await live(server, new)
            assert not await live(server, old)

    asyncio.run(main())


def test_a_key_without_a_certificate(tmp_path: Path) -> None:
    async def main() -> None:
        config = AgentConfig(server=server_config(tls_key=tmp_path / "key"))
        with pytest.raises(UsageError, match="tls_certificate"):
            async with serving(config=config):
                pass

    asyncio.run(main())
