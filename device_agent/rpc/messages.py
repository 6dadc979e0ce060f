"""From gRPC's messages to the fields of a request, and from an answer to a message.

Tensors come as raw contents (the protocol's binary form) or as typed contents; answers are always raw, as Triton's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from google.protobuf.message import DecodeError, Message

from device_agent.api.context import Rendered
from device_agent.api.open_inference.datatypes import array_from_json
from device_agent.api.open_inference.fields import AskedOutput, UncheckedRequest, refuse_shared_memory
from device_agent.api.open_inference.response import output_tensors, token_counts
from device_agent.api.open_inference.tensors import BinaryData, RawTensor, check_count, decoded
from device_agent.rpc.descriptors import UNION, message_types
from edgeonnx.errors import InvalidRequestError
from edgeonnx.spec.tensor import DType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from device_agent.api.open_inference.datatypes import Array
    from device_agent.api.open_inference.request import InferRequest
    from device_agent.api.open_inference.tensors import TensorData
    from device_agent.inference.rows import Answer
    from edgeonnx.spec.manifest import Manifest

MEDIA_TYPE = "application/grpc"

CONTENTS: dict[DType, str] = {
    DType.BOOL: "bool_contents",
    DType.INT8: "int_contents",
    DType.INT16: "int_contents",
    DType.INT32: "int_contents",
    DType.INT64: "int64_contents",
    DType.UINT8: "uint_contents",
    DType.UINT16: "uint_contents",
    DType.UINT32: "uint_contents",
    DType.UINT64: "uint64_contents",
    DType.FLOAT: "fp32_contents",
    DType.DOUBLE: "fp64_contents",
    DType.STRING: "bytes_contents",
}
"""The field of `InferTensorContents` that holds a datatype. FP16 and BF16 come as raw contents only."""


@dataclass(frozen=True, kw_only=True)
class TypedData:
    """The elements of one tensor in `InferTensorContents`."""

    contents: Message
    where: str

    def array(self, datatype: DType, shape: Sequence[int]) -> Array:
        """See `TensorData.array`."""
        values = self._values(datatype)
        check_count(len(values), shape, self.where)
        return array_from_json(values, datatype, self.where).reshape(shape)

    def texts(self, shape: Sequence[int]) -> list[str]:
        """See `TensorData.texts`."""
        values = self._values(DType.STRING)
        check_count(len(values), shape, self.where)
        return decoded(values, self.where)

    def _values(self, datatype: DType) -> list[Any]:
        """The elements; no other field may hold any."""
        wanted = CONTENTS.get(datatype, "raw_input_contents")
        for field, _ in self.contents.ListFields():
            if field.name != wanted:
                raise InvalidRequestError(
                    f"holds no {datatype.protocol_name}", where=f"{self.where}.{field.name}", expected=wanted
                )
        return list(getattr(self.contents, wanted, ()))


def parse(name: str, data: bytes) -> Any:
    """A message of the named type.

    Raises:
        InvalidRequestError: The bytes are no such message.
    """
    try:
        return message_types()[name].FromString(data)
    except DecodeError:
        raise InvalidRequestError("is no message of the expected type", where="request", expected=name) from None


def parameters_of(entries: Mapping[str, Any]) -> dict[str, object]:
    """A map of `InferParameter` (or `ModelRepositoryParameter`) as plain values; one without a value is None."""
    found: dict[str, object] = {}
    for name, parameter in entries.items():
        kind = parameter.WhichOneof(UNION)
        found[name] = None if kind is None else getattr(parameter, kind)
    return found


def read_request(message: Any) -> UncheckedRequest:
    """The fields of a `ModelInferRequest`.

    Raises:
        InvalidRequestError: A tensor is there twice, or the raw contents are not one for each input.
    """
    raw = message.raw_input_contents
    if len(raw) not in (0, len(message.inputs)):
        raise InvalidRequestError(
            "has another number of elements than inputs",
            where="raw_input_contents",
            expected=f"{len(message.inputs)}, or none",
            found=str(len(raw)),
        )
    tensors: dict[str, RawTensor] = {}
    for index, tensor in enumerate(message.inputs):
        where = f"inputs[{index}]"
        if tensor.name in tensors:
            raise InvalidRequestError("occurs twice", where=f"{where}.name", found=repr(tensor.name[:80]))
        refuse_shared_memory(parameters_of(tensor.parameters), f"{where}.parameters")
        tensors[tensor.name] = RawTensor(
            name=tensor.name,
            datatype=tensor.datatype,
            shape=tuple(tensor.shape),
            data=_data(tensor, raw[index] if raw else None, index),
            where=where,
        )
    outputs = tuple(
        AskedOutput(name=output.name, parameters=parameters_of(output.parameters), where=f"outputs[{index}]")
        for index, output in enumerate(message.outputs)
    )
    parameters = parameters_of(message.parameters)
    return UncheckedRequest(id=message.id or None, parameters=parameters, tensors=tensors, outputs=outputs)


def _data(tensor: Any, raw: bytes | None, index: int) -> TensorData:
    if raw is None:
        return TypedData(contents=tensor.contents, where=f"inputs[{index}].contents")
    if tensor.HasField("contents"):
        raise InvalidRequestError(
            "has contents as well as raw contents", where=f"inputs[{index}]", expected="one of them"
        )
    return BinaryData(data=memoryview(raw), where=f"raw_input_contents[{index}]")


def render_response(answer: Answer, request: InferRequest, manifest: Manifest) -> Rendered:
    """A `ModelInferResponse`, serialized. `token_counts` (see `open_inference.response`) is an array in JSON.

    Raises:
        InferenceError: An output holds a NaN.
    """
    response = message_types()["ModelInferResponse"](
        model_name=manifest.name, model_version=manifest.version, id=request.id or ""
    )
    counts = token_counts(answer, request, manifest)
    if counts is not None:
        response.parameters["token_counts"].string_param = orjson.dumps(counts).decode()
    for tensor in output_tensors(answer, request, manifest):
        response.outputs.add(name=tensor.name, datatype=tensor.datatype.protocol_name, shape=tensor.shape)
        response.raw_output_contents.append(bytes(tensor.to_binary()))
    return Rendered(data=response.SerializeToString(), media_type=MEDIA_TYPE)
