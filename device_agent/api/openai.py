"""OpenAI's `/v1/models` and `/v1/embeddings`, for clients that exist.

Defined answers of `/v1/embeddings`:

- `input` is a text, a list of texts, a list of token ids, or a list of such lists. Token ids are taken as they are:
  special tokens are the client's to add, and rows that are longer than the model reads are refused;
- an empty text has an embedding: that of the model's special tokens alone, as sentence-transformers gives it. An
  empty list has none and is refused;
- a text that is longer than the model reads is cut as the source's tokenizer cuts it;
- `dimensions` keeps the leading dimensions and normalizes them again, which is what Matryoshka models are trained
  for; the agent does not know whether this model is one;
- `usage` counts tokens as the model reads them: special tokens included, after cutting, without padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import orjson
from edgeonnx_ext import base64_rows, l2_normalize_into

from device_agent.api.body import (
    check_ids,
    check_integers,
    check_row_count,
    check_texts,
    check_width,
    of_type,
    parse_object,
    required,
)
from device_agent.api.context import Job, Rendered
from device_agent.api.open_inference.infer import check_finite
from edgeonnx.errors import InvalidRequestError, ModelNotFoundError, RequestTooLargeError
from edgeonnx.spec.manifest import Task

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from starlette.requests import Request

    from device_agent.api.context import Context
    from device_agent.config import Limits
    from device_agent.inference.rows import Answer
    from device_agent.loading import LoadedModel
    from edgeonnx.spec.manifest import Manifest

OUTPUT = "sentence_embedding"
ENCODINGS = ("float", "base64")
FIELDS = ("model", "input", "encoding_format", "dimensions", "user")


@dataclass(frozen=True, kw_only=True)
class EmbeddingsRequest:
    """A checked request: `texts` or `tokens`, the encoding, and the dimensions to keep (None: all)."""

    encoding: str
    dimensions: int | None
    texts: list[str] | None = None
    tokens: list[list[int]] | None = None


def parse_embeddings(body: dict[str, object], loaded: LoadedModel, limits: Limits) -> EmbeddingsRequest:
    """Check the body of an embeddings request.

    Raises:
        ModelNotFoundError: `model` is another one.
        InvalidRequestError: A field is missing, unknown or wrong, or the model gives no embeddings.
        RequestTooLargeError: A limit is exceeded.
    """
    manifest = loaded.manifest
    for name in body:
        if name not in FIELDS:
            raise InvalidRequestError("unknown field", where=name[:80], expected=", ".join(FIELDS))
    if manifest.task is not Task.EMBEDDING:
        raise InvalidRequestError(
            "this model gives no embeddings",
            where="model",
            expected=f"a model for the task {Task.EMBEDDING.value}",
            found=manifest.task.value,
            hint=f"use /v2/models/{manifest.name}/infer",
        )
    if "user" in body:
        of_type(body["user"], str, "user")
    encoding = of_type(body.get("encoding_format", "float"), str, "encoding_format")
    if encoding not in ENCODINGS:
        raise InvalidRequestError(
            "unknown encoding", where="encoding_format", expected=" or ".join(ENCODINGS), found=repr(encoding[:40])
        )
    dimensions = _dimensions(body.get("dimensions"), manifest)
    texts, tokens = _input(required(body, "input"), loaded, limits)
    return EmbeddingsRequest(encoding=encoding, dimensions=dimensions, texts=texts, tokens=tokens)


def check_model(name: str, manifest: Manifest) -> None:
    """Refuse any other model than the one that serves.

    Raises:
        ModelNotFoundError: `name` is another one.
    """
    if name != manifest.name:
        raise ModelNotFoundError("no such model", where="model", expected=repr(manifest.name), found=repr(name[:80]))


def _dimensions(value: object, manifest: Manifest) -> int | None:
    if value is None:
        return None
    size = manifest.entry_component.signature.outputs[0].shape[-1]
    wanted = of_type(value, int, "dimensions")
    if not 1 <= wanted <= int(size):
        raise InvalidRequestError("is out of range", where="dimensions", expected=f"1 to {size}", found=str(wanted))
    return wanted


def _input(value: object, loaded: LoadedModel, limits: Limits) -> tuple[list[str] | None, list[list[int]] | None]:
    """Tell the four forms of `input` apart by the first element; every other element must be like it."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise InvalidRequestError("is of the wrong type", where="input", expected="a text or an array")
    if value and isinstance(value[0], int | float):
        return None, [_tokens(value, "input", loaded)]
    check_row_count(len(value), "input", limits)
    if isinstance(value[0], list):
        numbers = sum(len(row) for row in value if isinstance(row, list))
        if numbers > limits.max_json_numbers:
            raise RequestTooLargeError(
                "has too many tokens",
                where="input",
                expected=f"at most {limits.max_json_numbers:,}",
                found=str(numbers),
            )
        rows = [_tokens(of_type(row, list, f"input[{i}]"), f"input[{i}]", loaded) for i, row in enumerate(value)]
        return None, rows
    return check_texts(value, "input", limits), None


def _tokens(row: list[int], where: str, loaded: LoadedModel) -> list[int]:
    """One row of token ids."""
    if not row:
        raise InvalidRequestError("is empty", where=where, expected="at least one token id")
    check_width(len(row), where, loaded.manifest.processing.max_length)
    check_integers(row, where)
    try:
        check_ids(np.array(row, dtype=np.int64), where, loaded.text.vocabulary_size)
    except OverflowError:
        raise InvalidRequestError("holds an integer that is no token id", where=where) from None
    return row


def prepare_embeddings(context: Context, _request: Request, data: bytes) -> Job:
    """What an embeddings request asks for; raises as `parse_embeddings` does."""
    body = parse_object(data)
    live = context.models.find(of_type(required(body, "model"), str, "model"))
    asked = parse_embeddings(body, live.loaded, context.config.limits)
    return Job(
        live=live,
        texts=asked.texts,
        rows=None if asked.tokens is None else live.loaded.text.rows_of_tokens(asked.tokens),
        outputs=(OUTPUT,),
        render=lambda answer: Rendered(data=render_embeddings(answer, asked, live.loaded.manifest)),
    )


def render_embeddings(answer: Answer, request: EmbeddingsRequest, manifest: Manifest) -> bytes:
    """The body of an embeddings response.

    Raises:
        InferenceError: The embedding holds a number that JSON does not have.
    """
    embeddings = np.ascontiguousarray(answer.outputs[OUTPUT], dtype=np.float32)
    check_finite(embeddings, OUTPUT)
    if request.dimensions is not None and request.dimensions < embeddings.shape[1]:
        embeddings = shortened(embeddings, request.dimensions)
    # orjson writes float32 rows as fast as our own kernel does, so floats stay with it.
    rows = base64_rows(embeddings) if request.encoding == "base64" else list(embeddings)
    tokens = int(answer.lengths.sum())
    response = {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
        "model": manifest.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return orjson.dumps(response, option=orjson.OPT_SERIALIZE_NUMPY)


def shortened(embeddings: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """The leading `dimensions` of float32 (rows, dim), each row normalized to length 1 again."""
    leading = np.ascontiguousarray(embeddings[:, :dimensions])
    result = np.empty_like(leading)
    l2_normalize_into(leading, result)
    return result


def model_object(loaded: LoadedModel) -> dict[str, object]:
    """One element of `/v1/models`."""
    return {
        "id": loaded.manifest.name,
        "object": "model",
        "created": int(loaded.loaded_at),
        "owned_by": "edgeonnx",
    }
