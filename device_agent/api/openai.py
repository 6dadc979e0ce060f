"""OpenAI's `/v1/models` and `/v1/embeddings`, for clients that exist.

Defined answers of `/v1/embeddings`:

- `input` is a text, a list of texts, a list of token ids, or a list of such lists. Token ids are taken as they are:
  special tokens are the client's to add, and rows that are longer than the model reads are refused;
- an empty text has an embedding: that of the model's special tokens alone, as sentence-transformers gives it. An
  empty list has none and is refused;
- a text that is longer than the model reads is cut as the source's tokenizer cuts it;
- `dimensions` keeps the leading dimensions and normalizes them again, which is what Matryoshka models are trained
  for; the agent does not know whether this model is one;
- `usage` counts tokens as the model reads them: special tokens included, after cutting, without padding;
- OpenAI's own clients say in a header how long they wait. An answer that would come later is not computed: the
  request's deadline is that time, where it is shorter than the agent's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
from edgeonnx_ext import base64_rows

from device_agent.api.context import Job, Rendered
from device_agent.api.edge.body import of_type, parse_object, required
from device_agent.api.tasks import (
    EMBEDDING,
    TextsOrTokens,
    check_fields,
    dimensions_of,
    embeddings_of,
    model_for,
    optional_text,
    texts_or_tokens,
)
from device_agent.models.loaded import encoder_of
from edgeonnx.errors import InvalidRequestError
from edgeonnx.spec.manifest import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from device_agent.api.context import Context
    from device_agent.config import Limits
    from device_agent.inference.rows import Answer
    from device_agent.models.loaded import LoadedEncoder, LoadedModel

ENCODINGS = ("float", "base64")
FIELDS = ("model", "input", "encoding_format", "dimensions", "user")
TIMEOUT_HEADERS = ("x-stainless-read-timeout", "x-stainless-timeout")
"""Headers in which OpenAI's clients (Python; JavaScript) say how many seconds they wait for an answer."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingsRequest:
    """A checked request: what to embed, the encoding, and the dimensions to keep (None: all)."""

    encoding: str
    dimensions: int | None
    input: TextsOrTokens


def parse_embeddings(body: dict[str, object], loaded: LoadedEncoder, limits: Limits) -> EmbeddingsRequest:
    """Check the body of an embeddings request.

    Raises:
        InvalidRequestError: A field is missing, unknown or wrong.
        RequestTooLargeError: A limit is exceeded.
    """
    check_fields(body, FIELDS)
    optional_text(body, "user")
    encoding = optional_text(body, "encoding_format")
    if encoding is None:
        encoding = ENCODINGS[0]
    if encoding not in ENCODINGS:
        raise InvalidRequestError(
            "unknown encoding", where="encoding_format", expected=" or ".join(ENCODINGS), found=repr(encoding[:40])
        )
    return EmbeddingsRequest(
        encoding=encoding,
        dimensions=dimensions_of(body.get("dimensions"), loaded),
        input=texts_or_tokens(required(body, "input"), "input", loaded, limits),
    )


def seconds_to_wait(headers: Mapping[str, str], default: float) -> float:
    """How long a request may take, in seconds: what its client says that it waits, but never more than `default`.

    The header is not the user's word but the client's setting (ten minutes where nobody set it), so it can only
    shorten the time; what is no positive number is ignored.
    """
    for name in TIMEOUT_HEADERS:
        try:
            seconds = float(headers.get(name, ""))
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds > 0:
            return min(seconds, default)
    return default


def prepare_embeddings(context: Context, request: Request, data: bytes) -> Job:
    """What an embeddings request asks for.

    Raises:
        ModelNotFoundError: There is no model of that name.
        InvalidRequestError: It is for another task, or as `parse_embeddings` says.
        RequestTooLargeError: A limit is exceeded.
    """
    body = parse_object(data)
    live = model_for(context.models, of_type(required(body, "model"), str, "model"), Task.EMBEDDING)
    loaded = encoder_of(live.loaded)
    asked = parse_embeddings(body, loaded, context.config.limits)
    tokens = asked.input.tokens
    return Job(
        live=live,
        texts=asked.input.texts,
        rows=None if tokens is None else loaded.text.rows_of_tokens(tokens),
        outputs=(EMBEDDING,),
        seconds=seconds_to_wait(request.headers, context.config.queue.deadline_seconds),
        render=lambda answer: Rendered(data=render_embeddings(answer, asked, loaded.name)),
    )


def render_embeddings(answer: Answer, request: EmbeddingsRequest, model: str) -> bytes:
    """The body of an embeddings response.

    Raises:
        InferenceError: The embedding holds a number that JSON does not have.
    """
    embeddings = embeddings_of(answer, dimensions=request.dimensions)
    # orjson writes float32 rows as fast as our own kernel does, so floats stay with it.
    rows = base64_rows(embeddings) if request.encoding == "base64" else list(embeddings)
    tokens = int(answer.lengths.sum())
    response = {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return orjson.dumps(response, option=orjson.OPT_SERIALIZE_NUMPY)


def model_object(loaded: LoadedModel) -> dict[str, object]:
    """One element of `/v1/models`."""
    return {
        "id": loaded.manifest.name,
        "object": "model",
        "created": int(loaded.loaded_at),
        "owned_by": "edgeonnx",
    }
