"""The model repository extension: which models there are, and loading and unloading them while the agent serves.

The files of a model come from the agent's own repository and nowhere else: a load that brings a configuration or files
of its own, which Triton allows, is refused. Unloading a model takes no other with it, because none depends on another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_agent.api.edge.body import parse_object, read_body
from device_agent.api.open_inference.fields import optional, optional_flag
from device_agent.api.open_inference.replies import json_response
from device_agent.models.registry import ModelState
from edgeonnx.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from device_agent.api.context import Context

STATES: dict[ModelState, str] = {
    ModelState.LOADING: "LOADING",
    ModelState.READY: "READY",
    ModelState.DRAINING: "UNLOADING",
    ModelState.FAILED: "UNAVAILABLE",
    ModelState.UNLOADED: "UNAVAILABLE",
}
"""Triton's words for the states of a model."""

FILE_PREFIX = "file:"


def index(context: Context, *, ready_only: bool) -> list[dict[str, str]]:
    """The repository index, in Triton's form: each model with version, state and reason.

    Args:
        context: The models.
        ready_only: Leave out what does not serve.
    """
    return [
        {"name": entry.name, "version": entry.version, "state": STATES[entry.state], "reason": entry.reason}
        for entry in context.models.index()
        if entry.state is ModelState.READY or not ready_only
    ]


def check_load(parameters: Mapping[str, object]) -> str | None:
    """Check the parameters of a load; those that nobody knows are ignored.

    Returns:
        The version that is asked for, or None.

    Raises:
        InvalidRequestError: The client brings its own configuration or files, or one is of the wrong type.
    """
    for name in parameters:
        if name == "config" or name.startswith(FILE_PREFIX):
            raise InvalidRequestError(
                "a model's files come from the agent's repository only",
                where=f"parameters.{name[:80]}",
                hint="put the bundle into the repository's folder and load it by its name",
            )
    return optional(parameters, "version", str, "", "parameters") or None


def check_unload(parameters: Mapping[str, object]) -> None:
    """Check the parameters of an unload.

    Raises:
        InvalidRequestError: One is of the wrong type.
    """
    optional_flag(parameters, "unload_dependents", default=False, where="parameters")


async def _fields(context: Context, request: Request) -> dict[str, object]:
    """The body's JSON; an empty body is an empty object."""
    data = await read_body(request, context.config.limits, context.config.server)
    return parse_object(data) if data.strip() else {}


async def _parameters(context: Context, request: Request) -> dict[str, object]:
    return optional(await _fields(context, request), "parameters", dict, {})


async def repository_index(context: Context, request: Request) -> Response:
    """`POST /v2/repository/index`."""
    ready = optional_flag(await _fields(context, request), "ready", default=False)
    return json_response(index(context, ready_only=ready))


async def load_model(context: Context, name: str, parameters: Mapping[str, object]) -> None:
    """Load a model of the repository; returns when it serves.

    Raises:
        EdgeOnnxError: See `check_load` and `Models.load`.
    """
    await context.models.load(name, check_load(parameters))


async def unload_model(context: Context, name: str, parameters: Mapping[str, object]) -> None:
    """Unload a model.

    Raises:
        EdgeOnnxError: See `check_unload` and `Models.unload`.
    """
    check_unload(parameters)
    await context.models.unload(name)


async def load(context: Context, request: Request) -> Response:
    """`POST /v2/repository/models/{name}/load`."""
    await load_model(context, request.path_params["name"], await _parameters(context, request))
    return json_response({})


async def unload(context: Context, request: Request) -> Response:
    """`POST /v2/repository/models/{name}/unload`."""
    await unload_model(context, request.path_params["name"], await _parameters(context, request))
    return json_response({})
