"""Inference responses of the Open Inference Protocol v2.

- Outputs per token have the width of the longest row; shorter rows are filled up with zeros, and the answer's
  parameter `token_counts` gives every row's length.
- Each output is in JSON, or in binary form if the client asked for that.
- NaN is never an answer: nobody can use one. Infinity is a number that binary outputs carry; JSON has no form for it.
- Triton's classification extension: an output with `classification: k` becomes BYTES of shape [rows, k], the k largest
  values of each row in descending order, each as `value:index` or `value:index:label`, values with six decimals. Of
  equal values the one with the lower index comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import orjson

from device_agent.api.context import Rendered
from device_agent.api.open_inference.binary import frame
from device_agent.api.open_inference.datatypes import array_to_binary, array_to_json, strings_to_binary
from edgeonnx.errors import InferenceError
from edgeonnx.spec.tensor import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from device_agent.api.open_inference.datatypes import Array
    from device_agent.api.open_inference.request import InferRequest, Output
    from device_agent.inference.rows import Answer
    from edgeonnx.spec.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class OutputTensor:
    """An output as it goes out.

    Attributes:
        name: Its name.
        datatype: Its datatype.
        shape: Its shape.
        values: The elements: an array, or the texts of a BYTES tensor.
        binary: Whether the client asked for it in binary form.
    """

    name: str
    datatype: DType
    shape: tuple[int, ...]
    values: Array | list[str]
    binary: bool

    def to_binary(self) -> bytes | memoryview:
        """The binary form."""
        if isinstance(self.values, list):
            return strings_to_binary([value.encode() for value in self.values])
        return array_to_binary(self.values, self.datatype)

    def to_json(self) -> Array | list[str]:
        """What `orjson` writes as the JSON form.

        Raises:
            InferenceError: It holds an infinity.
            InvalidRequestError: The datatype has no JSON form.
        """
        if isinstance(self.values, list):
            return self.values
        check_finite(self.values, self.name)
        return array_to_json(self.values, self.datatype, self.name)


def output_tensors(answer: Answer, request: InferRequest, manifest: Manifest) -> list[OutputTensor]:
    """The outputs in the order asked for.

    Raises:
        InferenceError: One holds a NaN.
    """
    signature = manifest.entry_component.signature
    tensors = []
    for output in request.outputs:
        spec = signature.output(output.name)
        value = answer.outputs[output.name]
        check_no_nan(value, output.name)
        if output.classes:
            tensors.append(_classified(value, output, manifest.labels))
            continue
        datatype = DType.FLOAT if spec is None else spec.dtype
        tensors.append(
            OutputTensor(name=output.name, datatype=datatype, shape=value.shape, values=value, binary=output.binary)
        )
    return tensors


def _classified(value: Array, output: Output, labels: Sequence[str]) -> OutputTensor:
    texts, shape = top_classes(value, output.classes, labels)
    return OutputTensor(name=output.name, datatype=DType.STRING, shape=shape, values=texts, binary=output.binary)


def top_classes(values: Array, count: int, labels: Sequence[str]) -> tuple[list[str], tuple[int, int]]:
    """The largest values of each row in Triton's form.

    Args:
        values: Numbers (rows, classes).
        count: How many of each row; at most all.
        labels: Names of the classes; not used if they are not as many as the classes.

    Returns:
        The texts, row by row, and their shape.
    """
    rows, classes = values.shape
    count = min(count, classes)
    names = [f":{label}" for label in labels] if len(labels) == classes else [""] * classes
    # A stable sort keeps the order of equal values.
    order = np.argsort(-values.astype(np.float64), axis=1, kind="stable")[:, :count]
    texts = [
        f"{row[at]:.6f}:{at}{names[at]}"
        for row, best in zip(values.tolist(), order.tolist(), strict=True)
        for at in best
    ]
    return texts, (rows, count)


def token_counts(answer: Answer, request: InferRequest, manifest: Manifest) -> list[int] | None:
    """Tokens of each row, for answers to texts that have outputs per token; else None."""
    signature = manifest.entry_component.signature
    if request.texts is None:
        return None
    specs = (signature.output(output.name) for output in request.outputs)
    if not any(spec is not None and len(spec.shape) > 2 for spec in specs):
        return None
    counts: list[int] = answer.lengths.tolist()
    return counts


def render_response(answer: Answer, request: InferRequest, manifest: Manifest) -> Rendered:
    """The body of an infer response.

    Raises:
        InferenceError: An output holds a number that its form does not have.
        InvalidRequestError: An output has no JSON form.
    """
    outputs: list[dict[str, object]] = []
    buffers: list[bytes | memoryview] = []
    for tensor in output_tensors(answer, request, manifest):
        item: dict[str, object] = {
            "name": tensor.name,
            "datatype": tensor.datatype.protocol_name,
            "shape": tensor.shape,
        }
        if tensor.binary:
            data = tensor.to_binary()
            item["parameters"] = {"binary_data_size": len(data)}
            buffers.append(data)
        else:
            item["data"] = tensor.to_json()
        outputs.append(item)
    response: dict[str, object] = {"model_name": manifest.name, "model_version": manifest.version}
    if request.id is not None:
        response["id"] = request.id
    counts = token_counts(answer, request, manifest)
    if counts is not None:
        response["parameters"] = {"token_counts": counts}
    response["outputs"] = outputs
    header = orjson.dumps(response, option=orjson.OPT_SERIALIZE_NUMPY)
    return frame(header, buffers) if buffers else Rendered(data=header)


def check_no_nan(value: NDArray[np.generic], name: str) -> None:
    """Refuse to answer with what is no number.

    Raises:
        InferenceError: NaN is among the values.
    """
    if value.dtype.kind == "f" and np.isnan(value).any():
        raise InferenceError("the model's output is not a number (NaN)", where=name, expected="numbers")


def check_finite(value: NDArray[np.generic], name: str) -> None:
    """Refuse to answer in JSON with what JSON does not have.

    Raises:
        InferenceError: NaN or an infinity is among the values.
    """
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise InferenceError("the model's output is not finite", where=name, expected="finite numbers")
