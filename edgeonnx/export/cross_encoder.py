"""What sentence-transformers does around a cross-encoder, read from the directory's configuration files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.errors import UnsupportedModelError
from edgeonnx.export.module_files import (
    MODEL_FILE,
    default_prompt,
    has_modules,
    model_config,
    read_encoder_settings,
    read_modules,
    unsupported_modules,
)

if TYPE_CHECKING:
    from edgeonnx.export.source import Source

MODEL_TYPE = "CrossEncoder"
ACTIVATIONS = ("sigmoid", "identity", "softmax")


@dataclass(frozen=True, kw_only=True)
class CrossEncoderHead:
    """What happens around the classifier of a cross-encoder.

    Attributes:
        activation: `sigmoid`, `identity` or `softmax` on the logits.
        max_length: `max_seq_length` from the directory, or None.
        lowercase: Whether text is lower-cased before the tokenizer.
        prefix: The default prompt; it stands in front of the first text of a pair.
    """

    activation: str
    max_length: int | None
    lowercase: bool
    prefix: str


def is_cross_encoder(source: Source) -> bool:
    """Whether the directory's own files say that it is a cross-encoder."""
    stated = (source.read_json(MODEL_FILE) or {}).get("model_type")
    return stated == MODEL_TYPE or _stored_activation(source) is not None


def read_cross_encoder(source: Source, classes: int) -> CrossEncoderHead:
    """Read what a cross-encoder's directory does around its classifier.

    Args:
        source: The directory.
        classes: Number of classes; one class means sigmoid where no activation is stored.

    Raises:
        UnsupportedModelError: A module or a setting is not known.
    """
    config = model_config(source, MODEL_TYPE)
    if has_modules(source):
        kinds = [kind for kind, _ in read_modules(source)]
        if kinds != ["Transformer"]:
            unsupported_modules(source, " -> ".join(kinds), expected="Transformer alone")
    settings = read_encoder_settings(source, output="logits")
    stated = config.get("activation_fn") or _stored_activation(source)
    return CrossEncoderHead(
        activation=_activation_name(source, str(stated) if stated else None, classes),
        max_length=settings.max_length,
        lowercase=settings.lowercase,
        prefix=default_prompt(config),
    )


def _stored_activation(source: Source) -> str | None:
    """The activation in `config.json`, where releases before 5 kept it (the newer, then the older place)."""
    section = source.config.get("sentence_transformers")
    stated = section.get("activation_fn") if isinstance(section, dict) else None
    stated = stated or source.config.get("sbert_ce_default_activation_function")
    return str(stated) if stated else None


def _activation_name(source: Source, stated: str | None, classes: int) -> str:
    if stated is None:
        return "sigmoid" if classes == 1 else "identity"
    name = stated.rsplit(".", 1)[-1].lower()
    if not stated.startswith("torch.nn.") or name not in ACTIVATIONS:
        raise UnsupportedModelError(
            "the activation of the scores is not supported",
            where=f"{source.identity}: activation_fn",
            expected="Sigmoid, Identity or Softmax of torch.nn",
            found=repr(stated),
        )
    return name
