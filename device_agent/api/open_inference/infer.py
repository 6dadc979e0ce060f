"""The Open Inference Protocol v2 over REST, in JSON.

A request gives either text, as a BYTES tensor `text` (and `text_pair` where the task takes two) of shape [n] or
[n, 1], or the graph's own inputs as tensors. Defined answers:

- an empty text is one: the model's special tokens alone, as sentence-transformers does;
- a text that is longer than the model reads is cut as the source's tokenizer cuts it; a client's own tokens are
  never cut but refused;
- outputs per token have the width of the longest row; shorter rows are filled up with zeros, and the answer's
  parameter `token_counts` gives every row's length;
- `id` comes back, `parameters` are accepted; tensors in binary form are refused with the advice to send JSON, and a
  request for binary outputs is answered in JSON, which the protocol's clients read as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import orjson

from device_agent.api.body import (
    check_ids,
    check_integers,
    check_row_count,
    check_texts,
    check_width,
    of_type,
    parse_object,
    required,
)
from device_agent.api.context import Job, Rendered
from device_agent.inference.rows import ATTENTION_MASK, INPUT_IDS, TensorRows
from edgeonnx.errors import InferenceError, InvalidRequestError, RequestTooLargeError
from edgeonnx.spec.tensor import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from starlette.requests import Request

    from device_agent.api.context import Context
    from device_agent.config import Limits
    from device_agent.inference.rows import Answer
    from device_agent.loading import LoadedModel
    from edgeonnx.spec.manifest import Manifest
    from edgeonnx.spec.tensor import TensorSpec

    Ids = NDArray[np.int64]

TEXT = "text"
TEXT_PAIR = "text_pair"
SEND_JSON = "send JSON instead (tritonclient: set_data_from_numpy(..., binary_data=False))"


@dataclass(frozen=True, kw_only=True)
class InferRequest:
    """A checked request: `texts` (and `pairs`) or `tensors`, and the outputs that it wants (None: all)."""

    id: str | None
    outputs: tuple[str, ...] | None
    texts: list[str] | None = None
    pairs: list[str] | None = None
    tensors: dict[str, Ids] | None = None


@dataclass(frozen=True, kw_only=True)
class RawTensor:
    """One element of `inputs` whose form is right; its data is not looked into yet."""

    name: str
    datatype: str
    shape: list[int]
    data: list[object]
    where: str


def text_inputs(manifest: Manifest) -> tuple[str, ...]:
    """Names of the BYTES tensors that the bundle's task takes."""
    return (TEXT, TEXT_PAIR) if manifest.task.takes_pairs else (TEXT,)


def parse_infer(body: dict[str, object], loaded: LoadedModel, limits: Limits) -> InferRequest:
    """Check the body of an infer request.

    Raises:
        InvalidRequestError: A field is missing or wrong; the message names it.
        RequestTooLargeError: A limit is exceeded.
    """
    manifest = loaded.manifest
    if "parameters" in body:
        of_type(body["parameters"], dict, "parameters")
    identifier = of_type(body["id"], str, "id") if "id" in body else None
    outputs = _outputs(body, manifest)
    tensors = _raw_tensors(body)
    wanted = text_inputs(manifest)
    if any(name in tensors for name in wanted):
        _check_names(tensors, wanted)
        texts = [_texts(tensors[name], limits) for name in wanted]
        if len({len(column) for column in texts}) > 1:
            raise InvalidRequestError(
                "has another number of texts than text",
                where=tensors[TEXT_PAIR].where,
                expected=str(len(texts[0])),
                found=str(len(texts[1])),
            )
        pairs = texts[1] if len(texts) > 1 else None
        return InferRequest(id=identifier, outputs=outputs, texts=texts[0], pairs=pairs)
    _check_names(tensors, tuple(spec.name for spec in manifest.entry_component.signature.inputs), wanted)
    return InferRequest(id=identifier, outputs=outputs, tensors=_tensors(tensors, loaded, limits))


def prepare_infer(context: Context, request: Request, data: bytes) -> Job:
    """What an infer request asks for; raises as `parse_infer` does."""
    params = request.path_params
    live = context.models.find(params["name"], params.get("version"))
    loaded = live.loaded
    asked = parse_infer(parse_object(data), loaded, context.config.limits)
    return Job(
        live=live,
        texts=asked.texts,
        pairs=asked.pairs,
        rows=None if asked.tensors is None else TensorRows(asked.tensors, loaded.text.padding),
        outputs=asked.outputs,
        render=lambda answer: Rendered(data=render_infer(answer, asked, loaded.manifest)),
    )


