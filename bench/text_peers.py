"""Tokenizers that do the same job as ours: a batch of texts to three padded int64 arrays, in one thread.

A peer that is not installed, or that refuses a tokenizer, says so; it is then named, not measured.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from edgeonnx_ext.decoding import BYTE_CHARS
from numpy.typing import NDArray

Arrays = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
Encode = Callable[[Sequence[str]], Arrays]
GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


class PeerRefusesError(Exception):
    """The peer does not do this tokenizer; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A tokenizer library.

    Attributes:
        name: In the table.
        package: What pip installs.
        open: Makes a `tokenizer.json` into the job; may raise PeerRefusesError.
    """

    name: str
    package: str
    open: Callable[[bytes], Encode]


def open_peer(peer: Peer, data: bytes) -> Encode | str:
    """The peer's job, or why there is none."""
    try:
        importlib.import_module(peer.package)
    except ImportError:
        return f"not installed: pip install {peer.package}"
    try:
        job = peer.open(data)
        job(["Hello world", "the second, longer text"])
    except PeerRefusesError as error:
        return f"refuses this tokenizer: {error}"
    except BaseException as error:  # a panic in Rust is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return f"refuses this tokenizer: {str(error)[:120]}"
    return job


def padded(flat: Any, lengths: NDArray[np.int64]) -> Arrays:
    """Ids one after the other to padded arrays, by NumPy."""
    width = int(lengths.max(initial=0))
    filled = np.arange(width) < lengths[:, None]
    ids = np.zeros((len(lengths), width), dtype=np.int64)
    ids[filled] = flat
    return ids, filled.astype(np.int64), np.zeros_like(ids)


def padded_lists(rows: Sequence[Sequence[int]]) -> Arrays:
    """Lists of ids to padded arrays, by NumPy."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    return padded(np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum())), lengths)


def library_of(data: bytes) -> Any:
    """The `tokenizers` library's tokenizer, without truncation and padding."""
    from tokenizers import Tokenizer

    library = Tokenizer.from_str(data.decode())
    library.no_truncation()
    library.no_padding()
    return library


def _open_tokenizers(data: bytes, method: str) -> Encode:
    library = library_of(data)
    library.enable_padding()
    encode = getattr(library, method)

    def job(texts: Sequence[str]) -> Arrays:
        encodings = encode(texts)
        return (
            np.array([encoding.ids for encoding in encodings], dtype=np.int64),
            np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64),
            np.array([encoding.type_ids for encoding in encodings], dtype=np.int64),
        )

    return job


def _open_tokie(data: bytes) -> Encode:
    import tempfile

    import tokie

    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(data)
        file.flush()
        tokenizer = tokie.Tokenizer.from_json(file.name)

    def job(texts: Sequence[str]) -> Arrays:
        flat, lengths = tokenizer.encode_batch_flat(texts)
        return padded(flat, lengths.astype(np.int64))

    return job


def _pattern(root: Any) -> str:
    """The splitting pattern as tiktoken takes it."""
    steps = root["pre_tokenizer"]
    steps = steps["pretokenizers"] if steps["type"] == "Sequence" else [steps]
    if len(steps) == 1 and steps[0]["type"] == "ByteLevel" and not steps[0]["add_prefix_space"]:
        return GPT2
    if len(steps) == 2 and steps[0]["type"] == "Split" and steps[1]["type"] == "ByteLevel":
        return str(steps[0]["pattern"]["Regex"])
    raise PeerRefusesError("no single pattern for its pre-tokenizers")


def _open_tiktoken(data: bytes) -> Encode:
    import tiktoken

    root = json.loads(data)
    if root["model"]["type"] != "BPE":
        raise PeerRefusesError("byte-level BPE only")
    added = {token["content"]: token["id"] for token in root["added_tokens"]}
    ranks = {
        bytes(BYTE_CHARS[ord(char)] for char in token): token_id
        for token, token_id in root["model"]["vocab"].items()
        if token not in added
    }
    encoding = tiktoken.Encoding("bench", pat_str=_pattern(root), mergeable_ranks=ranks, special_tokens=added)

    def job(texts: Sequence[str]) -> Arrays:
        return padded_lists([encoding.encode_ordinary(text) for text in texts])

    return job


def _open_gigatoken(data: bytes) -> Encode:
    import gigatoken

    if json.loads(data)["model"]["type"] != "BPE":
        raise PeerRefusesError("byte-level BPE only")
    tokenizer = gigatoken.Tokenizer.from_json(data)

    def job(texts: Sequence[str]) -> Arrays:
        raw, lengths = tokenizer.encode_batch_padded(texts, pad_id=0, parallel=False)
        ids = np.asarray(raw).astype(np.int64)
        mask = (np.arange(ids.shape[1]) < np.asarray(lengths)[:, None]).astype(np.int64)
        return ids, mask, np.zeros_like(ids)

    return job


LIBRARY = Peer(name="tokenizers", package="tokenizers", open=lambda data: _open_tokenizers(data, "encode_batch"))
FAST = Peer(
    name="tokenizers, fast", package="tokenizers", open=lambda data: _open_tokenizers(data, "encode_batch_fast")
)
TOKIE = Peer(name="tokie", package="tokie", open=_open_tokie)
TIKTOKEN = Peer(name="tiktoken", package="tiktoken", open=_open_tiktoken)
GIGATOKEN = Peer(name="gigatoken", package="gigatoken", open=_open_gigatoken)
