"""Inference requests of the Open Inference Protocol v2: from their fields to what is to run.

A request gives either text, as a BYTES tensor `text` (and `text_pair` where the task takes two) of shape [n] or
[n, 1], or the graph's own inputs as tensors. Defined answers:

- an empty text is one: the model's special tokens alone, as sentence-transformers does;
- a text that is longer than the model reads is cut as the source's tokenizer cuts it; a client's own tokens are
  never cut but refused;
- `id` comes back; `timeout` (microseconds, as Triton) is the request's deadline, and 0 means the agent's own;
  `priority` is accepted and changes nothing, because the queue serves in turn; parameters that nobody knows are
  ignored, as the protocol says. Sequences and shared memory are refused: ignoring those would give wrong answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from device_agent.api.edge.body import (
    check_ids,
    check_row_count,
    check_texts,
    check_width,
    of_type,
)
from device_agent.api.open_inference.datatypes import element_count
from device_agent.api.open_inference.fields import optional, optional_flag, refuse_shared_memory
from device_agent.inference.rows import ATTENTION_MASK, INPUT_IDS
from edgeonnx.errors import InvalidRequestError, RequestTooLargeError
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.tensor import DType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from device_agent.api.open_inference.fields import UncheckedRequest
    from device_agent.api.open_inference.tensors import RawTensor
    from device_agent.config import Limits
    from device_agent.models.loaded import LoadedEncoder
    from edgeonnx.spec.manifest import Manifest
    from edgeonnx.spec.tensor import TensorSpec

    Ids = NDArray[np.int64]

TEXT = "text"
TEXT_PAIR = "text_pair"
SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")


@dataclass(frozen=True, kw_only=True)
class Output:
    """An output of the answer.

    Attributes:
        name: Its name.
        binary: Whether it goes out in binary form.
        classes: How many of the largest values, as Triton's classification extension; 0: the tensor itself.
    """

    name: str
    binary: bool = False
    classes: int = 0


@dataclass(frozen=True, kw_only=True)
class InferRequest:
    """A checked request: `texts` (and `pairs`) or `tensors`.

    Attributes:
        id: The client's own name for it, or None.
        seconds: How long it may take; None: the agent's default.
        outputs: What it gets, in this order.
        texts: Its texts.
        pairs: The second text of each row.
        tensors: The graph's inputs, int64 (rows, tokens) each.
    """

    id: str | None
    seconds: float | None
    outputs: tuple[Output, ...]
    texts: list[str] | None = None
    pairs: list[str] | None = None
    tensors: dict[str, Ids] | None = None


def text_inputs(manifest: Manifest) -> tuple[str, ...]:
    """Names of the BYTES tensors that the bundle's task takes; a model that generates text takes none here."""
    if manifest.task is Task.TEXT_GENERATION:
        return ()
    return (TEXT, TEXT_PAIR) if manifest.task.takes_pairs else (TEXT,)


def check_request(asked: UncheckedRequest, loaded: LoadedEncoder, limits: Limits) -> InferRequest:
    """Check a request against the model that it is for.

    Raises:
        InvalidRequestError: A field is missing or wrong; the message names it.
        RequestTooLargeError: A limit is exceeded.
    """
    manifest = loaded.manifest
    seconds = check_parameters(asked.parameters)
    outputs = _check_outputs(asked, manifest)
    wanted = text_inputs(manifest)
    if any(name in asked.tensors for name in wanted):
        _check_names(asked.tensors, wanted)
        texts = [_texts(asked.tensors[name], limits) for name in wanted]
        if len({len(column) for column in texts}) > 1:
            raise InvalidRequestError(
                "has another number of texts than text",
                where=asked.tensors[TEXT_PAIR].where,
                expected=str(len(texts[0])),
                found=str(len(texts[1])),
            )
        pairs = texts[1] if len(texts) > 1 else None
        return InferRequest(id=asked.id, seconds=seconds, outputs=outputs, texts=texts[0], pairs=pairs)
    _check_names(asked.tensors, tuple(spec.name for spec in manifest.entry_component.signature.inputs), wanted)
    tensors = _tensors(asked.tensors, loaded, limits)
    return InferRequest(id=asked.id, seconds=seconds, outputs=outputs, tensors=tensors)


def check_parameters(parameters: Mapping[str, object]) -> float | None:
    """Check the request's parameters.

    Returns:
        How long the request may take, in seconds; None: it does not say.

    Raises:
        InvalidRequestError: One is wrong, or asks for what this agent does not do.
    """
    for name in SEQUENCE:
        # A client that has no sequence may say so.
        if parameters.get(name) not in (None, False, 0, ""):
            raise InvalidRequestError(
                "sequences are not supported: a request does not depend on those before it", where=f"parameters.{name}"
            )
    timeout = _natural(parameters, "timeout", "microseconds")
    _natural(parameters, "priority", "any integer from 0")
    return timeout / 1e6 if timeout else None


def _natural(parameters: Mapping[str, object], name: str, expected: str) -> int:
    where = f"parameters.{name}"
    value = optional(parameters, name, int, 0, "parameters")
    if value < 0:
        raise InvalidRequestError("is negative", where=where, expected=expected, found=str(value)[:40])
    return value


