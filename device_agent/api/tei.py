"""The routes that users of text-embeddings-inference know: `/rerank`, `/classify`, `/embed`, `/similarity`, `/info`.

Requests and answers have its form (router/src/http/types.rs there); `/predict` is its name for `/classify`. What is
defined here, because one agent serves several models, and because models differ:

- `model` names a model; without it the first one that was loaded for the route's task answers: text-ranking for
  `/rerank`, text-classification (then text-ranking) for `/classify`, embedding for `/embed` and `/similarity`;
- a text that is longer than the model reads is cut unless `truncate` is false (then the request is refused), on the
  side that `truncation_direction` says, or else where the model's own tokenizer cuts;
- `/rerank` scores are the sigmoid of the logit, and those of `/classify` what the source's own pipeline gives
  (softmax; sigmoid for independent labels or a single one; the value itself for a regression); with `raw_scores` both
  are logits. Results are sorted by score, the highest first; of equal ones, the one that was sent first comes first;
- `inputs` of `/classify` are one text, one pair (a list of two strings), or a list of lists of one or two strings: all
  of them single texts or all of them pairs;
- `inputs` of `/embed` may be token ids, which are taken as they are. `prompt_name` is refused: a bundle knows one
  prompt, its default, and applies it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import orjson
from edgeonnx_ext import label_scores, sigmoid_into

from device_agent.api.context import Job, Rendered
from device_agent.api.cutting import Cut, cut_rows
from device_agent.api.edge.body import check_texts, of_type, parse_object, required
from device_agent.api.tasks import (
    EMBEDDING,
    LOGITS,
    SCORES,
    check_fields,
    dimensions_of,
    embeddings_of,
    finite,
    model_for,
    one_text,
    optional_flag,
    optional_text,
    texts_or_tokens,
)
from device_agent.models.loaded import encoder_of
from edgeonnx import __version__
from edgeonnx.errors import InvalidRequestError, RequestTooLargeError
from edgeonnx.spec.manifest import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from device_agent.api.context import Context
    from device_agent.api.cutting import Side
    from device_agent.config import AgentConfig, Limits
    from device_agent.inference.rows import Answer
    from device_agent.models.loaded import LoadedModel

CUT_FIELDS = ("truncate", "truncation_direction")
RERANK_FIELDS = ("query", "texts", "raw_scores", "return_text", *CUT_FIELDS, "model")
CLASSIFY_FIELDS = ("inputs", "raw_scores", *CUT_FIELDS, "model")
EMBED_FIELDS = ("inputs", "normalize", "dimensions", "prompt_name", *CUT_FIELDS, "model")
SIMILARITY_FIELDS = ("inputs", "parameters", "model")
SIMILARITY_INPUTS = ("source_sentence", "sentences")
SIMILARITY_PARAMETERS = ("prompt_name", *CUT_FIELDS)
CLASSIFIERS = (Task.TEXT_CLASSIFICATION, Task.TEXT_RANKING)
DIRECTIONS: dict[str, Side] = {"left": "left", "Left": "left", "right": "right", "Right": "right"}


def prepare_rerank(context: Context, _request: Request, data: bytes) -> Job:
    """How well each of `texts` answers `query`.

    Raises:
        ModelNotFoundError: There is no such model, or none for this task.
        InvalidRequestError: The body is wrong, or the model gives more than one score for a pair.
        RequestTooLargeError: A limit is exceeded.
    """
    body = parse_object(data)
    live = model_for(context.models, optional_text(body, "model"), Task.TEXT_RANKING)
    loaded, limits = encoder_of(live.loaded), context.config.limits
    _check_single_score(loaded)
    check_fields(body, RERANK_FIELDS)
    query = one_text(required(body, "query"), "query", limits)
    texts = check_texts(of_type(required(body, "texts"), list, "texts"), "texts", limits)
    _check_pairs_size(query, texts, limits)
    raw = optional_flag(body, "raw_scores", False)
    return_text = optional_flag(body, "return_text", False)
    queries = [query] * len(texts)
    return Job(
        live=live,
        texts=queries,
        pairs=texts,
        tokenize=partial(cut_rows, loaded, queries, texts, _cut(body), "texts"),
        outputs=(LOGITS,),
        render=lambda answer: Rendered(data=render_ranks(answer, texts if return_text else None, raw=raw)),
    )


def _check_single_score(loaded: LoadedModel) -> None:
    signature = loaded.manifest.entry_component.signature
    classes = next(spec.shape[-1] for spec in signature.outputs if spec.name == LOGITS)
    if classes != 1:
        raise InvalidRequestError(
            "this model gives more than one score for a pair",
            where="model",
            expected="a model with one",
            found=str(classes),
            hint="send the pairs to /classify",
        )


def _check_pairs_size(query: str, texts: Sequence[str], limits: Limits) -> None:
    """Bound what is tokenized: a long query with many short texts is a small body, and much work."""
    characters = len(query) * len(texts) + sum(map(len, texts))
    if characters > limits.max_body_bytes:
        raise RequestTooLargeError(
            "the pairs together are too long",
            where="query",
            expected=f"at most {limits.max_body_bytes:,} characters, the query counted once for each text",
            found=f"{characters:,}",
            hint="shorten the query, or send fewer texts in one request",
        )


def render_ranks(answer: Answer, texts: Sequence[str] | None, *, raw: bool) -> bytes:
    """The body of a `/rerank` response.

    Args:
        answer: Logits, (rows, 1).
        texts: What comes back with each rank; None: nothing.
        raw: The scores are the logits themselves.

    Raises:
        InferenceError: A logit is not finite.
    """
    logits = finite(answer, LOGITS)
    scores = logits
    if not raw:
        scores = np.empty_like(logits)
        sigmoid_into(logits, scores)
    # By logits: the sigmoid of large ones is 1.0 for all of them.
    order = np.argsort(-logits[:, 0], kind="stable").tolist()
    ranks: list[dict[str, object]] = []
    for index in order:
        rank: dict[str, object] = {"index": index} if texts is None else {"index": index, "text": texts[index]}
        ranks.append({**rank, "score": scores[index, 0]})
    return orjson.dumps(ranks, option=orjson.OPT_SERIALIZE_NUMPY)


def prepare_classify(context: Context, _request: Request, data: bytes) -> Job:
    """The labels of each input, the most likely first.

    Raises:
        ModelNotFoundError: There is no such model, or none for this task.
        InvalidRequestError: The body is wrong.
        RequestTooLargeError: A limit is exceeded.
    """
    body = parse_object(data)
    live = model_for(context.models, optional_text(body, "model"), *CLASSIFIERS)
    loaded = encoder_of(live.loaded)
    check_fields(body, CLASSIFY_FIELDS)
    inputs = required(body, "inputs")
    texts, pairs = _texts_and_pairs(inputs, context.config.limits)
    if pairs is None and loaded.manifest.task.takes_pairs:
        raise InvalidRequestError("this model scores pairs of texts", where="inputs", expected="two strings a row")
    single = isinstance(inputs, str) or isinstance(inputs[0], str)  # type: ignore[index]
    raw = optional_flag(body, "raw_scores", False)
    return Job(
        live=live,
        texts=texts,
        pairs=pairs,
        tokenize=partial(cut_rows, loaded, texts, pairs, _cut(body), "inputs"),
        outputs=(LOGITS if raw else SCORES,),
        render=lambda answer: Rendered(
            data=render_labels(answer, LOGITS if raw else SCORES, loaded.manifest.labels, single=single)
        ),
    )


def _texts_and_pairs(inputs: object, limits: Limits) -> tuple[list[str], list[str] | None]:
    """Tell one text, one pair and a list of either apart; the seconds are None where rows are single texts."""
    if isinstance(inputs, str):
        return check_texts([inputs], "inputs", limits), None
    rows = of_type(inputs, list, "inputs")
    if rows and isinstance(rows[0], str):
        rows = [rows]
    if not rows or len(rows) > limits.max_texts:
        check_texts(rows, "inputs", limits)  # raises, with the right words
    columns: tuple[list[object], list[object]] = ([], [])
    for index, row in enumerate(rows):
        texts = of_type(row, list, f"inputs[{index}]")
        if len(texts) not in (1, 2) or len(texts) != len(rows[0]):
            raise InvalidRequestError(
                "is neither a text nor a pair as the other rows are",
                where=f"inputs[{index}]",
                expected="one string in every row, or two strings in every row",
                found=f"{len(texts)}",
            )
        for column, text in zip(columns, texts, strict=False):
            column.append(text)
    first = check_texts(columns[0], "inputs", limits)
    return first, check_texts(columns[1], "inputs", limits) if columns[1] else None


def render_labels(answer: Answer, output: str, labels: Sequence[str], *, single: bool) -> bytes:
    """The body of a `/classify` response.

    Args:
        answer: Scores or logits, (rows, labels).
        output: Which of them.
        labels: Names of the columns; empty: they are called LABEL_0, LABEL_1, ...
        single: The request held one input outside a list, so the answer is its list of labels.

    Raises:
        InferenceError: A score is not finite.
    """
    scores = finite(answer, output)
    names = labels or [f"LABEL_{index}" for index in range(scores.shape[1])]
    # As float32, or each score would be written with the digits of the float64 that Python made of it.
    rows = [
        [{"score": np.float32(item.score), "label": item.label} for item in row] for row in label_scores(scores, names)
    ]
    return orjson.dumps(rows[0] if single else rows, option=orjson.OPT_SERIALIZE_NUMPY)


def prepare_embed(context: Context, _request: Request, data: bytes) -> Job:
    """The embedding of each input.

    Raises:
        ModelNotFoundError: There is no such model, or none for this task.
        InvalidRequestError: The body is wrong.
        RequestTooLargeError: A limit is exceeded.
    """
    body = parse_object(data)
    live = model_for(context.models, optional_text(body, "model"), Task.EMBEDDING)
    loaded = encoder_of(live.loaded)
    check_fields(body, EMBED_FIELDS)
    _check_prompt(body)
    inputs = texts_or_tokens(required(body, "inputs"), "inputs", loaded, context.config.limits)
    dimensions = dimensions_of(body.get("dimensions"), loaded)
    normalize = optional_flag(body, "normalize", True)
    cut = _cut(body)
    return Job(
        live=live,
        texts=inputs.texts,
        tokenize=None if inputs.texts is None else partial(cut_rows, loaded, inputs.texts, None, cut, "inputs"),
        rows=None if inputs.tokens is None else loaded.text.rows_of_tokens(inputs.tokens),
        outputs=(EMBEDDING,),
        render=lambda answer: Rendered(
            data=orjson.dumps(
                list(embeddings_of(answer, dimensions=dimensions, normalize=normalize)),
                option=orjson.OPT_SERIALIZE_NUMPY,
            )
        ),
    )


def prepare_similarity(context: Context, _request: Request, data: bytes) -> Job:
    """The cosine of each of `sentences` to `source_sentence`.

    Raises:
        ModelNotFoundError: There is no such model, or none for this task.
        InvalidRequestError: The body is wrong.
        RequestTooLargeError: A limit is exceeded.
    """
    body = parse_object(data)
    live = model_for(context.models, optional_text(body, "model"), Task.EMBEDDING)
    check_fields(body, SIMILARITY_FIELDS)
    inputs = of_type(required(body, "inputs"), dict, "inputs")
    check_fields(inputs, SIMILARITY_INPUTS, "inputs.")
    parameters: dict[str, object] = {}
    if body.get("parameters") is not None:
        parameters = of_type(body["parameters"], dict, "parameters")
    check_fields(parameters, SIMILARITY_PARAMETERS, "parameters.")
    _check_prompt(parameters, "parameters.")
    limits = context.config.limits
    source = one_text(required(inputs, "source_sentence", "inputs"), "inputs.source_sentence", limits)
    others = of_type(required(inputs, "sentences", "inputs"), list, "inputs.sentences")
    texts = [source, *check_texts(others, "inputs.sentences", limits)]
    return Job(
        live=live,
        texts=texts,
        tokenize=partial(cut_rows, encoder_of(live.loaded), texts, None, _cut(parameters, "parameters."), "inputs"),
        outputs=(EMBEDDING,),
        render=lambda answer: Rendered(data=render_similarities(answer)),
    )


def render_similarities(answer: Answer) -> bytes:
    """The body of a `/similarity` response: the first row's cosine with each other one."""
    embeddings = embeddings_of(answer, normalize=True)
    return orjson.dumps(embeddings[1:] @ embeddings[0], option=orjson.OPT_SERIALIZE_NUMPY)


