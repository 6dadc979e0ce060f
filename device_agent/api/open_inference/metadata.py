"""What a client may ask of the server and its models before it sends a request: health, metadata, configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_agent.api.open_inference.replies import json_response
from device_agent.api.open_inference.request import text_inputs
from device_agent.models.loaded import LoadedDecoder
from edgeonnx import __version__
from edgeonnx.errors import NotReadyError
from edgeonnx.spec.tensor import DType

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from device_agent.api.context import Context
    from device_agent.config import Limits
    from device_agent.models.loaded import LoadedModel
    from edgeonnx.spec.tensor import TensorSpec

SERVER_NAME = "edgeonnx-agent"
PLATFORM = "onnxruntime_onnx"
BACKEND = "onnxruntime"
CPU_PROVIDER = "CPUExecutionProvider"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "statistics",
)
"""The extensions of the protocol that are served, by Triton's names. `schedule_policy` is not among them, although
`timeout` is honoured, because `priority` is not; nor is `parameters`, because no parameter reaches a model."""


def server_metadata() -> dict[str, object]:
    """The answer of `/v2`."""
    return {"name": SERVER_NAME, "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(loaded: LoadedModel) -> dict[str, object]:
    """The answer of `/v2/models/{name}`: text inputs and tensors, outputs, and in `parameters` what serves and why.

    `text` (with `text_pair`) and the tensors are alternatives; the parameter `group` tells them apart. A text's shape
    may be [n] too.
    """
    manifest = loaded.manifest
    signature = manifest.entry_component.signature
    text = [
        {"name": name, "datatype": DType.STRING.protocol_name, "shape": [-1, 1], "parameters": {"group": "text"}}
        for name in text_inputs(manifest)
    ]
    return {
        "name": manifest.name,
        "versions": [manifest.version],
        "platform": PLATFORM,
        "inputs": text + [{**_tensor_metadata(spec), "parameters": {"group": "tensors"}} for spec in signature.inputs],
        "outputs": [_tensor_metadata(spec) for spec in signature.outputs],
        "parameters": {
            "task": manifest.task.value,
            "digest": loaded.bundle.digest,
            "precision": loaded.engine.variant.precision,
            **loaded.engine.as_dict(),
            "tokenizer": loaded.tokenizer,
            "max_length": manifest.processing.max_length,
            "labels": list(manifest.labels),
            **_generation(loaded),
            **manifest.properties,
        },
    }


def _generation(loaded: LoadedModel) -> dict[str, object]:
    """What a client wants to know of a model that generates text; nothing of another one."""
    if not isinstance(loaded, LoadedDecoder):
        return {}
    return {
        "context_length": loaded.caches.context_length,
        "chat": loaded.generation.chat_template is not None,
    }


def _tensor_metadata(spec: TensorSpec) -> dict[str, object]:
    return {"name": spec.name, "datatype": spec.dtype.protocol_name, "shape": spec.protocol_shape()}


def model_config(loaded: LoadedModel, limits: Limits) -> dict[str, object]:
    """The answer of `/v2/models/{name}/config`, in the form of Triton's `ModelConfig`.

    As there, `dims` leave the batch dimension out, because `max_batch_size` is not 0: a text has the shape [n, 1].
    """
    manifest = loaded.manifest
    signature = manifest.entry_component.signature
    kind = "KIND_CPU" if loaded.engine.provider == CPU_PROVIDER else "KIND_GPU"
    texts = [_config_tensor(name, DType.STRING, [1]) for name in text_inputs(manifest)]
    tensors = [_config_tensor(spec.name, spec.dtype, spec.protocol_shape()[1:]) for spec in signature.inputs]
    return {
        "name": manifest.name,
        "platform": PLATFORM,
        "backend": BACKEND,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": limits.max_texts,
        "input": [{**tensor, "optional": True} for tensor in (*texts, *tensors)],
        "output": [_config_tensor(spec.name, spec.dtype, spec.protocol_shape()[1:]) for spec in signature.outputs],
        **({} if isinstance(loaded, LoadedDecoder) else {"dynamic_batching": {"max_queue_delay_microseconds": 0}}),
        "instance_group": [{"name": manifest.name, "kind": kind, "count": loaded.plan.runners}],
        "default_model_filename": loaded.engine.variant.model_file,
        "parameters": {
            key: {"string_value": value}
            for key, value in (
                ("task", manifest.task.value),
                ("version", manifest.version),
                ("variant", loaded.engine.variant.name),
                ("provider", loaded.engine.provider),
            )
        },
    }


def _config_tensor(name: str, datatype: DType, dims: list[int]) -> dict[str, object]:
    # Triton's enumeration of datatypes calls BYTES a string.
    label = "STRING" if datatype is DType.STRING else datatype.protocol_name
    return {"name": name, "data_type": f"TYPE_{label}", "dims": dims}


def asked_model(context: Context, request: Request) -> LoadedModel:
    """The model that a path names.

    Raises:
        ModelNotFoundError: There is none of that name or version.
    """
    return context.models.find(request.path_params["name"], request.path_params.get("version")).loaded


async def live(_context: Context, _request: Request) -> Response:
    """`GET /v2/health/live`."""
    return json_response({"live": True})


async def ready(context: Context, _request: Request) -> Response:
    """`GET /v2/health/ready`."""
    if not context.models.ready:
        raise NotReadyError("the agent is not ready", found=context.models.state)
    return json_response({"ready": True})


async def server(_context: Context, _request: Request) -> Response:
    """`GET /v2`."""
    return json_response(server_metadata())


async def model(context: Context, request: Request) -> Response:
    """`GET /v2/models/{name}`."""
    return json_response(model_metadata(asked_model(context, request)))


async def model_ready(context: Context, request: Request) -> Response:
    """`GET /v2/models/{name}/ready`."""
    return json_response({"name": asked_model(context, request).name, "ready": True})


async def config(context: Context, request: Request) -> Response:
    """`GET /v2/models/{name}/config`."""
    return json_response(model_config(asked_model(context, request), context.config.limits))