def _outputs(body: dict[str, object], manifest: Manifest) -> tuple[str, ...] | None:
    """The outputs that are asked for, or None if the request does not say."""
    if "outputs" not in body:
        return None
    signature = manifest.entry_component.signature
    names = []
    for index, item in enumerate(of_type(body["outputs"], list, "outputs")):
        where = f"outputs[{index}]"
        output = of_type(item, dict, where)
        name = of_type(required(output, "name", where), str, f"{where}.name")
        if signature.output(name) is None:
            known = ", ".join(spec.name for spec in signature.outputs)
            raise InvalidRequestError("no such output", where=f"{where}.name", expected=known, found=repr(name[:80]))
        if "classification" in of_type(output.get("parameters", {}), dict, f"{where}.parameters"):
            raise InvalidRequestError("the classification extension is not supported", where=f"{where}.parameters")
        if name in names:
            raise InvalidRequestError("is asked for twice", where=f"{where}.name", found=repr(name))
        names.append(name)
    return tuple(names) or None


def _raw_tensors(body: dict[str, object]) -> dict[str, RawTensor]:
    """The elements of `inputs` by name."""
    tensors: dict[str, RawTensor] = {}
    for index, item in enumerate(of_type(required(body, "inputs"), list, "inputs")):
        where = f"inputs[{index}]"
        fields = of_type(item, dict, where)
        name = of_type(required(fields, "name", where), str, f"{where}.name")
        if name in tensors:
            raise InvalidRequestError("occurs twice", where=f"{where}.name", found=repr(name[:80]))
        if "binary_data_size" in of_type(fields.get("parameters", {}), dict, f"{where}.parameters"):
            raise InvalidRequestError(
                "binary tensor data is not supported", where=f"{where}.parameters.binary_data_size", hint=SEND_JSON
            )
        shape = of_type(required(fields, "shape", where), list, f"{where}.shape")
        check_integers(shape, f"{where}.shape")
        tensors[name] = RawTensor(
            name=name,
            datatype=of_type(required(fields, "datatype", where), str, f"{where}.datatype"),
            shape=shape,
            data=of_type(required(fields, "data", where), list, f"{where}.data"),
            where=where,
        )
    return tensors


def _check_names(tensors: dict[str, RawTensor], wanted: tuple[str, ...], alternative: tuple[str, ...] = ()) -> None:
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
            found=str(shape[:8]),
        )
    data = _flat(tensor, len(shape))
    check_row_count(shape[0], f"{tensor.where}.shape", limits)
    _check_count(tensor, len(data))
    return check_texts(data, f"{tensor.where}.data", limits)


def _flat(tensor: RawTensor, rank: int) -> list[object]:
    """The data as a flat list; the protocol allows it to be nested as deep as the shape."""
    data, depth = tensor.data, 1
    while data and all(type(item) is list for item in data):
        depth += 1
        if depth > rank:
            raise InvalidRequestError(
                "is nested deeper than the shape", where=f"{tensor.where}.data", expected=f"at most {rank} levels"
            )
        data = [value for row in data if isinstance(row, list) for value in row]
    return data


def _check_count(tensor: RawTensor, count: int) -> None:
    size = 1
    for dimension in tensor.shape:
        size *= dimension
    if size != count:
        raise InvalidRequestError(
            "has another number of elements than the shape says",
            where=f"{tensor.where}.data",
            expected=f"{size} for {tensor.shape}",
            found=str(count),
        )


def _tensors(tensors: dict[str, RawTensor], loaded: LoadedModel, limits: Limits) -> dict[str, Ids]:
    """The graph's inputs: int64 arrays that fit the signature and each other."""
    sizes: dict[str, int] = {}
    arrays = {
        spec.name: _array(tensors[spec.name], spec, sizes, limits)
        for spec in loaded.manifest.entry_component.signature.inputs
    }
    if sum(array.size for array in arrays.values()) > limits.max_json_numbers:
        raise RequestTooLargeError(
            "has too many numbers", where="inputs", expected=f"at most {limits.max_json_numbers:,} in all tensors"
        )
    for name, array in arrays.items():
        where = f"{tensors[name].where}.data"
        check_row_count(array.shape[0], f"{tensors[name].where}.shape", limits)
        check_width(array.shape[1], f"{tensors[name].where}.shape", loaded.manifest.processing.max_length)
        if name == ATTENTION_MASK:
            _check_mask(array, where)
        else:
            check_ids(array, where, loaded.text.vocabulary_size if name == INPUT_IDS else 0)
    return arrays


