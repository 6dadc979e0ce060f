"""The routes as the OpenAPI document describes them: a table.

Statuses follow from the errors that an operation names, through the one table in `device_agent.api.edge.errors`. A test
holds this table against the routes of the application.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from device_agent.api.schema import generation
from device_agent.api.schema import models as shapes
from edgeonnx.errors import (
    BundleError,
    ClientGoneError,
    DeadlineExceededError,
    EdgeOnnxError,
    ForbiddenError,
    GoldenSetError,
    InferenceError,
    InvalidRequestError,
    MemoryBudgetError,
    ModelNotFoundError,
    NotReadyError,
    OverloadedError,
    RequestTooLargeError,
    RuntimeUnavailableError,
    SelectionError,
    SlowClientError,
    UnauthorizedError,
    UnsupportedEncodingError,
)

Errors = tuple[type[EdgeOnnxError], ...]

ANY: Errors = (UnauthorizedError, InferenceError)
LOOKUP: Errors = (*ANY, InvalidRequestError, ModelNotFoundError, NotReadyError)
BODY: Errors = (RequestTooLargeError, UnsupportedEncodingError, SlowClientError, ClientGoneError)
INFERENCE: Errors = (*LOOKUP, *BODY, OverloadedError, DeadlineExceededError)
MANAGEMENT: Errors = (
    *LOOKUP,
    *BODY,
    ForbiddenError,
    BundleError,
    GoldenSetError,
    SelectionError,
    RuntimeUnavailableError,
    MemoryBudgetError,
)

OPEN = "open"
TOKEN = "token"  # noqa: S105 - the name of a scheme
METRICS = "metrics"
ADMIN = "adminToken"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One route of the document.

    Attributes:
        method: HTTP method.
        path: Its path, with parameters in braces.
        tag: The protocol that it belongs to.
        summary: What it does.
        request: Name of the body's class in `RequestModels`; None: it takes no body.
        optional_body: The body may be left out.
        response: Type of the answer's JSON; None: it is not JSON.
        media: Media type of an answer that is not JSON, or that may be another one too.
        errors: What may go wrong.
        access: OPEN (without a token), or the token that is needed where there are such tokens: TOKEN, METRICS (as
            TOKEN, unless `open_metrics` is set) or ADMIN.
        query: Optional parameters of the query, by name, with what they say.
        refused: There is no good answer.
    """

    method: str
    path: str
    tag: str
    summary: str
    request: str | None = None
    optional_body: bool = False
    response: Any = None
    media: str | None = None
    errors: Errors = LOOKUP
    access: str = TOKEN
    query: tuple[tuple[str, str], ...] = ()
    refused: bool = False


V1, V2, TEI, AGENT = "OpenAI", "Open Inference Protocol", "text-embeddings-inference", "agent"
BINARY = "application/octet-stream"
STREAM = "text/event-stream"
LABELS = list[shapes.Prediction] | list[list[shapes.Prediction]]


def _get(path: str, tag: str, summary: str, response: Any, **more: Any) -> Operation:
    return Operation(method="GET", path=path, tag=tag, summary=summary, response=response, **more)


def _post(path: str, tag: str, summary: str, request: str, response: Any, **more: Any) -> Operation:
    more.setdefault("errors", INFERENCE)
    return Operation(method="POST", path=path, tag=tag, summary=summary, request=request, response=response, **more)


def _versioned(operation: Operation) -> tuple[Operation, Operation]:
    """The operation on a model, and the same on one version of it."""
    path = operation.path.replace("/{name}", "/{name}/versions/{version}")
    return operation, replace(operation, path=path, summary=f"{operation.summary} (of one version)")


def _repository(name: str, summary: str, request: str, response: Any = shapes.Empty) -> Operation:
    """An operation on the repository; its body may be left out."""
    more = {"errors": (*LOOKUP, *BODY)} if name == "index" else {"errors": MANAGEMENT, "access": ADMIN}
    return _post(f"/v2/repository/{name}", V2, summary, request, response, optional_body=True, **more)


