"""What a sentence-transformers directory does around its encoder, read from its configuration files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.errors import UnsupportedModelError
from edgeonnx.export.module_files import (
    MODEL_FILE,
    default_prompt,
    has_modules,
    model_config,
    module_config,
    read_encoder_settings,
    read_modules,
    unsupported_modules,
)

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
        keep: Leading elements of the result that are kept (`truncate_dim`), or None for all.
    """

    pooling: tuple[str, ...]
    layers: tuple[DenseLayer | str, ...]
    max_length: int | None
    lowercase: bool
    prefix: str
    keep: int | None = None

    @property
    def normalized(self) -> bool:
        """Whether the embeddings have length 1."""
        return self.keep is None and self.layers[-1:] == ("normalize",)


def read_embedding_head(source: Source) -> EmbeddingHead:
    """Read what a sentence-transformers directory does around its encoder.

    A directory without `modules.json` is treated as sentence-transformers treats it: mean pooling, no normalization.

    Raises:
        UnsupportedModelError: A module or a setting is not known.
    """
    if not has_modules(source):
        return EmbeddingHead(pooling=("mean",), layers=(), max_length=None, lowercase=False, prefix="")
    modules = read_modules(source)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"]:
        unsupported_modules(source, " -> ".join(kinds), expected="Transformer -> Pooling -> (Dense | Normalize)*")
    config = model_config(source, "SentenceTransformer")
    settings = read_encoder_settings(source, output="last_hidden_state")
    pooling, with_prompt = _read_pooling(source, modules[1][1])
    prefix = default_prompt(config)
    if prefix and not with_prompt:
        raise UnsupportedModelError(
            "leaves the default prompt out of the pooling, which is not supported",
            where=f"{source.identity}: {modules[1][1]}/config.json: include_prompt",
        )
    return EmbeddingHead(
        pooling=pooling,
        layers=tuple(_read_layer(source, kind, folder) for kind, folder in modules[2:]),
        max_length=settings.max_length,
        lowercase=settings.lowercase,
        prefix=prefix,
        keep=_read_truncation(source, config),
    )


def _read_truncation(source: Source, config: dict[str, object]) -> int | None:
    kept = config.get("truncate_dim")
    if kept is not None and (not isinstance(kept, int) or kept < 1):
        raise UnsupportedModelError(
            "the truncation of the embedding is not usable",
            where=f"{source.identity}: {MODEL_FILE}: truncate_dim",
            expected="a positive integer",
            found=repr(kept)[:80],
        )
    return kept


def _read_layer(source: Source, kind: str, folder: str) -> DenseLayer | str:
    if kind == "Dense":
        return _read_dense(source, folder)
    if kind != "Normalize":
        unsupported_modules(source, kind, expected="Dense or Normalize")
    # Older releases write no configuration for it.
    _refuse_renamed(source, folder, (source.read_json(f"{folder}/config.json") if folder else None) or {})
    return "normalize"


def _refuse_renamed(source: Source, folder: str, config: dict[str, object]) -> None:
    """A module after the pooling reads and writes the sentence embedding, and nothing else."""
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise UnsupportedModelError(
                "a module has a setting that is not supported: it works on something else than the embedding",
                where=f"{source.identity}: {folder}/config.json: {key}",
                expected="'sentence_embedding'",
                found=repr(config[key])[:80],
            )


def _read_pooling(source: Source, folder: str) -> tuple[tuple[str, ...], bool]:
    """The pooling modes, and whether a prompt takes part in the pooling."""
    config = module_config(source, folder)
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


def _read_dense(source: Source, folder: str) -> DenseLayer:
    where = f"{source.identity}: {folder}/config.json"
    config = module_config(source, folder)
    _refuse_renamed(source, folder, config)
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    name = activation.rsplit(".", 1)[-1]
    if not activation.startswith("torch.nn.") or name not in DENSE_ACTIVATIONS:
        raise UnsupportedModelError(
            "the activation of a dense layer is not supported",
            where=f"{where}: activation_function",
            expected=f"one of {', '.join(DENSE_ACTIVATIONS)} of torch.nn",
            found=repr(activation),
        )
    if config.get("use_residual"):
        raise UnsupportedModelError(
            "a dense layer has a setting that is not supported: a residual", where=f"{where}: use_residual"
        )
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
