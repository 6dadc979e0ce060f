"""What a source model is for: the task, and what follows from it for the graph's outputs.

Pure: decisions are made from parsed configuration files, so they are tested without a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.errors import UnsupportedModelError, UsageError
from edgeonnx.export.cross_encoder import CrossEncoderHead, is_cross_encoder, read_cross_encoder
from edgeonnx.export.decoder.families import DECODER_CLASSES, DECODER_FAMILIES, check_decoder
from edgeonnx.export.embedding_head import EmbeddingHead, read_embedding_head
from edgeonnx.export.module_files import has_modules
from edgeonnx.spec.manifest import Task

if TYPE_CHECKING:
    from edgeonnx.export.source import Source

# Encoder families whose export is tested (tests/integration/test_package_families.py). Others are refused rather than
# hoped for: that an export runs through says nothing about what it computes.
SUPPORTED_FAMILIES = (
    "albert",
    "bert",
    "camembert",
    "deberta-v2",
    "distilbert",
    "electra",
    "ernie",
    "eurobert",
    "gte",
    "modernbert",
    "mpnet",
    "nomic_bert",
    "roberta",
    "xlm-roberta",
)
MAX_LABELS = 1 << 20
# Families whose position ids start after the padding id, which takes that many places from the position table.
OFFSET_POSITION_FAMILIES = ("camembert", "mpnet", "roberta", "xlm-roberta")


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """The task, and what the graph must do for it.

    Attributes:
        task: The task.
        head: What sentence-transformers does around the model; None for models of transformers alone.
        activation: `softmax`, `sigmoid` or `identity` on the logits, for tasks that score.
        labels: Names of the classes by index.
    """

    task: Task
    head: EmbeddingHead | CrossEncoderHead | None = None
    activation: str | None = None
    labels: tuple[str, ...] = ()

    @property
    def embedding(self) -> EmbeddingHead | None:
        """Pooling and what follows it, for embeddings."""
        return self.head if isinstance(self.head, EmbeddingHead) else None


def plan_task(source: Source, requested: Task | None) -> TaskPlan:
    """Decide what a source model computes, from its own files or from what the user asked for.

    Raises:
        UnsupportedModelError: The architecture, a module or a setting is not known, or does not fit the task.
        UsageError: The files do not tell the task and the user did not say it.
    """
    check_family(source)
    task = requested or detect_task(source)
    _check_architecture(source, task)
    if task is Task.TEXT_GENERATION:
        check_decoder(source.config, where=f"{source.identity}: config.json")
        return TaskPlan(task=task)
    if task is Task.EMBEDDING:
        return TaskPlan(task=task, head=read_embedding_head(source))
    if task is Task.FEATURE_EXTRACTION:
        return TaskPlan(task=task)
    labels = read_labels(source)
    if task is Task.TEXT_RANKING:
        ranking = read_cross_encoder(source, len(labels))
        return TaskPlan(task=task, head=ranking, activation=ranking.activation, labels=labels)
    return TaskPlan(task=task, activation=_activation(source, task, labels), labels=labels)


def check_family(source: Source) -> None:
    """Refuse architectures that are not tested.

    Raises:
        UnsupportedModelError: With the list of those that are.
    """
    known = (*SUPPORTED_FAMILIES, *DECODER_FAMILIES)
    if source.model_type not in known:
        raise UnsupportedModelError(
            "the architecture is not supported",
            where=f"{source.identity}: config.json: model_type",
            expected=f"one of {', '.join(known)}",
            found=repr(source.model_type),
        )
    if source.model_type in SUPPORTED_FAMILIES and source.config.get("is_decoder") is True:
        raise UnsupportedModelError(
            "is configured as a decoder; of this family text encoders are supported",
            where=f"{source.identity}: config.json: is_decoder",
        )


def detect_task(source: Source) -> Task:
    """The task that a source model's own files state.

    Raises:
        UsageError: They do not state it.
    """
    if is_cross_encoder(source):
        return Task.TEXT_RANKING
    if has_modules(source):
        return Task.EMBEDDING
    if source.architecture in DECODER_CLASSES.values():
        return Task.TEXT_GENERATION
    if source.architecture.endswith("ForSequenceClassification"):
        return Task.TEXT_CLASSIFICATION
    if source.architecture.endswith("ForTokenClassification"):
        return Task.TOKEN_CLASSIFICATION
    if source.architecture.endswith("Model"):
        return Task.FEATURE_EXTRACTION
    raise UsageError(
        "the files do not say what the model is for",
        where=f"{source.identity}: config.json: architectures",
        found=repr(source.architecture),
        hint=f"say it with --task {', '.join(task.value for task in Task)}",
    )


def _check_architecture(source: Source, task: Task) -> None:
    """The weights must have the head that the task needs: a fresh, random head would answer confidently and wrongly."""
    own = DECODER_CLASSES.get(source.model_type)
    if (own is not None) != (task is Task.TEXT_GENERATION):
        raise UnsupportedModelError(
            f"the architecture is not supported for the task {task.value}",
            where=f"{source.identity}: config.json: model_type",
            expected=f"one of {', '.join(DECODER_FAMILIES if own is None else SUPPORTED_FAMILIES)}",
            found=source.model_type,
        )
    suffix = own or {
        Task.TEXT_CLASSIFICATION: "ForSequenceClassification",
        Task.TEXT_RANKING: "ForSequenceClassification",
        Task.TOKEN_CLASSIFICATION: "ForTokenClassification",
    }.get(task)
    if suffix is not None and not source.architecture.endswith(suffix):
        raise UnsupportedModelError(
            f"the weights have no head for the task {task.value}",
            where=f"{source.identity}: config.json: architectures",
            expected=f"a class that ends in {suffix}",
            found=repr(source.architecture),
        )


def read_labels(source: Source) -> tuple[str, ...]:
    """The class names by index, from `id2label`; `LABEL_0`, ... where there are none (transformers' own default)."""
    names = source.config.get("id2label")
    if isinstance(names, dict) and names:
        expected = [str(index) for index in range(len(names))]
        if sorted(names, key=lambda key: (len(key), key)) != expected:
            raise UnsupportedModelError(
                "the class indices have gaps",
                where=f"{source.identity}: config.json: id2label",
                expected=f"the keys 0 to {len(names) - 1}",
                found=", ".join(list(names)[:10]),
            )
        return tuple(str(names[key]) for key in expected)
    count = source.config.get("num_labels", 2)
    if not isinstance(count, int) or not 1 <= count <= MAX_LABELS:
        raise UnsupportedModelError(
            "the number of classes is not usable",
            where=f"{source.identity}: config.json: num_labels",
            expected=f"an integer from 1 to {MAX_LABELS}",
            found=repr(count)[:80],
        )
    return tuple(f"LABEL_{index}" for index in range(count))


def _activation(source: Source, task: Task, labels: tuple[str, ...]) -> str:
    """The function from logits to scores, as the source's own pipelines choose it."""
    if task is Task.TOKEN_CLASSIFICATION:
        return "softmax"
    problem = source.config.get("problem_type")
    if problem == "regression":
        return "identity"
    if problem == "multi_label_classification" or len(labels) == 1:
        return "sigmoid"
    return "softmax"


def position_limit(config: dict[str, object]) -> int | None:
    """Longest row that the model's position table allows, or None if the configuration does not say."""
    places = config.get("max_position_embeddings")
    if not isinstance(places, int) or places < 1:
        return None
    if config.get("model_type") in OFFSET_POSITION_FAMILIES:
        pad = config.get("pad_token_id", 1)
        return places - (pad if isinstance(pad, int) else 1) - 1
    return places


def choose_max_length(*, requested: int | None, stated: int | None, tokenizer: int | None, limit: int | None) -> int:
    """The longest row in tokens: what the user asked for, else what the source itself uses, within the position table.

    Args:
        requested: `--max-length`.
        stated: sentence-transformers' `max_seq_length`.
        tokenizer: The tokenizer's `model_max_length`; huge values stand for "not stated".
        limit: See `position_limit`.

    Raises:
        UsageError: The user asked for more than the position table has, or nothing states a length.
    """
    if requested is not None:
        if limit is not None and requested > limit:
            raise UsageError(
                "is longer than the model's position table",
                where="--max-length",
                expected=f"at most {limit}",
                found=str(requested),
            )
        return requested
    own = stated if stated is not None else tokenizer
    candidates = [value for value in (own, limit) if value is not None and 0 < value < 1 << 24]
    if not candidates:
        raise UsageError("the model does not state its longest input", hint="say it with --max-length")
    return min(candidates)
