"""What a sentence-transformers directory does around its encoder, read from its configuration files.

`modules.json` lists the modules in order; each has a folder with its own configuration. Nothing of it is imported:
class names are compared as text, and what is not known is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from edgeonnx.errors import CorruptSourceError, UnsafePathError, UnsafeSourceError, UnsupportedModelError
from edgeonnx.spec.paths import check_relative_path

if TYPE_CHECKING:
    from edgeonnx.export.source import Source

POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
# The older form of a pooling configuration: one flag per mode, concatenated in this order.
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
MAX_DENSE_FEATURES = 1 << 16
DENSE_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")


@dataclass(frozen=True, kw_only=True)
class DenseLayer:
    """A linear layer after pooling: folder with its weights, sizes, and the name of its torch.nn activation."""

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: str


@dataclass(frozen=True, kw_only=True)
class EmbeddingHead:
    """What a sentence-transformers directory does after the encoder, in the order in which it does it.

    Attributes:
        pooling: Pooling modes; the results of several are concatenated.
        layers: Dense layers and `"normalize"` in the order of `modules.json`.
        max_length: `max_seq_length` from the directory, or None.
        lowercase: Whether text is lower-cased before the tokenizer.
        prefix: The default prompt.
    """

    pooling: tuple[str, ...]
    layers: tuple[DenseLayer | str, ...]
    max_length: int | None
    lowercase: bool
    prefix: str


def read_embedding_head(source: Source) -> EmbeddingHead:
    """Read what a sentence-transformers directory does around its encoder.

    A directory without `modules.json` is treated as sentence-transformers treats it: mean pooling, no normalization.

    Raises:
        UnsupportedModelError: A module or a setting is not known.
    """
    modules = _read_modules(source)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"]:
        _unsupported_module(source, " -> ".join(kinds), expected="Transformer -> Pooling -> (Dense | Normalize)*")
    if modules[0][1]:
        _unsupported_module(source, modules[0][1], expected='the encoder\'s files beside modules.json (path "")')
    layers: list[DenseLayer | str] = []
    for kind, folder in modules[2:]:
        if kind == "Normalize":
            layers.append("normalize")
        elif kind == "Dense":
            layers.append(_read_dense(source, folder))
        else:
            _unsupported_module(source, kind, expected="Dense or Normalize")
    bert = source.read_json("sentence_bert_config.json") or {}
    max_length = bert.get("max_seq_length")
    pooling, with_prompt = _read_pooling(source, modules[1][1])
    prefix = _default_prompt(source)
    if prefix and not with_prompt:
        raise UnsupportedModelError(
            "leaves the default prompt out of the pooling, which is not supported",
            where=f"{source.identity}: {modules[1][1]}/config.json: include_prompt",
        )
    return EmbeddingHead(
        pooling=pooling,
        layers=tuple(layers),
        max_length=max_length if isinstance(max_length, int) and max_length > 0 else None,
        lowercase=bert.get("do_lower_case") is True,
        prefix=prefix,
    )


def _read_modules(source: Source) -> list[tuple[str, str]]:
    """Class name and folder of each module in `modules.json`."""
    file = source.path / "modules.json"
    if not file.is_file():
        return [("Transformer", ""), ("Pooling", "")]
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        modules = [(str(entry["type"]).rsplit(".", 1)[-1], str(entry["path"])) for entry in entries]
        foreign = [entry["type"] for entry in entries if not str(entry["type"]).startswith("sentence_transformers.")]
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        _unsupported_module(source, repr(error), expected="a list of objects with type and path")
    if foreign:
        _unsupported_module(
            source, str(foreign[0]), expected="modules of sentence-transformers (other code is never run)"
        )
    for index, (_, folder) in enumerate(modules):
        _check_folder(source, folder, f"[{index}].path")
    return modules


def _check_folder(source: Source, folder: str, field: str) -> None:
    """A module's files are below the source's own directory."""
    where = f"{source.identity}: modules.json: {field}"
    try:
        if folder:
            check_relative_path(folder, where=where)
    except UnsafePathError as error:
        raise UnsafeSourceError(
            "names a folder outside the model", where=where, expected=error.expected, found=error.found
        ) from None


def _read_pooling(source: Source, folder: str) -> tuple[tuple[str, ...], bool]:
    """The pooling modes, and whether a prompt takes part in the pooling."""
    if not (source.path / "modules.json").is_file():
        return ("mean",), True
    config = _module_config(source, folder)
    stated = config.get("pooling_mode")
    if stated is None:
        modes = tuple(mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)) or ("mean",)
    else:
        modes = (stated,) if isinstance(stated, str) else tuple(stated) if isinstance(stated, list) else ()
    if not modes or any(mode not in POOLING_MODES for mode in modes):
        raise UnsupportedModelError(
            "the pooling mode is not known",
            where=f"{source.identity}: {folder}/config.json: pooling_mode",
            expected=f"one or more of {', '.join(POOLING_MODES)}",
            found=repr(stated),
        )
    return modes, config.get("include_prompt", True) is not False


def _module_config(source: Source, folder: str) -> dict[str, object]:
    """The `config.json` of a module, which must be there: defaults would be a guess at what the model computes."""
    config = source.read_json(f"{folder}/config.json") if folder else None
    if config is None:
        raise CorruptSourceError(
            "a module of modules.json has no configuration",
            where=f"{source.identity}: {folder or 'modules.json'}",
            expected=f"{folder or '<folder>'}/config.json",
        )
    return config


def _read_dense(source: Source, folder: str) -> DenseLayer:
    where = f"{source.identity}: {folder}/config.json"
    config = _module_config(source, folder)
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    name = activation.rsplit(".", 1)[-1]
    if not activation.startswith("torch.nn") or name not in DENSE_ACTIVATIONS:
        raise UnsupportedModelError(
            "the activation of a dense layer is not supported",
            where=f"{where}: activation_function",
            expected=f"one of {', '.join(DENSE_ACTIVATIONS)} of torch.nn",
            found=repr(activation),
        )
    renamed = [
        key
        for key in ("module_input_name", "module_output_name")
        if config.get(key) not in (None, "sentence_embedding")
    ]
    if renamed or config.get("use_residual"):
        raise UnsupportedModelError("a dense layer has a setting that is not supported", where=where, found=str(config))
    sizes = config.get("in_features"), config.get("out_features")
    if not all(isinstance(size, int) and 0 < size <= MAX_DENSE_FEATURES for size in sizes):
        raise UnsupportedModelError(
            "a dense layer does not state its sizes",
            where=f"{where}: in_features, out_features",
            expected=f"integers from 1 to {MAX_DENSE_FEATURES}",
            found=str(sizes)[:200],
        )
    return DenseLayer(
        folder=folder,
        in_features=int(str(sizes[0])),
        out_features=int(str(sizes[1])),
        bias=config.get("bias", True) is not False,
        activation=name,
    )


def _default_prompt(source: Source) -> str:
    config = source.read_json("config_sentence_transformers.json") or {}
    name, prompts = config.get("default_prompt_name"), config.get("prompts")
    if name is None or not isinstance(prompts, dict):
        return ""
    return str(prompts.get(str(name)) or "")


def _unsupported_module(source: Source, found: str, *, expected: str) -> NoReturn:
    raise UnsupportedModelError(
        "the sentence-transformers modules are not supported",
        where=f"{source.identity}: modules.json",
        expected=expected,
        found=found,
    )
