"""What the routes for a task share: which model serves them, texts or token ids, how long texts are cut, scores.

These are `/v1/embeddings` and the routes of text-embeddings-inference. `/v2` takes a model for what its graph is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from edgeonnx_ext import l2_normalize_into

from device_agent.api.edge.body import (
    check_ids,
    check_integers,
    check_row_count,
    check_texts,
    check_width,
    of_type,
)
from device_agent.api.open_inference.response import check_finite
from device_agent.models.loaded import LoadedDecoder, LoadedEncoder, encoder_of
from edgeonnx.errors import InvalidRequestError, ModelNotFoundError, RequestTooLargeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from device_agent.config import Limits
    from device_agent.inference.rows import Answer
    from device_agent.models.loaded import LoadedModel
    from device_agent.models.registry import LiveModel, Models
    from edgeonnx.spec.manifest import Task

EMBEDDING = "sentence_embedding"
LOGITS = "logits"
SCORES = "scores"


def model_for(models: Models, name: str | None, *tasks: Task) -> LiveModel:
    """The model that serves a route.

    Args:
        models: The agent's models.
        name: The model that the request names; None takes the first one, in order of loading, of the first of `tasks`
            that there is one of.
        tasks: Tasks that the route serves.

    Raises:
        NotReadyError: Nothing serves yet, or the agent is stopping.
        ModelNotFoundError: There is no model of that name, or none for these tasks.
        InvalidRequestError: The model that the request names is for another task.
    """
    if name is not None:
        live = models.find(name)
        check_task(live.loaded, *tasks)
        return live
    models.check_ready()
    for task in tasks:
        for live in models.all():
            if live.loaded.manifest.task is task:
                return live
    raise ModelNotFoundError(
        "no model for this route is loaded",
        where="model",
        expected=_names(tasks),
        found=", ".join(f"{live.loaded.name} ({live.loaded.manifest.task.value})" for live in models.all()),
    )


def check_task(loaded: LoadedModel, *tasks: Task) -> None:
    """Refuse a model that is for another task.

    Raises:
        InvalidRequestError: It is.
    """
    if loaded.manifest.task not in tasks:
        if isinstance(loaded, LoadedDecoder):
            encoder_of(loaded)
        raise InvalidRequestError(
            "this model does not serve this route",
            where="model",
            expected=_names(tasks),
            found=loaded.manifest.task.value,
            hint=f"use /v2/models/{loaded.name}/infer",
        )


def _names(tasks: Sequence[Task]) -> str:
    return f"a model for the task {' or '.join(task.value for task in tasks)}"


def check_fields(body: Mapping[str, object], known: Sequence[str], where: str = "") -> None:
    """Refuse a field that nothing reads: most likely it is misspelled, and its wish would be ignored in silence.

    Raises:
        InvalidRequestError: There is one.
    """
    for name in body:
        if name not in known:
            raise InvalidRequestError("unknown field", where=f"{where}{name[:80]}", expected=", ".join(known))


def optional_flag(body: Mapping[str, object], name: str, default: bool, where: str = "") -> bool:
    """A field that is true or false; null counts as absent.

    Raises:
        InvalidRequestError: It is something else.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidRequestError("is of the wrong type", where=f"{where}{name}", expected="true or false")
    return value


def optional_text(body: Mapping[str, object], name: str, where: str = "") -> str | None:
    """A field that is a string; null counts as absent.

    Raises:
        InvalidRequestError: It is something else.
    """
    value = body.get(name)
    return None if value is None else of_type(value, str, f"{where}{name}")


def one_text(value: object, where: str, limits: Limits) -> str:
    """A field that is one text.

    Raises:
        InvalidRequestError: It is something else.
        RequestTooLargeError: It is too long.
    """
    return check_texts([of_type(value, str, where)], where, limits)[0]


@dataclass(frozen=True, kw_only=True)
class TextsOrTokens:
    """What is to be embedded: exactly one of texts and rows of token ids."""

    texts: list[str] | None = None
    tokens: list[list[int]] | None = None


def texts_or_tokens(value: object, where: str, loaded: LoadedEncoder, limits: Limits) -> TextsOrTokens:
    """Check an input that is a text, a list of texts, a list of token ids, or a list of such lists.

    The first element tells which; every other one must be like it.

    Args:
        value: The field.
        where: Its name.
        loaded: The model, for its vocabulary and the length that it reads.
        limits: The agent's limits.

    Raises:
        InvalidRequestError: It is something else, or a row of tokens is not one that the model reads.
        RequestTooLargeError: A limit is exceeded.
    """
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise InvalidRequestError("is of the wrong type", where=where, expected="a text or an array")
    if value and isinstance(value[0], int | float):
        return TextsOrTokens(tokens=[_tokens(value, where, loaded)])
    check_row_count(len(value), where, limits)
    if not isinstance(value[0], list):
        return TextsOrTokens(texts=check_texts(value, where, limits))
    numbers = sum(len(row) for row in value if isinstance(row, list))
    if numbers > limits.max_json_numbers:
        raise RequestTooLargeError(
            "has too many tokens", where=where, expected=f"at most {limits.max_json_numbers:,}", found=f"{numbers:,}"
        )
    rows = enumerate(value)
    return TextsOrTokens(
        tokens=[_tokens(of_type(row, list, f"{where}[{i}]"), f"{where}[{i}]", loaded) for i, row in rows]
    )


def _tokens(row: list[int], where: str, loaded: LoadedEncoder) -> list[int]:
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


def dimensions_of(value: object, loaded: LoadedModel) -> int | None:
    """The dimensions to keep; None keeps all.

    Raises:
        InvalidRequestError: It is no integer from 1 to the dimensions that the model has.
    """
    if value is None:
        return None
    size = loaded.manifest.entry_component.signature.outputs[0].shape[-1]
    wanted = of_type(value, int, "dimensions")
    if not 1 <= wanted <= int(size):
        raise InvalidRequestError(
            "is out of range", where="dimensions", expected=f"1 to {size}", found=str(wanted)[:40]
        )
    return wanted


def embeddings_of(answer: Answer, *, dimensions: int | None = None, normalize: bool = False) -> NDArray[np.float32]:
    """The embeddings of an answer as C-contiguous float32 (rows, dimensions).

    Args:
        answer: The answer of an embedding model.
        dimensions: Keep the leading ones, and normalize them: a part of a vector of length 1 is shorter.
        normalize: Normalize in any case; otherwise whole embeddings stay as the model gives them.

    Raises:
        InferenceError: One holds a number that JSON does not have.
    """
    embeddings = finite(answer, EMBEDDING)
    if dimensions is not None and dimensions < embeddings.shape[1]:
        embeddings = np.ascontiguousarray(embeddings[:, :dimensions])
        normalize = True
    if not normalize:
        return embeddings
    normalized = np.empty_like(embeddings)
    l2_normalize_into(embeddings, normalized)
    return normalized


def finite(answer: Answer, output: str) -> NDArray[np.float32]:
    """An output of an answer as C-contiguous float32.

    Raises:
        InferenceError: It holds NaN or an infinity: JSON has no such numbers, and nobody can rank by them.
    """
    values = np.ascontiguousarray(answer.outputs[output], dtype=np.float32)
    check_finite(values, output)
    return values
