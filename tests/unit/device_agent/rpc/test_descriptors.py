from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("google.protobuf")
model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")
service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")

from device_agent.rpc.descriptors import MESSAGES, PACKAGE, UNION, message_types  # noqa: E402


def theirs(name: str):
    for module in (service_pb2, model_config_pb2):
        found = module.DESCRIPTOR.message_types_by_name.get(name.split(".")[0])
        if found is not None:
            return found if "." not in name else found.nested_types_by_name[name.split(".")[1]]
    raise AssertionError(f"Triton has no message {name}")


def facts(field) -> tuple[object, ...]:
    kind = field.message_type or field.enum_type
    entry = field.message_type is not None and field.message_type.GetOptions().map_entry
    return (
        field.number,
        field.type,
        field.is_repeated,
        "map" if entry else kind and kind.full_name,
        facts(field.message_type.fields_by_name["value"]) if entry else None,
    )


@pytest.mark.parametrize("name", MESSAGES)
def test_every_field_is_that_of_triton(name: str) -> None:
    ours = message_types()[name].DESCRIPTOR
    assert ours.full_name == f"{PACKAGE}.{name}"
    known = theirs(name).fields_by_name
    for field in ours.fields:
        assert facts(field) == facts(known[field.name]), field.name
        if field.enum_type is not None:
            values = {value.name: value.number for value in field.enum_type.values}
            assert values == {value.name: value.number for value in known[field.name].enum_type.values}


def test_requests_have_every_field_that_triton_has() -> None:
    """What a client may say must not be lost; what the agent says itself may be less."""
    for name in MESSAGES:
        if "Request" in name or name in ("InferParameter", "InferTensorContents", "ModelRepositoryParameter"):
            ours = {field.name for field in message_types()[name].DESCRIPTOR.fields}
            assert ours == {field.name for field in theirs(name).fields}, name


def test_a_client_in_the_same_process_is_not_disturbed() -> None:
    """Protobuf refuses a second file of the same names in one pool. Here the client came first, below the agent."""
    assert service_pb2.ModelInferRequest(id="a").SerializeToString() == b"\x1a\x01a"
    assert message_types()["ModelInferRequest"](id="a").SerializeToString() == b"\x1a\x01a"
    code = (
        "from device_agent.rpc.descriptors import message_types; message_types(); import tritonclient.grpc.service_pb2"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_one_union_is_a_union() -> None:
    parameter = message_types()["InferParameter"](bool_param=True)
    parameter.string_param = "a"
    assert not parameter.HasField("bool_param")
    assert parameter.WhichOneof(UNION) == "string_param"
