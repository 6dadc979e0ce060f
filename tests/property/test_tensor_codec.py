"""Tensors read back as what was written, byte for byte as tritonclient writes them; and whatever comes instead of a
request is a request, or our error, and nothing else."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from starlette.datastructures import Headers
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from device_agent.api.edge.body import parse_object
from device_agent.api.open_inference.binary import HEADER_LENGTH, split_body
from device_agent.api.open_inference.datatypes import (
    NUMPY_TYPES,
    WITHOUT_JSON,
    array_from_binary,
    array_from_json,
    array_to_binary,
    array_to_json,
    strings_from_binary,
    strings_to_binary,
)
from device_agent.api.open_inference.fields import read_request
from device_agent.api.open_inference.request import check_request
from device_agent.config import Limits
from edgeonnx.bundle import open_bundle
from edgeonnx.errors import InvalidRequestError, RequestTooLargeError
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.tensor import DType
from tests.support import bundles

NUMBERS = [dtype for dtype in DType if dtype is not DType.STRING]
FEW = settings(max_examples=25, deadline=None)


@pytest.mark.parametrize("dtype", NUMBERS)
@FEW
@given(data=st.data())
def test_any_bytes_are_numbers_and_back(dtype: DType, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 20))
    raw = data.draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if dtype is DType.BOOL:
        raw = bytes(value & 1 for value in raw)
    offset = data.draw(st.integers(0, 7))
    found = array_from_binary(memoryview(bytes(offset) + raw)[offset:], dtype, count, "x")
    assert (found.shape, found.dtype) == ((count,), NUMPY_TYPES[dtype])
    back = bytes(array_to_binary(found, dtype))
    if dtype is DType.BFLOAT16:
        # A NaN stays one; which of them is not kept.
        number = ~np.isnan(found)
        assert (np.frombuffer(raw, "<u2")[number] == np.frombuffer(back, "<u2")[number]).all()
        assert np.isnan(array_from_binary(memoryview(back), dtype, count, "x")[~number]).all()
    else:
        assert back == raw


@FEW
@given(values=hnp.arrays(np.float32, st.integers(0, 30), elements=st.floats(width=32, allow_nan=False)))
def test_bfloat16_is_rounded_as_by_ml_dtypes(values: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        want = values.astype(ml_dtypes.bfloat16)
    assert bytes(array_to_binary(values, DType.BFLOAT16)) == want.tobytes()


@pytest.mark.parametrize("dtype", [dtype for dtype in NUMBERS if dtype not in WITHOUT_JSON])
@FEW
@given(data=st.data())
def test_json_and_back(dtype: DType, data: st.DataObject) -> None:
    kind = NUMPY_TYPES[dtype]
    elements = None
    if kind.kind == "f":
        elements = st.floats(width=kind.itemsize * 8, allow_nan=False, allow_infinity=False)
    values = data.draw(hnp.arrays(kind, st.integers(0, 20), elements=elements))
    text = orjson.dumps(array_to_json(values, dtype, "x"), option=orjson.OPT_SERIALIZE_NUMPY)
    assert array_from_json(orjson.loads(text), dtype, "x").tobytes() == values.tobytes()


@FEW
@given(values=st.lists(st.binary(max_size=12), max_size=12))
def test_strings_as_tritonclient_writes_them(values: list[bytes]) -> None:
    data = strings_to_binary(values)
    if values:
        assert data == serialize_byte_tensor(np.array(values, dtype=np.object_)).item()
    assert deserialize_bytes_tensor(data).tolist() == values
    assert strings_from_binary(memoryview(data), len(values), "x") == values


@FEW
@given(data=st.binary(max_size=40), count=st.integers(0, 2**66))
def test_bytes_that_may_be_strings(data: bytes, count: int) -> None:
    try:
        values = strings_from_binary(memoryview(data), count, "x")
    except InvalidRequestError:
        return
    assert len(values) == count
    assert strings_to_binary(values) == data


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What checking a request needs of a model."""
    bundle = open_bundle(bundles.make_bundle(tmp_path_factory.mktemp("codec"), Task.TEXT_CLASSIFICATION))
    return SimpleNamespace(manifest=bundle.manifest, text=SimpleNamespace(vocabulary_size=21))


def outcome(body: bytes, headers: dict[str, str], loaded: Any) -> str:
    """The status of a request, or of our error; any other exception is a fault."""
    try:
        header, binary = split_body(body, Headers(headers))
        check_request(read_request(parse_object(header), binary), loaded, Limits(max_texts=8))
    except InvalidRequestError:
        return "400"
    except RequestTooLargeError:
        return "413"
    return "200"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def maybe(usual: Any) -> Any:
    """Mostly what is usual, sometimes anything."""
    return st.one_of(usual, usual, usual, JSON)


PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "binary_data_size": maybe(st.integers(-2, 80)),
        "shared_memory_region": JSON,
        "binary_data": maybe(st.booleans()),
        "classification": maybe(st.integers(-1, 4)),
    },
)
INPUTS = st.fixed_dictionaries(
    {
        "name": maybe(st.sampled_from(["text", *bundles.INPUTS])),
        "datatype": maybe(st.sampled_from(["BYTES", "INT64", "FP16"])),
        "shape": maybe(st.lists(st.integers(-1, 3), max_size=3)),
    },
    optional={
        "data": maybe(st.lists(st.sampled_from(["a", "the cat", 1, 2, 0]), max_size=4)),
        "parameters": maybe(PARAMETERS),
    },
)
REQUESTS = st.fixed_dictionaries(
    {"inputs": maybe(st.lists(INPUTS, max_size=4))},
    optional={
        "id": maybe(st.text(max_size=3)),
        "outputs": maybe(
            st.lists(
                st.fixed_dictionaries(
                    {"name": maybe(st.sampled_from(["logits", "scores"]))}, optional={"parameters": maybe(PARAMETERS)}
                ),
                max_size=3,
            )
        ),
        "parameters": maybe(
            st.fixed_dictionaries(
                {},
                optional={
                    name: maybe(st.integers(-1, 5) | st.booleans())
                    for name in ("timeout", "priority", "sequence_id", "sequence_start", "binary_data_output")
                },
            )
        ),
    },
)


@settings(max_examples=100, deadline=None)
@given(request=REQUESTS, tail=st.binary(max_size=80), cut=st.integers(-1, 1), framed=st.booleans())
def test_whatever_comes(loaded: Any, request: object, tail: bytes, cut: int, framed: bool) -> None:
    header = json.dumps(request).encode()
    headers = {HEADER_LENGTH: str(len(header) + cut)} if framed else {}
    assert outcome(header + tail, headers, loaded) in ("200", "400", "413")


@FEW
@given(texts=st.lists(st.text(max_size=6), min_size=1, max_size=8), binary=st.booleans())
def test_good_requests_are_taken(loaded: Any, texts: list[str], binary: bool) -> None:
    """So that the test above is not one of errors alone."""
    try:
        data = strings_to_binary([text.encode() for text in texts])
    except UnicodeEncodeError:
        return  # a lone surrogate is no text
    tensor: dict[str, Any] = {"name": "text", "datatype": "BYTES", "shape": [len(texts)]}
    tensor |= {"parameters": {"binary_data_size": len(data)}} if binary else {"data": texts}
    header = json.dumps({"inputs": [tensor]}).encode()
    headers = {HEADER_LENGTH: str(len(header))} if binary else {}
    assert outcome(header + (data if binary else b""), headers, loaded) == "200"