def _check_outputs(asked: UncheckedRequest, manifest: Manifest) -> tuple[Output, ...]:
    """The outputs that are asked for, or all of them if the request does not say."""
    binary = optional_flag(asked.parameters, "binary_data_output", default=False, where="parameters")
    signature = manifest.entry_component.signature
    if not asked.outputs:
        return tuple(Output(name=spec.name, binary=binary) for spec in signature.outputs)
    outputs: dict[str, Output] = {}
    for output in asked.outputs:
        name, where = output.name, f"{output.where}.name"
        spec = signature.output(name)
        if spec is None:
            known = ", ".join(item.name for item in signature.outputs)
            raise InvalidRequestError("no such output", where=where, expected=known, found=repr(name[:80]))
        if name in outputs:
            raise InvalidRequestError("is asked for twice", where=where, found=repr(name))
        at = f"{output.where}.parameters"
        refuse_shared_memory(output.parameters, at)
        outputs[name] = Output(
            name=name,
            binary=optional_flag(output.parameters, "binary_data", default=binary, where=at),
            classes=_classes(output.parameters, spec, at),
        )
    return tuple(outputs.values())


def _classes(parameters: Mapping[str, object], spec: TensorSpec, where: str) -> int:
    """How many classes an output's parameter `classification` asks for; 0: it does not."""
    if parameters.get("classification") is None:
        return 0
    where = f"{where}.classification"
    count = of_type(parameters["classification"], int, where)
    if count < 1:
        raise InvalidRequestError("is no number of classes", where=where, expected="at least 1", found=str(count)[:40])
    if len(spec.shape) != 2:
        raise InvalidRequestError(
            "this output has no classes for a row",
            where=where,
            expected="an output of shape [rows, classes]",
            found=spec.shape_text(),
        )
    return count


def _check_names(tensors: Mapping[str, RawTensor], wanted: tuple[str, ...], alternative: tuple[str, ...] = ()) -> None:
    """Exactly the wanted tensors must be there."""
    either = f" (or {', '.join(alternative)})" if alternative else ""
    expected = ", ".join(wanted) + either
    for tensor in tensors.values():
        if tensor.name not in wanted:
            raise InvalidRequestError(
                "no such input", where=f"{tensor.where}.name", expected=expected, found=repr(tensor.name[:80])
            )
    missing = [name for name in wanted if name not in tensors]
    if missing:
        raise InvalidRequestError(f"the input {missing[0]} is missing", where="inputs", expected=expected)


def _check_datatype(tensor: RawTensor, expected: DType) -> None:
    if tensor.datatype != expected.protocol_name:
        raise InvalidRequestError(
            f"the input {tensor.name} has the wrong datatype",
            where=f"{tensor.where}.datatype",
            expected=expected.protocol_name,
            found=repr(tensor.datatype[:40]),
        )


def _texts(tensor: RawTensor, limits: Limits) -> list[str]:
    """The texts of a BYTES tensor of shape [n] or [n, 1]; its data may be nested as the shape is."""
    _check_datatype(tensor, DType.STRING)
    shape = tensor.shape
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        raise InvalidRequestError(
            f"the input {tensor.name} has the wrong shape",
            where=f"{tensor.where}.shape",
            expected="[n] or [n, 1]",
            found=str(list(shape[:8])),
        )
    check_row_count(shape[0], f"{tensor.where}.shape", limits)
    return check_texts(tensor.data.texts(shape), tensor.data.where, limits)


def _tensors(tensors: Mapping[str, RawTensor], loaded: LoadedEncoder, limits: Limits) -> dict[str, Ids]:
    """The graph's inputs: int64 arrays that fit the signature and each other."""
    specs = loaded.manifest.entry_component.signature.inputs
    sizes: dict[str, int] = {}
    numbers = 0
    for spec in specs:
        numbers += _check_shape(tensors[spec.name], spec, sizes, loaded, limits)
    if numbers > limits.max_json_numbers:
        raise RequestTooLargeError(
            "has too many numbers", where="inputs", expected=f"at most {limits.max_json_numbers:,} in all tensors"
        )
    arrays: dict[str, Ids] = {}
    for spec in specs:
        data = tensors[spec.name].data
        array = data.array(spec.dtype, tensors[spec.name].shape).astype(np.int64, copy=False)
        if spec.name == ATTENTION_MASK:
            _check_mask(array, data.where)
        else:
            check_ids(array, data.where, loaded.text.vocabulary_size if spec.name == INPUT_IDS else 0)
        arrays[spec.name] = array
    return arrays


def _check_shape(
    tensor: RawTensor, spec: TensorSpec, sizes: dict[str, int], loaded: LoadedEncoder, limits: Limits
) -> int:
    """Refuse a shape that does not fit; gives the number of elements."""
    _check_datatype(tensor, spec.dtype)
    where = f"{tensor.where}.shape"
    fault = spec.mismatch(tensor.shape, sizes)
    if fault is not None:
        raise InvalidRequestError(f"the input {tensor.name} has the wrong shape", where=where, found=fault[:200])
    check_row_count(tensor.shape[0], where, limits)
    check_width(tensor.shape[1], where, loaded.manifest.processing.max_length)
    return element_count(tensor.shape, where)


def _check_mask(mask: Ids, where: str) -> None:
    """A mask is 0 and 1, and each row has a token: an answer about no token at all would be made up."""
    if ((mask != 0) & (mask != 1)).any():
        raise InvalidRequestError("is no attention mask", where=where, expected="0 and 1 only")
    empty = np.flatnonzero(mask.max(axis=1) == 0)
    if len(empty):
        raise InvalidRequestError(
            "masks a whole row", where=f"{where}, row {int(empty[0])}", expected="at least one 1 in each row"
        )