def _refused(path: str, what: str) -> tuple[Operation, Operation]:
    """Reading and writing what the agent does not have: always refused, in words that say what to do instead."""
    errors = (*ANY, InvalidRequestError)
    asked = Operation(method="GET", path=path, tag=V2, summary=f"Not supported: {what}", errors=errors, refused=True)
    return asked, replace(asked, method="POST")


OPERATIONS: tuple[Operation, ...] = (
    _post(
        "/v1/chat/completions",
        V1,
        "The next message of a conversation",
        "chat",
        generation.ChatCompletion,
        media=STREAM,
    ),
    _post("/v1/completions", V1, "Continuations of prompts", "completion", generation.Completion, media=STREAM),
    _post("/v1/embeddings", V1, "Embeddings of texts or token ids", "embeddings", shapes.EmbeddingsResponse),
    _get("/v1/models", V1, "The models that serve", shapes.ModelList),
    _get("/v1/models/{id}", V1, "One model", shapes.Model),
    *_versioned(_post("/v2/models/{name}/infer", V2, "Run a model", "infer", shapes.InferResponse, media=BINARY)),
    *_versioned(_get("/v2/models/{name}", V2, "Metadata of a model", shapes.ModelMetadata)),
    *_versioned(_get("/v2/models/{name}/ready", V2, "Whether a model serves", shapes.ModelReady)),
    *_versioned(_get("/v2/models/{name}/config", V2, "Configuration of a model, in Triton's form", shapes.ModelConfig)),
    *_versioned(_get("/v2/models/{name}/stats", V2, "Statistics of a model", shapes.Statistics)),
    _get("/v2/models/stats", V2, "Statistics of all models", shapes.Statistics, errors=ANY),
    _repository("index", "Every model, and where it stands", "repository_index", list[shapes.RepositoryEntry]),
    _repository("models/{name}/load", "Load a model, or swap it for what the repository holds now", "repository_model"),
    _repository("models/{name}/unload", "Unload a model once its requests are answered", "repository_model"),
    *_refused("/v2/trace/setting", "trace settings"),
    *_refused("/v2/models/{name}/trace/setting", "trace settings"),
    *_refused("/v2/logging", "log settings"),
    *_refused("/v2/systemsharedmemory/{rest:path}", "shared memory"),
    *_refused("/v2/cudasharedmemory/{rest:path}", "shared memory"),
    _get("/v2", V2, "Metadata of the server", shapes.ServerMetadata, errors=ANY),
    _get("/v2/health/live", V2, "Whether the process answers", shapes.Live, errors=ANY, access=OPEN),
    _get("/v2/health/ready", V2, "Whether the agent serves", shapes.Ready, errors=(*ANY, NotReadyError), access=OPEN),
    _post("/rerank", TEI, "Order texts by how well they answer a query", "rerank", list[shapes.Rank]),
    _post("/classify", TEI, "Labels of texts, or of pairs", "classify", LABELS),
    _post("/predict", TEI, "The same as /classify", "classify", LABELS),
    _post("/embed", TEI, "Embeddings of texts or token ids", "embed", list[list[float]]),
    _post("/similarity", TEI, "Cosine of sentences to one sentence", "similarity", list[float]),
    _get("/info", TEI, "What serves", shapes.Info, query=(("model", "name of the model; left out: the first one"),)),
    _get("/health", TEI, "Whether the agent serves", shapes.Ready, errors=(*ANY, NotReadyError), access=OPEN),
    _get("/metrics", AGENT, "Prometheus metrics", None, media="text/plain", errors=ANY, access=METRICS),
    _get("/", AGENT, "Status page", None, media="text/html", errors=ANY, access=METRICS),
    _get("/status.json", AGENT, "What the status page shows", dict[str, Any], errors=ANY, access=METRICS),
    _get("/openapi.json", AGENT, "This document", dict[str, Any], errors=ANY),
)
