"""Inference over gRPC, one request a call or many in a stream.

A stream's requests wait for no answer: up to `STREAM_REQUESTS` of them are in the agent, which batches what comes
together. Its answers come in the order of its requests. One that fails is answered with an `error_message`, and the
stream goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from device_agent.api.open_inference.infer import job_of
from device_agent.rpc.calls import failure_of
from device_agent.rpc.descriptors import message_types
from device_agent.rpc.messages import parse, read_request, render_response
from edgeonnx.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from device_agent.api.context import Context
    from device_agent.rpc.calls import Call

STREAM_REQUESTS = 16
FINAL_RESPONSE = "triton_final_response"
"""Triton's parameter of an answer in a stream: no other one to its request follows. Here that is always so."""


async def infer(context: Context, data: bytes, call: Call) -> bytes:
    """Answer a `ModelInferRequest`; both messages are serialized. If the client cancels, so is this.

    Raises:
        ServingError: The request is not answered with a result.
    """
    started = time.perf_counter()
    message = parse("ModelInferRequest", data)
    live = context.models.find(message.model_name, message.model_version)
    job = job_of(context, live, read_request(message), render_response)
    remaining = call.time_remaining()
    if remaining is not None:
        # A deadline that is over already is one of no time, not none at all.
        seconds = max(remaining, 1e-6)
        job = replace(job, seconds=seconds if job.seconds is None else min(job.seconds, seconds))
    return (await context.run(job, started=started)).data


async def infer_stream(context: Context, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
    """Answer each `ModelInferRequest` of a stream with a `ModelStreamInferResponse`; all are serialized."""
    waiting: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(STREAM_REQUESTS)
    tasks: set[asyncio.Task[bytes]] = set()

    async def take() -> None:
        # A stream that breaks is cancelled by gRPC as a whole; it needs no end.
        async for data in requests:
            task = asyncio.create_task(_answer_in_stream(context, data, call))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            await waiting.put(task)
        await waiting.put(None)

    taking = asyncio.create_task(take())
    try:
        while (task := await waiting.get()) is not None:
            yield await task
    finally:
        # The client left, or an answer could not be sent: what still runs is for nobody.
        for left in (taking, *tasks):
            left.cancel()


async def _answer_in_stream(context: Context, data: bytes, call: Call) -> bytes:
    response = message_types()["ModelStreamInferResponse"]()
    try:
        response.infer_response.ParseFromString(await infer(context, data, call))
        response.infer_response.parameters[FINAL_RESPONSE].bool_param = True
    except Exception as error:  # noqa: BLE001 - each becomes a message
        response.error_message = failure_of(error, "ModelStreamInfer").message
        with contextlib.suppress(InvalidRequestError):
            response.infer_response.id = parse("ModelInferRequest", data).id
    serialized: bytes = response.SerializeToString()
    return serialized