def _array(tensor: RawTensor, spec: TensorSpec, sizes: dict[str, int], limits: Limits) -> Ids:
    _check_datatype(tensor, spec.dtype)
    fault = spec.mismatch(tensor.shape, sizes)
    if fault is not None:
        raise InvalidRequestError(
            f"the input {tensor.name} has the wrong shape", where=f"{tensor.where}.shape", found=fault[:200]
        )
    data = _flat(tensor, len(tensor.shape))
    if len(data) > limits.max_json_numbers:
        raise RequestTooLargeError(
            "has too many numbers", where=f"{tensor.where}.data", expected=f"at most {limits.max_json_numbers:,}"
        )
    _check_count(tensor, len(data))
    check_integers(data, f"{tensor.where}.data")
    try:
        return np.array(data, dtype=np.int64).reshape(tensor.shape)
    except OverflowError:
        raise InvalidRequestError(
            "holds an integer that does not fit", where=f"{tensor.where}.data", expected="64 bits with sign"
        ) from None


def _check_mask(mask: Ids, where: str) -> None:
    """A mask is 0 and 1, and each row has a token: an answer about no token at all would be made up."""
    if ((mask != 0) & (mask != 1)).any():
        raise InvalidRequestError("is no attention mask", where=where, expected="0 and 1 only")
    empty = np.flatnonzero(mask.max(axis=1) == 0)
    if len(empty):
        raise InvalidRequestError(
            "masks a whole row", where=f"{where}, row {int(empty[0])}", expected="at least one 1 in each row"
        )


def render_infer(answer: Answer, request: InferRequest, manifest: Manifest) -> bytes:
    """The body of an infer response, outputs in the order asked for, data flat in row-major order.

    Raises:
        InferenceError: An output holds a number that JSON does not have.
    """
    specs = {spec.name: spec for spec in manifest.entry_component.signature.outputs}
    names: Sequence[str] = request.outputs or tuple(specs)
    outputs = []
    for name in names:
        value = answer.outputs[name]
        check_finite(value, name)
        datatype = specs[name].dtype.protocol_name
        flat = np.ascontiguousarray(value).reshape(-1)
        outputs.append({"name": name, "datatype": datatype, "shape": value.shape, "data": flat})
    response: dict[str, object] = {"model_name": manifest.name, "model_version": manifest.version}
    if request.id is not None:
        response["id"] = request.id
    if request.texts is not None and any(len(specs[name].shape) > 2 for name in names):
        response["parameters"] = {"token_counts": answer.lengths.tolist()}
    response["outputs"] = outputs
    return orjson.dumps(response, option=orjson.OPT_SERIALIZE_NUMPY)


def check_finite(value: NDArray[np.generic], name: str) -> None:
    """Refuse to answer with what is no number: JSON has no NaN, and nobody can use one.

    Raises:
        InferenceError: NaN or an infinity is among the values.
    """
    if not np.isfinite(value).all():
        raise InferenceError("the model's output is not finite", where=name, expected="finite numbers")


def model_metadata(loaded: LoadedModel) -> dict[str, object]:
    """The answer of `/v2/models/{name}`: text inputs and tensors, outputs, and in `parameters` what serves and why.

    `text` (with `text_pair`) and the tensors are alternatives; the parameter `group` tells them apart.
    """
    manifest = loaded.manifest
    signature = manifest.entry_component.signature
    text = [
        {"name": name, "datatype": "BYTES", "shape": [-1], "parameters": {"group": "text"}}
        for name in text_inputs(manifest)
    ]
    return {
        "name": manifest.name,
        "versions": [manifest.version],
        "platform": "onnxruntime_onnx",
        "inputs": text + [{**_tensor_metadata(spec), "parameters": {"group": "tensors"}} for spec in signature.inputs],
        "outputs": [_tensor_metadata(spec) for spec in signature.outputs],
        "parameters": {
            "task": manifest.task.value,
            "digest": loaded.bundle.digest,
            "variant": loaded.engine.variant.name,
            "precision": loaded.engine.variant.precision,
            "providers": list(loaded.engine.providers),
            "not_used": dict(loaded.engine.not_used),
            "tokenizer": loaded.text.backend,
            "max_length": manifest.processing.max_length,
            "labels": list(manifest.labels),
            **manifest.properties,
        },
    }


def _tensor_metadata(spec: TensorSpec) -> dict[str, object]:
    return {"name": spec.name, "datatype": spec.dtype.protocol_name, "shape": spec.protocol_shape()}
