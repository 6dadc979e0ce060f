"""`POST /v2/models/{name}/infer`: from a body to a job, and from its answer to a body."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_agent.api.context import Job
from device_agent.api.edge.body import parse_object
from device_agent.api.edge.compression import compressed
from device_agent.api.open_inference.binary import split_body
from device_agent.api.open_inference.fields import read_request
from device_agent.api.open_inference.request import check_request
from device_agent.api.open_inference.response import render_response
from device_agent.inference.rows import TensorRows
from device_agent.models.loaded import encoder_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from device_agent.api.context import Context, Rendered
    from device_agent.api.open_inference.fields import UncheckedRequest
    from device_agent.api.open_inference.request import InferRequest
    from device_agent.inference.rows import Answer
    from device_agent.models.registry import LiveModel
    from edgeonnx.spec.manifest import Manifest

    Render = Callable[[Answer, InferRequest, Manifest], Rendered]


async def infer(context: Context, request: Request) -> Response:
    """Answer an inference request; see `request` and `response` for its form."""
    return await compressed(await context.infer(request, prepare_infer), request)


def prepare_infer(context: Context, request: Request, data: bytes) -> Job:
    """What an infer request asks for.

    Raises:
        ModelNotFoundError: There is no model of that name or version.
        InvalidRequestError: A field is missing or wrong; the message names it.
        RequestTooLargeError: A limit is exceeded.
    """
    params = request.path_params
    live = context.models.find(params["name"], params.get("version"))
    header, binary = split_body(data, request.headers)
    return job_of(context, live, read_request(parse_object(header), binary), render_response)


def job_of(context: Context, live: LiveModel, asked: UncheckedRequest, render: Render) -> Job:
    """The job of a request's fields, whatever protocol they came by.

    Args:
        context: The limits.
        live: The model that it is for.
        asked: The fields.
        render: Makes the response.

    Raises:
        InvalidRequestError: A field is missing or wrong; the message names it.
        RequestTooLargeError: A limit is exceeded.
    """
    loaded = encoder_of(live.loaded)
    checked = check_request(asked, loaded, context.config.limits)
    return Job(
        live=live,
        texts=checked.texts,
        pairs=checked.pairs,
        rows=None if checked.tensors is None else TensorRows(checked.tensors, loaded.text.padding),
        outputs=tuple(output.name for output in checked.outputs),
        seconds=checked.seconds,
        render=lambda answer: render(answer, checked, loaded.manifest),
    )
