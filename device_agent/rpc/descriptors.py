"""The messages of `inference.GRPCInferenceService`, made at run time from one table of names and field numbers.

No code is generated, and no file has to agree with another one. The classes live in a descriptor pool of their own:
clients in the same process (tritonclient registers the same names in protobuf's default pool) are not disturbed.

A field is written `number name type`. `*` before the type: repeated; `@` before a word: the type is a message or an
enumeration of the table; `{type}`: a map from strings; `?` at the end: a member of the message's one union. Fields of
Triton's messages that the agent neither reads nor writes are left out: protobuf skips what it does not know.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
UNION = "parameter_choice"

_NAME_VERSION = "1 name string, 2 version string"
_TENSOR = "1 name string, 2 datatype string, 3 shape *int64"
_INFER_TENSOR = f"{_TENSOR}, 4 parameters {{@InferParameter}}, 5 contents @InferTensorContents"

MESSAGES: dict[str, str] = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "1 live bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "1 ready bool",
    "ModelReadyRequest": _NAME_VERSION,
    "ModelReadyResponse": "1 ready bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "1 name string, 2 version string, 3 extensions *string",
    "ModelMetadataRequest": _NAME_VERSION,
    "ModelMetadataResponse": "1 name string, 2 versions *string, 3 platform string, 4 inputs *@.TensorMetadata, "
    "5 outputs *@.TensorMetadata",
    "ModelMetadataResponse.TensorMetadata": _TENSOR,
    "InferParameter": "1 bool_param bool?, 2 int64_param int64?, 3 string_param string?, 4 double_param double?, "
    "5 uint64_param uint64?",
    "InferTensorContents": "1 bool_contents *bool, 2 int_contents *int32, 3 int64_contents *int64, "
    "4 uint_contents *uint32, 5 uint64_contents *uint64, 6 fp32_contents *float, 7 fp64_contents *double, "
    "8 bytes_contents *bytes",
    "ModelInferRequest": "1 model_name string, 2 model_version string, 3 id string, 4 parameters {@InferParameter}, "
    "5 inputs *@.InferInputTensor, 6 outputs *@.InferRequestedOutputTensor, 7 raw_input_contents *bytes",
    "ModelInferRequest.InferInputTensor": _INFER_TENSOR,
    "ModelInferRequest.InferRequestedOutputTensor": "1 name string, 2 parameters {@InferParameter}",
    "ModelInferResponse": "1 model_name string, 2 model_version string, 3 id string, 4 parameters {@InferParameter}, "
    "5 outputs *@.InferOutputTensor, 6 raw_output_contents *bytes",
    "ModelInferResponse.InferOutputTensor": _INFER_TENSOR,
    "ModelStreamInferResponse": "1 error_message string, 2 infer_response @ModelInferResponse",
    "ModelConfigRequest": _NAME_VERSION,
    "ModelConfigResponse": "1 config @ModelConfig",
    "ModelConfig": "1 name string, 2 platform string, 3 version_policy @ModelVersionPolicy, 4 max_batch_size int32, "
    "5 input *@ModelInput, 6 output *@ModelOutput, 7 instance_group *@ModelInstanceGroup, "
    "8 default_model_filename string, 11 dynamic_batching @ModelDynamicBatching, 14 parameters {@ModelParameter}, "
    "17 backend string",
    "ModelVersionPolicy": "1 latest @.Latest",
    "ModelVersionPolicy.Latest": "1 num_versions uint32",
    "ModelInput": "1 name string, 2 data_type @DataType, 4 dims *int64, 8 optional bool",
    "ModelOutput": "1 name string, 2 data_type @DataType, 3 dims *int64",
    "ModelInstanceGroup": "1 name string, 2 count int32, 4 kind @.Kind",
    "ModelDynamicBatching": "2 max_queue_delay_microseconds uint64",
    "ModelParameter": "1 string_value string",
    "ModelStatisticsRequest": _NAME_VERSION,
    "ModelStatisticsResponse": "1 model_stats *@ModelStatistics",
    "ModelStatistics": "1 name string, 2 version string, 3 last_inference uint64, 4 inference_count uint64, "
    "5 execution_count uint64, 6 inference_stats @InferStatistics, 7 batch_stats *@InferBatchStatistics, "
    "8 memory_usage *@MemoryUsage",
    "InferStatistics": "1 success @StatisticDuration, 2 fail @StatisticDuration, 3 queue @StatisticDuration, "
    "4 compute_input @StatisticDuration, 5 compute_infer @StatisticDuration, 6 compute_output @StatisticDuration, "
    "7 cache_hit @StatisticDuration, 8 cache_miss @StatisticDuration",
    "InferBatchStatistics": "1 batch_size uint64, 2 compute_input @StatisticDuration, "
    "3 compute_infer @StatisticDuration, 4 compute_output @StatisticDuration",
    "StatisticDuration": "1 count uint64, 2 ns uint64",
    "MemoryUsage": "1 type string, 2 id int64, 3 byte_size uint64",
    "RepositoryIndexRequest": "1 repository_name string, 2 ready bool",
    "RepositoryIndexResponse": "1 models *@.ModelIndex",
    "RepositoryIndexResponse.ModelIndex": "1 name string, 2 version string, 3 state string, 4 reason string",
    "ModelRepositoryParameter": "1 bool_param bool?, 2 int64_param int64?, 3 string_param string?, "
    "4 bytes_param bytes?",
    "RepositoryModelLoadRequest": "1 repository_name string, 2 model_name string, "
    "3 parameters {@ModelRepositoryParameter}",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "1 repository_name string, 2 model_name string, "
    "3 parameters {@ModelRepositoryParameter}",
    "RepositoryModelUnloadResponse": "",
}

ENUMERATIONS: dict[str, tuple[str, ...]] = {
    "DataType": (
        "TYPE_INVALID",
        "TYPE_BOOL",
        "TYPE_UINT8",
        "TYPE_UINT16",
        "TYPE_UINT32",
        "TYPE_UINT64",
        "TYPE_INT8",
        "TYPE_INT16",
        "TYPE_INT32",
        "TYPE_INT64",
        "TYPE_FP16",
        "TYPE_FP32",
        "TYPE_FP64",
        "TYPE_STRING",
        "TYPE_BF16",
    ),
    "ModelInstanceGroup.Kind": ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"),
}
"""Each value's number is its place."""