def _cut(fields: dict[str, object], where: str = "") -> Cut:
    """What the request wants done with texts that are too long."""
    direction = optional_text(fields, "truncation_direction", where)
    if direction is not None and direction not in DIRECTIONS:
        raise InvalidRequestError(
            "unknown direction",
            where=f"{where}truncation_direction",
            expected="Left or Right",
            found=repr(direction[:40]),
        )
    return Cut(
        truncate=optional_flag(fields, "truncate", True, where),
        side=None if direction is None else DIRECTIONS[direction],
    )


def _check_prompt(fields: dict[str, object], where: str = "") -> None:
    if optional_text(fields, "prompt_name", where) is not None:
        raise InvalidRequestError(
            "a bundle has no prompts by name",
            where=f"{where}prompt_name",
            hint="leave it out: the model's default prompt is applied",
        )


def info(loaded: LoadedModel, config: AgentConfig) -> dict[str, object]:
    """The answer of `/info`, as far as an agent has what it asks for.

    Raises:
        InvalidRequestError: The model generates text.
    """
    encoder_of(loaded)
    manifest = loaded.manifest
    return {
        "model_id": manifest.name,
        "model_sha": loaded.bundle.digest,
        "model_dtype": loaded.engine.variant.precision,
        "served_model_name": manifest.name,
        "model_type": _model_type(loaded),
        "max_input_length": manifest.processing.max_length,
        "max_batch_tokens": config.queue.batch_tokens,
        "max_client_batch_size": config.limits.max_texts,
        "auto_truncate": True,
        "version": __version__,
    }


def _model_type(loaded: LoadedModel) -> dict[str, object]:
    task = loaded.manifest.task
    names = {str(index): label for index, label in enumerate(loaded.manifest.labels)}
    labels = {"id2label": names, "label2id": {label: int(index) for index, label in names.items()}}
    if task is Task.TEXT_RANKING:
        return {"reranker": labels}
    if task in (Task.TEXT_CLASSIFICATION, Task.TOKEN_CLASSIFICATION):
        return {"classifier": labels}
    return {"embedding": {"pooling": "none" if task is Task.FEATURE_EXTRACTION else "in the graph"}}
