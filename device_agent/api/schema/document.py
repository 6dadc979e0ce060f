"""The OpenAPI 3.1 document of every route, with the limits of the running configuration.

FastAPI makes it out of a table: no request ever meets a route of FastAPI (see `device_agent.api.app` for the reason).
Statuses and their descriptions come from the error table, so the document cannot name others. Imported by
`device_agent.api.schema.lazy` when the document is asked for, and by nothing else.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from fastapi import Body, Depends, FastAPI, Path, Query
from fastapi.security import HTTPBearer

from device_agent.api.edge.errors import KINDS, TEI_ROUTES, is_openai
from device_agent.api.schema import models as shapes
from device_agent.api.schema.routes import ADMIN, BINARY, METRICS, OPERATIONS, TOKEN, Operation
from edgeonnx import __version__
from edgeonnx.errors import NotReadyError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import BaseModel

    from device_agent.config import AgentConfig


def openapi_json(config: AgentConfig, operations: Sequence[Operation] = OPERATIONS) -> bytes:
    """The document as JSON in UTF-8.

    Args:
        config: The agent's settings: limits, and whether tokens are asked for.
        operations: What it describes.
    """
    app = FastAPI(title="edgeonnx agent", version=__version__, description=_description(config))
    models = shapes.request_models(config.limits)
    security = _security(config)
    for operation in operations:
        app.add_api_route(
            operation.path,
            _endpoint(operation, getattr(models, operation.request) if operation.request else None),
            methods=[operation.method],
            response_model=operation.response,
            responses=_responses(operation),
            summary=operation.summary,
            tags=[operation.tag],
            operation_id=_operation_id(operation),
            dependencies=[Depends(security[operation.access])] if operation.access in security else [],
            openapi_extra=_binary_body(operation),
        )
    document = app.openapi()
    for operation in operations:
        path = operation.path.replace(":path}", "}")
        _describe_answer(document["paths"][path][operation.method.lower()]["responses"], operation)
    _drop_fastapi_validation(document)
    return orjson.dumps(document)


def _description(config: AgentConfig) -> str:
    limits, queue = config.limits, config.queue
    return (
        f"A body may have {limits.max_body_bytes:,} bytes, also after decompression (gzip, deflate), and a request "
        f"{limits.max_texts:,} texts of {limits.max_text_characters:,} characters each or {limits.max_json_numbers:,} "
        f"numbers; an answer has at most {limits.max_answer_numbers:,} numbers. A request takes at most "
        f"{queue.deadline_seconds:g} s, or as long as it says itself, up to {queue.max_deadline_seconds:g} s; one for "
        f"generated text {config.generation.deadline_seconds:g} s."
    )


def _security(config: AgentConfig) -> dict[str, HTTPBearer]:
    """The schemes by the kind of access that needs them; a kind that needs no token is left out."""
    schemes = {}
    settings = config.security
    if settings.token_file is not None:
        schemes[TOKEN] = HTTPBearer(scheme_name=TOKEN)
        if not settings.open_metrics:
            schemes[METRICS] = schemes[TOKEN]
    if settings.admin_token_file is not None:
        schemes[ADMIN] = HTTPBearer(scheme_name=ADMIN, description="a token of security.admin_token_file")
    return schemes


def _endpoint(operation: Operation, body: type[BaseModel] | None) -> Callable[..., None]:
    """A function whose signature is the operation's; nobody calls it."""

    def endpoint(**_arguments: object) -> None:
        raise AssertionError("described, never called")

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, kind, annotation=Annotated[str, Path()])
        for name in re.findall(r"{(\w+)", operation.path)
    ]
    parameters += [
        inspect.Parameter(name, kind, default=None, annotation=Annotated[str | None, Query(description=text)])
        for name, text in operation.query
    ]
    if body is not None:
        default = None if operation.optional_body else inspect.Parameter.empty
        annotation: Any = Annotated[body | None if operation.optional_body else body, Body()]
        parameters.append(inspect.Parameter("body", kind, default=default, annotation=annotation))
    endpoint.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return endpoint


def _responses(operation: Operation) -> dict[int | str, dict[str, Any]]:
    """The errors of an operation by status, in the form of its protocol."""
    model = error_model(operation.path)
    found: dict[int | str, dict[str, Any]] = {}
    for error in sorted(operation.errors, key=lambda error: KINDS[error].status):
        text = (error.__doc__ or "").splitlines()[0]
        entry = found.setdefault(KINDS[error].status, {"model": model, "description": ""})
        entry["description"] = f"{entry['description']} {text}".strip()
        if error in (OverloadedError, NotReadyError):
            entry["headers"] = {"Retry-After": {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}}
    return found


def _describe_answer(responses: dict[str, Any], operation: Operation) -> None:
    """The media types of the good answer: JSON, another one, or either."""
    if operation.refused:
        del responses["200"]
    if operation.media is None:
        return
    content = responses["200"].setdefault("content", {})
    if operation.response is None:
        content.clear()
    content[operation.media] = {"schema": {"type": "string"}}


def error_model(path: str) -> type[BaseModel]:
    """The form of errors on a path, as `device_agent.api.edge.errors` decides it."""
    if path in TEI_ROUTES:
        return shapes.TeiError
    return shapes.OpenAIError if is_openai(path) else shapes.InferenceProtocolError


def _operation_id(operation: Operation) -> str:
    words = re.findall(r"\w+", operation.path)
    return "_".join([operation.method.lower(), *words]) if words else "status_page"


def _binary_body(operation: Operation) -> dict[str, Any] | None:
    """The second media type of a body that may be binary."""
    if operation.media != BINARY:
        return None
    return {"requestBody": {"content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}, "required": True}}


def _drop_fastapi_validation(document: dict[str, Any]) -> None:
    """Take out what FastAPI adds for its own validation (422 in its own form): the agent never answers so."""
    for operations in document["paths"].values():
        for operation in operations.values():
            found = operation["responses"].get("422", {})
            if "HTTPValidationError" in str(found):
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
