"""Reading a model with transformers: from plain files alone, whole, and finite; or an error that says what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers

from edgeonnx.errors import CorruptSourceError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from edgeonnx.export.source import Source


def read_config(source: Source, folder: Path, **options: Any) -> Any:
    """The configuration as transformers reads it, first of all: otherwise its faults are told of other files.

    Args:
        source: The source, for the message.
        folder: Where its files are.
        options: Further arguments of transformers.

    Raises:
        CorruptSourceError: transformers does not accept it.
    """
    try:
        return transformers.AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **options
        )
    except Exception as error:
        raise CorruptSourceError(
            "has a configuration that transformers does not accept",
            where=str(source.path / (source.gguf or "config.json")),
            found=f"{type(error).__name__}: {first_line(error)}",
        ) from error


def read_model(source: Source, auto_class: Any, folder: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The model in float32, and what transformers says of its weights.

    Args:
        source: The source, for the message.
        auto_class: Class of transformers that loads it.
        folder: Where its files are.
        options: Further arguments of transformers.

    Raises:
        CorruptSourceError: transformers does not load it.
    """
    try:
        model, info = auto_class.from_pretrained(
            str(folder),
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    except Exception as error:
        raise CorruptSourceError(
            "cannot be loaded by transformers",
            where=str(source.path / (source.gguf or "")),
            found=f"{type(error).__name__}: {first_line(error)}",
        ) from error
    return model, info


def check_whole(source: Source, lacking: Iterable[str]) -> None:
    """Weights that are missing, or have another shape, are an error and not a warning.

    Raises:
        CorruptSourceError: There are such.
    """
    names = list(lacking)
    if names:
        raise CorruptSourceError(
            "lacks weights; they would be random numbers",
            where=str(source.path),
            details=tuple(f"missing or of another shape: {name}" for name in names[:10]),
            hint="check that the weights belong to this config.json and to this task",
        )


def check_finite(source: Source, model: torch.nn.Module) -> None:
    """Refuse weights that are no numbers.

    Raises:
        CorruptSourceError: There are such.
    """
    bad = [name for name, value in model.named_parameters() if not bool(torch.isfinite(value).all())]
    if bad:
        raise CorruptSourceError(
            "has weights that are NaN or infinite",
            where=str(source.path),
            details=tuple(bad[:10]),
            hint="the training run diverged or the file is damaged",
        )
