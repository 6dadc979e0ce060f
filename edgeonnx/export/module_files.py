"""A sentence-transformers directory's own files: which modules, how the encoder is called, which prompt.

`modules.json` lists the modules in order; each has a folder with its own configuration. Nothing of it is imported:
class names are compared as text. What is not known is refused, since each of these settings can change the answers.
Where there is no `modules.json`, the library reads none of the other files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from edgeonnx.errors import CorruptSourceError, UnsafePathError, UnsafeSourceError, UnsupportedModelError
from edgeonnx.spec.paths import check_relative_path

if TYPE_CHECKING:
    from edgeonnx.export.source import Source

MODULES_FILE = "modules.json"
MODEL_FILE = "config_sentence_transformers.json"
# The encoder's settings; the library takes the first that exists.
ENCODER_FILES = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Settings that reach the tokenizer or the model; each must be absent or empty.
_ARGUMENTS = (
    "processing_kwargs",
    "processor_kwargs",
    "tokenizer_args",
    "config_kwargs",
    "config_args",
    "query_expansion",
)
# Of the arguments for loading the model, those that do not change what it computes.
_HARMLESS = ("trust_remote_code", "attn_implementation", "dtype", "torch_dtype", "device_map", "low_cpu_mem_usage")


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """How sentence-transformers calls the encoder.

    Attributes:
        max_length: `max_seq_length`, or None.
        lowercase: Whether text is lower-cased before the tokenizer.
    """

    max_length: int | None = None
    lowercase: bool = False


def has_modules(source: Source) -> bool:
    """Whether sentence-transformers wrote the directory."""
    return (source.path / MODULES_FILE).is_file()


def read_modules(source: Source) -> list[tuple[str, str]]:
    """Class name and folder of each module in `modules.json`, which must exist.

    Raises:
        UnsupportedModelError: It cannot be read, or names classes of other packages.
        UnsafeSourceError: It names a folder outside the model.
    """
    try:
        entries = json.loads((source.path / MODULES_FILE).read_text(encoding="utf-8"))
        modules = [(str(entry["type"]).rsplit(".", 1)[-1], str(entry["path"])) for entry in entries]
        foreign = [entry["type"] for entry in entries if not str(entry["type"]).startswith("sentence_transformers.")]
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        unsupported_modules(source, repr(error), expected="a list of objects with type and path")
    if foreign:
        unsupported_modules(
            source, str(foreign[0]), expected="modules of sentence-transformers (other code is never run)"
        )
    for index, (_, folder) in enumerate(modules):
        _check_folder(source, folder, f"[{index}].path")
    if modules and modules[0][0] == "Transformer" and modules[0][1]:
        unsupported_modules(source, modules[0][1], expected='the encoder\'s files beside modules.json (path "")')
    return modules


def _check_folder(source: Source, folder: str, field: str) -> None:
    """A module's files are below the source's own directory."""
    where = f"{source.identity}: {MODULES_FILE}: {field}"
    try:
        if folder:
            check_relative_path(folder, where=where)
    except UnsafePathError as error:
        raise UnsafeSourceError(
            "names a folder outside the model", where=where, expected=error.expected, found=error.found
        ) from None


def module_config(source: Source, folder: str) -> dict[str, object]:
    """The `config.json` of a module, which must be there: defaults would be a guess at what the model computes."""
    config = source.read_json(f"{folder}/config.json") if folder else None
    if config is None:
        raise CorruptSourceError(
            "a module of modules.json has no configuration",
            where=f"{source.identity}: {folder or MODULES_FILE}",
            expected=f"{folder or '<folder>'}/config.json",
        )
    return config


def model_config(source: Source, kind: str) -> dict[str, object]:
    """`config_sentence_transformers.json`, or an empty object.

    Args:
        source: The directory.
        kind: The `model_type` that it must be of, if it states one.

    Raises:
        UnsupportedModelError: It is of another type.
    """
    config = source.read_json(MODEL_FILE) if has_modules(source) else None
    stated = (config or {}).get("model_type", kind)
    if stated != kind:
        raise UnsupportedModelError(
            "is another type of model than the task needs",
            where=f"{source.identity}: {MODEL_FILE}: model_type",
            expected=repr(kind),
            found=repr(stated),
        )
    return config or {}


def default_prompt(config: dict[str, object]) -> str:
    """The text that stands in front of every text, from `config_sentence_transformers.json`."""
    name, prompts = config.get("default_prompt_name"), config.get("prompts")
    if name is None or not isinstance(prompts, dict):
        return ""
    return str(prompts.get(str(name)) or "")


def read_encoder_settings(source: Source, *, output: str) -> EncoderSettings:
    """The settings of the encoder's module.

    Args:
        source: The directory.
        output: The output of the transformers model that must be taken (`last_hidden_state`, `logits`).

    Raises:
        UnsupportedModelError: A setting would change the answers in a way that is not known.
    """
    if not has_modules(source):
        return EncoderSettings()
    name = next((name for name in ENCODER_FILES if (source.path / name).is_file()), ENCODER_FILES[0])
    config = source.read_json(name) or {}
    for key in _ARGUMENTS:
        _refuse_arguments(source, name, key, config.get(key), allowed=_HARMLESS[:1])
    for key in ("model_kwargs", "model_args"):
        _refuse_arguments(source, name, key, config.get(key), allowed=_HARMLESS)
    modality = config.get("modality_config", {"text": {"method": "forward", "method_output_name": output}})
    if modality not in [{"text": {"method": "forward", "method_output_name": taken}} for taken in (output, [output])]:
        raise UnsupportedModelError(
            "calls the encoder in a way that is not supported",
            where=f"{source.identity}: {name}: modality_config",
            expected=f"text alone, forward, {output}",
            found=repr(modality)[:200],
        )
    length = config.get("max_seq_length")
    return EncoderSettings(
        max_length=length if isinstance(length, int) and length > 0 else None,
        lowercase=config.get("do_lower_case") is True,
    )


def _refuse_arguments(source: Source, file: str, key: str, value: object, *, allowed: tuple[str, ...]) -> None:
    unknown = [name for name in value if name not in allowed] if isinstance(value, dict) else [value] if value else []
    if unknown:
        raise UnsupportedModelError(
            "passes arguments that may change the answers",
            where=f"{source.identity}: {file}: {key}",
            expected="none",
            found=", ".join(map(str, unknown))[:200],
        )


def unsupported_modules(source: Source, found: str, *, expected: str) -> NoReturn:
    """Refuse the modules of a directory."""
    raise UnsupportedModelError(
        "the sentence-transformers modules are not supported",
        where=f"{source.identity}: {MODULES_FILE}",
        expected=expected,
        found=found,
    )