_FIELD = re.compile(
    r"(?P<number>\d+) (?P<name>\w+) (?:\{@(?P<map>\w+)\}|(?P<repeated>\*?)(?P<named>@?)(?P<type>[.\w]+)(?P<union>\??))"
)
_Field = descriptor_pb2.FieldDescriptorProto


@cache
def message_types() -> dict[str, Any]:
    """The message classes by their names without the package (`ModelInferRequest.InferInputTensor`)."""
    file = descriptor_pb2.FileDescriptorProto(name="edgeonnx/open_inference.proto", package=PACKAGE, syntax="proto3")
    made: dict[str, Any] = {}
    for name, fields in MESSAGES.items():
        _, _, last = name.rpartition(".")
        holder = made[name.rpartition(".")[0]].nested_type if "." in name else file.message_type
        made[name] = holder.add(name=last)
        _add_fields(made[name], name, fields)
    for name, values in ENUMERATIONS.items():
        outer, _, last = name.rpartition(".")
        enumeration = (made[outer] if outer else file).enum_type.add(name=last)
        for number, value in enumerate(values):
            enumeration.value.add(name=value, number=number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


def _add_fields(message: Any, name: str, fields: str) -> None:
    for text in filter(None, fields.split(", ")):
        match = _FIELD.fullmatch(text)
        if match is None:
            raise AssertionError(f"{name}: {text!r} is no field")
        field = message.field.add(name=match["name"], number=int(match["number"]), label=_Field.LABEL_OPTIONAL)
        if match["map"]:
            field.label = _Field.LABEL_REPEATED
            _set_type(field, _add_entry(message, name, match["name"], match["map"]))
            continue
        if match["repeated"]:
            field.label = _Field.LABEL_REPEATED
        if match["named"]:
            _set_type(field, name + match["type"] if match["type"].startswith(".") else match["type"])
        else:
            field.type = getattr(_Field, f"TYPE_{match['type'].upper()}")
        if match["union"]:
            if not message.oneof_decl:
                message.oneof_decl.add(name=UNION)
            field.oneof_index = 0


def _add_entry(message: Any, outer: str, field: str, value: str) -> str:
    """The message of a map's entries, which protobuf wants spelled out; gives its name."""
    entry = message.nested_type.add(name="".join(part.capitalize() for part in field.split("_")) + "Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    _set_type(entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL), value)
    return f"{outer}.{entry.name}"


def _set_type(field: Any, name: str) -> None:
    field.type = _Field.TYPE_ENUM if name in ENUMERATIONS else _Field.TYPE_MESSAGE
    field.type_name = f".{PACKAGE}.{name}"
