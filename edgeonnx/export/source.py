"""Finding a source model and deciding from its files alone whether it can and may be loaded.

Nothing is executed and nothing is unpickled here: weights must be safetensors, configurations JSON, and code that a
repository brings along is never run.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from edgeonnx.errors import (
    CorruptSourceError,
    SourceNotFoundError,
    UnsafeSourceError,
    UnsupportedModelError,
    first_line,
)

SAFE_WEIGHTS = "model.safetensors"
SAFE_WEIGHTS_INDEX = "model.safetensors.index.json"
GGUF_SUFFIX = ".gguf"
# Formats that run code when they are read, or that we would have to trust.
PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
    "tokenizer.model",
)
# What is read besides the weights: configuration, tokenizer, and the modules of sentence-transformers.
READ_PATTERNS = ("*.json", "*.txt", "*.model", "*.jinja", "[0-9]*_*/*.json", "[0-9]*_*/*.safetensors")
# What a hub download takes: configuration, tokenizer, safe weights. No pickles, no code, no other runtimes' exports.
HUB_PATTERNS = ("*.json", "*.txt", "*.model", "*.jinja", "*.safetensors")
HUB_IGNORED = ("onnx/*", "openvino/*", "coreml/*", "original/*")

_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source model on disk that passed the checks which need no library.

    Attributes:
        path: Its directory.
        identity: How the user named it: the directory's name, or the hub id.
        revision: Commit of the hub repository, or None for a directory.
        config: The parsed `config.json`.
        weights: Weight files relative to `path`.
        gguf: The one file that holds configuration, tokenizer and weights (GGUF), relative to `path`; or None.
    """

    path: Path
    identity: str
    revision: str | None
    config: dict[str, object]
    weights: tuple[str, ...]
    gguf: str | None = None

    @property
    def model_type(self) -> str:
        """The Hugging Face name of the architecture's family (`bert`)."""
        return str(self.config.get("model_type", ""))

    @property
    def architecture(self) -> str:
        """The model class that the weights were saved from (`BertModel`), or ""."""
        names = self.config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""

    def read_json(self, name: str) -> dict[str, object] | None:
        """A JSON object from the directory, or None if there is no such file."""
        file = self.path / name
        return _read_json_object(file) if file.is_file() else None

    def read_names(self) -> tuple[str, ...]:
        """Every file that is read, relative to `path`, sorted."""
        if self.gguf is not None:
            return (self.gguf,)
        found = [path for pattern in READ_PATTERNS for path in self.path.glob(pattern) if path.is_file()]
        return tuple(sorted({*self.weights, *(path.relative_to(self.path).as_posix() for path in found)}))

    def fingerprint(self) -> dict[str, object]:
        """What the model was made from, for the evidence: identity, architecture, digest of each file that is read."""
        files = {name: _sha256(self.path / name) for name in self.read_names()}
        return {
            "identity": self.identity,
            "revision": self.revision,
            "model_type": self.model_type,
            "architecture": self.architecture,
            "files": files,
        }


def locate(source: str) -> Source:
    """Find a source model: a local directory, a GGUF file, or a Hugging Face hub id that is downloaded.

    Args:
        source: What the user gave on the command line.

    Raises:
        SourceNotFoundError: There is no such directory, and no such repository can be had.
        UnsupportedModelError: It is a kind of source that this release does not package.
        UnsafeSourceError: Its weights exist only in a pickle format.
        CorruptSourceError: Its files are incomplete or unreadable.
    """
    path = _local_path(source)
    if path.is_dir():
        return _inspect(path.resolve(), identity=path.resolve().name, revision=None)
    if path.suffix == GGUF_SUFFIX and path.is_file():
        return _inspect_gguf(path.absolute())
    if path.exists():
        raise UnsupportedModelError(
            "is a file; this release packages model directories and GGUF files",
            where=source,
            expected="a directory with config.json, a .gguf file, or a hub id",
            hint="`edgeonnx inspect` reads single .onnx files",
        )
    if path.is_absolute() or source.startswith((".", "~")) or _HUB_ID.fullmatch(source) is None:
        raise SourceNotFoundError(
            "there is no such directory",
            where=source,
            hint="give a local model directory or a hub id such as org/model",
        )
    folder, revision = _download(source)
    return _inspect(folder, identity=source, revision=revision)


def _local_path(source: str) -> Path:
    """The path that the user may have meant; what no path can be is refused here."""
    if not source.strip():
        raise _no_source(source, "an empty name")
    try:
        path = Path(source).expanduser()
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as error:  # no permission, a name too long, a file in place of a folder
        raise _no_source(source, error.strerror) from None
    except (ValueError, RuntimeError) as error:  # a NUL, no home folder
        raise _no_source(source, str(error)) from None
    return path


def _no_source(source: str, found: str | None) -> SourceNotFoundError:
    return SourceNotFoundError(
        "the source cannot be looked up",
        where=repr(source[:200]),
        expected="a model directory or a hub id such as org/model",
        found=found,
    )


