"""The fields of an inference request, before anything is known of the model that it is for.

An optional field that is null counts as absent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from device_agent.api.edge.body import check_integers, of_type, required
from device_agent.api.open_inference.tensors import BinaryData, JsonData, RawTensor
from edgeonnx.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from device_agent.api.open_inference.binary import BinaryParts

T = TypeVar("T", str, int, dict, list)  # type: ignore[type-arg]

SHARED_MEMORY = "shared_memory_region"
BINARY_SIZE = "binary_data_size"


@dataclass(frozen=True, kw_only=True)
class AskedOutput:
    """One element of `outputs`.

    Attributes:
        name: What the client calls it.
        parameters: Its parameters.
        where: The element, for errors.
    """

    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    where: str


@dataclass(frozen=True, kw_only=True)
class UncheckedRequest:
    """The fields of a request, from JSON or from gRPC; nothing is known yet about the model.

    Attributes:
        id: The client's own name for it, or None.
        parameters: The request's parameters.
        tensors: Its inputs by name.
        outputs: The outputs that it asks for; empty: all.
    """

    id: str | None
    parameters: Mapping[str, object]
    tensors: Mapping[str, RawTensor]
    outputs: tuple[AskedOutput, ...]


def optional(fields: Mapping[str, object], name: str, kind: type[T], default: T, where: str | None = None) -> T:
    """The member `name`, or what it is where it is absent or null.

    Raises:
        InvalidRequestError: It is of another type.
    """
    value = fields.get(name)
    return default if value is None else of_type(value, kind, f"{where}.{name}" if where else name)


def optional_flag(fields: Mapping[str, object], name: str, *, default: bool, where: str | None = None) -> bool:
    """The member `name` that is true or false; see `optional`."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        at = f"{where}.{name}" if where else name
        raise InvalidRequestError("is of the wrong type", where=at, expected="true or false")
    return value


def read_request(body: dict[str, object], binary: BinaryParts) -> UncheckedRequest:
    """The fields of a request's JSON, and the binary data that its inputs take.

    Raises:
        InvalidRequestError: A field is missing or of the wrong type, or the binary data does not add up.
    """
    parameters = optional(body, "parameters", dict, {})
    identifier = None if body.get("id") is None else of_type(body["id"], str, "id")
    tensors = _read_inputs(of_type(required(body, "inputs"), list, "inputs"), binary)
    binary.finish()
    outputs = _read_outputs(optional(body, "outputs", list, []))
    return UncheckedRequest(id=identifier, parameters=parameters, tensors=tensors, outputs=outputs)


def _read_inputs(items: list[object], binary: BinaryParts) -> dict[str, RawTensor]:
    tensors: dict[str, RawTensor] = {}
    for index, item in enumerate(items):
        where = f"inputs[{index}]"
        fields = of_type(item, dict, where)
        name = of_type(required(fields, "name", where), str, f"{where}.name")
        if name in tensors:
            raise InvalidRequestError("occurs twice", where=f"{where}.name", found=repr(name[:80]))
        shape = of_type(required(fields, "shape", where), list, f"{where}.shape")
        check_integers(shape, f"{where}.shape")
        tensors[name] = RawTensor(
            name=name,
            datatype=of_type(required(fields, "datatype", where), str, f"{where}.datatype"),
            shape=shape,
            data=_read_data(fields, where, binary),
            where=where,
        )
    return tensors


def _read_data(fields: dict[str, object], where: str, binary: BinaryParts) -> BinaryData | JsonData:
    parameters = optional(fields, "parameters", dict, {}, where)
    refuse_shared_memory(parameters, f"{where}.parameters")
    if parameters.get(BINARY_SIZE) is None:
        return JsonData(values=of_type(required(fields, "data", where), list, f"{where}.data"), where=f"{where}.data")
    at = f"{where}.parameters.{BINARY_SIZE}"
    if fields.get("data") is not None:
        raise InvalidRequestError("has data as well as binary data", where=where, expected="one of them")
    return BinaryData(data=binary.take(of_type(parameters[BINARY_SIZE], int, at), at), where=f"{where}, binary data")


def _read_outputs(items: list[object]) -> tuple[AskedOutput, ...]:
    outputs = []
    for index, item in enumerate(items):
        where = f"outputs[{index}]"
        fields = of_type(item, dict, where)
        outputs.append(
            AskedOutput(
                name=of_type(required(fields, "name", where), str, f"{where}.name"),
                parameters=optional(fields, "parameters", dict, {}, where),
                where=where,
            )
        )
    return tuple(outputs)


def refuse_shared_memory(parameters: Mapping[str, object], where: str) -> None:
    """Refuse a tensor that is not in the request.

    Raises:
        InvalidRequestError: It is in shared memory.
    """
    if parameters.get(SHARED_MEMORY) is not None:
        raise InvalidRequestError(
            "shared memory is not supported", where=f"{where}.{SHARED_MEMORY}", hint="send the data in the request"
        )
