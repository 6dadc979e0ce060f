"""The openai client, unmodified, against a live agent that generates: answers, streams, and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests.support import bundles, decoders
from tests.support.agent import Agent

NO_POISON: dict[str, int] = {str(decoders.POISON_ID): -100}
LONG: dict[str, Any] = {"max_tokens": 3000, "extra_body": {"ignore_eos": True}, "logit_bias": NO_POISON}
POISONOUS = 8
"""Bias of the poison at which it comes after some tokens."""
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
SETTINGS = """
[generation]
max_sequences = 2
max_waiting = 12
[server]
body_seconds = 0.5
"""


def settings(folder: Path, text: str) -> tuple[str, ...]:
    path = folder / "agent.toml"
    path.write_text(text)
    return ("--config", str(path))


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("generation")
    bundle = decoders.make_decoder_bundle(folder, context=4096)
    other = bundles.make_bundle(folder, name="embedder")
    with Agent(bundle=bundle, arguments=(*settings(folder, SETTINGS), "--bundle", str(other))) as running:
        yield running
    assert "Traceback" not in running.log


@pytest.fixture
def client(agent: Agent) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def gauge(agent: Agent, name: str) -> float:
    found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", httpx.get(f"{agent.url}/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.01)


def idle(agent: Agent) -> bool:
    return gauge(agent, "edgeonnx_num_requests_running") == gauge(agent, "edgeonnx_num_requests_waiting") == 0


def cancelled(agent: Agent) -> float:
    return gauge(agent, 'edgeonnx_generation_finished_total{.*finished_reason="cancelled".*}')


def spoken(client: openai.OpenAI, **fields: Any) -> str:
    answer = client.chat.completions.create(model="tiny-lm", messages=HELLO, logit_bias=NO_POISON, **fields)
    return answer.choices[0].message.content or ""


def test_a_conversation(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny-lm", messages=HELLO, max_tokens=12, logit_bias=NO_POISON)
    assert answer.object == "chat.completion"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.choices[0].message.content


def test_a_conversation_goes_on_with_the_clients_own_objects(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="tiny-lm", messages=HELLO, max_tokens=4, logit_bias=NO_POISON)
    messages = [*HELLO, first.choices[0].message, {"role": "user", "content": [{"type": "text", "text": "again"}]}]
    second = client.chat.completions.create(model="tiny-lm", messages=messages, max_tokens=4, logit_bias=NO_POISON)
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens


def test_a_stream(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"max_tokens": 30}
    stream = client.chat.completions.create(
        model="tiny-lm",
        messages=HELLO,
        logit_bias=NO_POISON,
        stream=True,
        stream_options={"include_usage": True},
        **fields,
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == spoken(client, **fields)
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []


def test_the_stream_helper_and_parsed_answers(client: openai.OpenAI) -> None:
    class Pet(BaseModel):
        model_config = ConfigDict(extra="forbid")
        name: Literal["cat", "dog"]
        age: int

    with client.chat.completions.stream(
        model="tiny-lm", messages=HELLO, max_tokens=200, temperature=1, seed=3, response_format=Pet
    ) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in events
    assert final.choices[0].message.parsed is not None
    assert final.choices[0].message.parsed.name in ("cat", "dog")
    parsed = client.chat.completions.parse(
        model="tiny-lm", messages=HELLO, max_tokens=200, temperature=1, seed=3, response_format=Pet
    )
    assert parsed.choices[0].message.parsed == final.choices[0].message.parsed


def test_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(
        model="tiny-lm", prompt=["in the", "an"], n=2, max_tokens=10, logprobs=2, logit_bias=NO_POISON
    )
    assert [each.index for each in whole.choices] == [0, 1, 2, 3]
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].text.startswith("".join(whole.choices[0].logprobs.tokens or [])[:1])
    stream = client.completions.create(
        model="tiny-lm", prompt=["in the", "an"], n=2, max_tokens=10, stream=True, logit_bias=NO_POISON
    )
    texts = [""] * 4
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [each.text for each in whole.choices]


def test_raw_and_streaming_responses(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="tiny-lm", messages=HELLO, max_tokens=4, logit_bias=NO_POISON
    )
    assert "prompt;dur=" in raw.headers["server-timing"]
    assert raw.parse().choices[0].message.content
    with client.chat.completions.with_streaming_response.create(
        model="tiny-lm", messages=HELLO, max_tokens=4, stream=True, logit_bias=NO_POISON
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


def test_errors_are_the_classes_that_callers_catch(client: openai.OpenAI) -> None:
    for stream in (False, True):
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError) as caught:
            create(model="tiny-lm", messages=HELLO, max_tokens=0, stream=stream)
        assert caught.value.param == "max_tokens"
        with pytest.raises(openai.NotFoundError) as missing:
            create(model="gpt-4o", messages=HELLO, stream=stream)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as long:
            create(model="tiny-lm", messages=[{"role": "user", "content": "hello " * 4096}], stream=stream)
        assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="does not generate text"):
            create(model="embedder", messages=HELLO, stream=stream)
    with pytest.raises(openai.BadRequestError, match="generates text"):
        client.embeddings.create(model="tiny-lm", input="a")


def broken_off(client: openai.OpenAI, seed: int) -> int:
    """Pieces of a stream that comes upon the poison sooner or later, before its error."""
    seen = 0
    try:
        for _ in client.completions.create(
            model="tiny-lm",
            prompt="in the",
            max_tokens=300,
            stream=True,
            temperature=1.0,
            seed=seed,
            logit_bias={str(decoders.POISON_ID): POISONOUS},
            extra_body={"ignore_eos": True},
        ):
            seen += 1
    except openai.APIError as error:
        assert "no token can be chosen" in error.message  # noqa: PT017 - it comes while the stream is read
        return seen
    pytest.fail("no error came")


def test_an_error_in_mid_stream(client: openai.OpenAI) -> None:
    """The model comes upon a token after which nothing can be computed; other streams do not notice."""
    expected = spoken(client, max_tokens=60)
    stream = client.completions.create(
        model="tiny-lm", prompt="in the", max_tokens=50, stream=True, temperature=1.0, logit_bias={**NO_POISON}
    )
    next(iter(stream))
    pieces = [broken_off(client, seed) for seed in range(6)]
    assert max(pieces) > 0
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] in ("stop", "length")
    assert spoken(client, max_tokens=60) == expected


def test_many_at_once_each_get_their_own_answer(agent: Agent) -> None:
    """More than there are places: some wait, all are answered as if they were alone."""
    prompts = [f"the {word} in {number}" for number, word in enumerate(["cat", "an", "her", "ing", "x", "yes"] * 2)]

    async def ask() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0) as client:

            async def streamed(prompt: str) -> str:
                stream = await client.completions.create(
                    model="tiny-lm", prompt=prompt, max_tokens=40, stream=True, logit_bias=NO_POISON
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            async def whole(prompt: str) -> str:
                found = await client.completions.create(
                    model="tiny-lm", prompt=prompt, max_tokens=40, logit_bias=NO_POISON
                )
                return found.choices[0].text

            together = await asyncio.gather(*(streamed(prompt) for prompt in prompts))
            return together, [await whole(prompt) for prompt in prompts]

    together, alone = asyncio.run(ask())
    assert together == alone
    assert len(set(alone)) == len(prompts)


def test_a_client_that_leaves_frees_its_place(agent: Agent, client: openai.OpenAI) -> None:
    before = cancelled(agent)
    stream = client.chat.completions.create(model="tiny-lm", messages=HELLO, stream=True, **LONG)
    next(iter(stream))
    stream.close()
    wait_for(lambda: idle(agent))
    assert cancelled(agent) == before + 1


def test_a_client_that_does_not_wait(agent: Agent, client: openai.OpenAI) -> None:
    before = cancelled(agent)
    impatient = client.with_options(timeout=openai.Timeout(5.0, read=0.05))
    with pytest.raises((openai.APITimeoutError, openai.InternalServerError, openai.RateLimitError)):
        impatient.chat.completions.create(model="tiny-lm", messages=HELLO, **LONG)
    wait_for(lambda: idle(agent), 2.0)
    assert cancelled(agent) <= before + 1


def test_clients_that_leave_while_they_wait_for_a_place(agent: Agent, client: openai.OpenAI) -> None:
    running = [client.chat.completions.create(model="tiny-lm", messages=HELLO, stream=True, **LONG) for _ in range(2)]
    for stream in running:
        next(iter(stream))
    body = {"model": "tiny-lm", "messages": HELLO, "stream": True}
    address = (agent.address.partition(":")[0], int(agent.address.partition(":")[2]))
    waiting = [post(address, body) for _ in range(4)]
    wait_for(lambda: gauge(agent, "edgeonnx_num_requests_waiting") == 4)
    for connection in waiting:
        connection.close()
    wait_for(lambda: gauge(agent, "edgeonnx_num_requests_waiting") == 0)
    for stream in running:
        stream.close()
    wait_for(lambda: idle(agent))


def test_more_than_may_wait_are_refused(agent: Agent, client: openai.OpenAI) -> None:
    running = client.completions.create(model="tiny-lm", prompt="in", n=2, stream=True, **LONG)
    next(iter(running))
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="tiny-lm", prompt="in", n=16, max_tokens=10)
    assert caught.value.code == "overloaded"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    running.close()
    wait_for(lambda: idle(agent))


def post(address: tuple[str, int], body: dict[str, Any], *, small: bool = False) -> socket.socket:
    """A request on a socket whose answer nobody reads yet."""
    connection = socket.socket()
    if small:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10)
    connection.connect(address)
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: agent\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def wordy(**fields: Any) -> dict[str, Any]:
    """A request whose answer is larger than all buffers on its way."""
    return {
        "model": "tiny-lm",
        "messages": HELLO,
        "stream": True,
        "logprobs": True,
        "top_logprobs": 20,
        "max_tokens": 4000,
        "ignore_eos": True,
        "logit_bias": NO_POISON,
        **fields,
    }


def test_a_client_that_does_not_read_is_cut_and_stops_nobody(agent: Agent, client: openai.OpenAI) -> None:
    host, _, port = agent.address.partition(":")
    before = cancelled(agent)
    with contextlib.closing(post((host, int(port)), wordy(), small=True)):
        wait_for(lambda: gauge(agent, "edgeonnx_num_requests_running") == 1)
        while cancelled(agent) == before and not idle(agent):
            started = time.perf_counter()
            assert spoken(client, max_tokens=4)
            assert time.perf_counter() - started < 3
            time.sleep(0.1)
        wait_for(lambda: httpx.get(f"{agent.url}/v2/health/live").status_code == 200)
    wait_for(lambda: idle(agent))


@pytest.mark.parametrize("seconds", [20.0, 0.3])
def test_a_stop_lets_streams_end_in_the_time_of_a_drain(tmp_path: Path, seconds: float) -> None:
    bundle = decoders.make_decoder_bundle(tmp_path, context=4096)
    arguments = settings(tmp_path, f"[server]\ndrain_seconds = {seconds}\n")
    with Agent(bundle=bundle, arguments=arguments) as agent:
        with openai.OpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0) as client:
            fields = {**LONG, "max_tokens": 800 if seconds > 1 else 4000}
            stream = client.completions.create(model="tiny-lm", prompt="in the", stream=True, **fields)
            next(iter(stream))
            agent.process.send_signal(signal.SIGTERM)
            reasons: list[str] = []
            with contextlib.suppress(openai.APIError, httpx.HTTPError):
                wait_for(lambda: httpx.get(f"{agent.url}/v2/health/ready").status_code == 503)
                with pytest.raises(openai.InternalServerError) as refused:
                    client.completions.create(model="tiny-lm", prompt="in the")
                assert refused.value.code == "not_ready"
            with contextlib.suppress(openai.APIError, httpx.HTTPError):
                for chunk in stream:
                    reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
        code = agent.wait(timeout=15)
    if seconds > 1:
        assert reasons == ["length"]
        assert code == 0
    else:
        assert reasons == []
    assert "Traceback" not in agent.log


def test_threads_share_a_client(client: openai.OpenAI) -> None:
    expected = spoken(client, max_tokens=16)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(spoken(client, max_tokens=16))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 6