def _download(hub_id: str) -> tuple[Path, str]:
    """Fetch a hub repository into the hub's own cache; returns the snapshot's folder and its commit."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=list(HUB_PATTERNS), ignore_patterns=list(HUB_IGNORED)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise SourceNotFoundError(
            "there is no such local directory, and the hub did not give a repository of that name",
            where=hub_id,
            found=first_line(error),
            hint="check the spelling, the network and the access token, or give a local directory",
        ) from None
    return folder, folder.name


def _inspect_gguf(file: Path) -> Source:
    """A GGUF file is a source by itself: nothing that lies beside it is read."""
    from edgeonnx.export.decoder.gguf_file import read_gguf

    return Source(
        path=file.parent,
        identity=file.name,
        revision=None,
        config=read_gguf(file),
        weights=(file.name,),
        gguf=file.name,
    )


def _only_gguf(path: Path) -> Path | None:
    """The GGUF file of a directory that has no other weights.

    Raises:
        UnsupportedModelError: It has several: one model in several precisions, or in pieces.
    """
    if any((path / name).is_file() for name in (SAFE_WEIGHTS, SAFE_WEIGHTS_INDEX)):
        return None
    found = sorted(entry for entry in path.iterdir() if entry.suffix == GGUF_SUFFIX and entry.is_file())
    if len(found) > 1:
        raise UnsupportedModelError(
            "has several GGUF files",
            where=str(path),
            expected="one",
            found=", ".join(entry.name for entry in found[:8]),
            hint="name the file itself",
        )
    return found[0] if found else None


def _inspect(path: Path, *, identity: str, revision: str | None) -> Source:
    single = _only_gguf(path)
    if single is not None:
        return _inspect_gguf(single)
    if not (path / "config.json").is_file():
        raise CorruptSourceError(
            "has no config.json",
            where=str(path),
            expected="a Hugging Face or sentence-transformers model directory",
            found=", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "an empty directory",
        )
    config = _read_json_object(path / "config.json")
    _refuse_indirections(path, config)
    source = Source(path=path, identity=identity, revision=revision, config=config, weights=_weights(path))
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise CorruptSourceError(
            "has no tokenizer",
            where=str(path),
            expected=f"one of {', '.join(TOKENIZER_FILES)}",
            hint="save the tokenizer next to the model: tokenizer.save_pretrained(directory)",
        )
    return source


def _refuse_indirections(path: Path, config: dict[str, object]) -> None:
    """Refuse a model that is not all in its own, plain files: transformers would follow these settings by itself."""
    tokenizer_file = path / "tokenizer_config.json"
    tokenizer = _read_json_object(tokenizer_file) if tokenizer_file.is_file() else {}
    for name, settings in (("config.json", config), (tokenizer_file.name, tokenizer)):
        if "auto_map" in settings:
            raise UnsupportedModelError(
                "needs code from its own repository, which is never run",
                where=f"{path / name}: auto_map",
                hint="use a model whose architecture and tokenizer transformers has built in",
            )
    if "transformers_weights" in config:
        raise UnsupportedModelError(
            "takes its weights from another file than the usual ones",
            where=f"{path / 'config.json'}: transformers_weights",
            found=str(config["transformers_weights"])[:200],
            hint=f"name that file {SAFE_WEIGHTS} and remove the setting",
        )
    if (path / "adapter_config.json").is_file():
        raise UnsupportedModelError(
            "is an adapter to another model (PEFT), which is not supported",
            where=str(path / "adapter_config.json"),
            hint="merge it first: model.merge_and_unload().save_pretrained(directory)",
        )


def _weights(path: Path) -> tuple[str, ...]:
    """The safetensors files of a directory, each checked to be whole."""
    if (path / SAFE_WEIGHTS).is_file():
        names = [SAFE_WEIGHTS]
    elif (path / SAFE_WEIGHTS_INDEX).is_file():
        names = _shards(path)
    else:
        _refuse_weights(path)
    for name in names:
        check_safetensors(path / name)
    return tuple(names)


def _shards(path: Path) -> list[str]:
    index = _read_json_object(path / SAFE_WEIGHTS_INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise CorruptSourceError(
            "has no weight_map", where=str(path / SAFE_WEIGHTS_INDEX), expected="an object of tensor names and files"
        )
    names = sorted({str(name) for name in index.values()})
    for name in names:
        if _SHARD.fullmatch(name) is None:
            raise UnsafeSourceError(
                "names a file that is no safetensors file of this directory",
                where=f"{path / SAFE_WEIGHTS_INDEX}: weight_map",
                expected="names such as model-00001-of-00002.safetensors",
                found=repr(name[:200]),
            )
        if not (path / name).is_file():
            raise CorruptSourceError("is missing", where=str(path / name), expected="a shard that the index names")
    return names


def _refuse_weights(path: Path) -> None:
    pickled = sorted(entry.name for entry in path.iterdir() if entry.suffix in PICKLED_SUFFIXES)
    if pickled:
        raise UnsafeSourceError(
            "has its weights only in a pickle format, which can run code when it is read; it is never opened",
            where=str(path),
            expected=SAFE_WEIGHTS,
            found=", ".join(pickled),
            hint="convert it to safetensors where you trust it: "
            "AutoModel.from_pretrained(directory).save_pretrained(directory, safe_serialization=True)",
        )
    raise CorruptSourceError(
        "has no weights",
        where=str(path),
        expected=f"{SAFE_WEIGHTS} or {SAFE_WEIGHTS_INDEX}",
        found=", ".join(sorted(entry.name for entry in path.iterdir())[:12]) or "an empty directory",
        hint="save it with safetensors: model.save_pretrained(directory); pickles are neither downloaded nor opened",
    )


def check_safetensors(file: Path) -> None:
    """Check that a safetensors file is whole: its header is readable and its data ends where the header says.

    Raises:
        CorruptSourceError: It is truncated or damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="numpy") as tensors:
            tensors.keys()
    except (SafetensorError, OSError) as error:
        raise CorruptSourceError(
            "is not a whole safetensors file",
            where=str(file),
            expected="a header, then as many bytes as it announces",
            found=f"{file.stat().st_size} bytes ({error})",
            hint="copy or download the file again",
        ) from None


def _read_json_object(file: Path) -> dict[str, object]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CorruptSourceError("is not readable JSON", where=str(file), found=str(error)) from None
    if not isinstance(value, dict):
        raise CorruptSourceError(
            "does not hold an object", where=str(file), expected="a JSON object", found=type(value).__name__
        )
    return value


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()
