from __future__ import annotations

import base64
import json
from types import ModuleType

import numpy as np
import pytest
from edgeonnx_ext.reference import floats as reference

from tests.unit.ext.conftest import compiled


@pytest.fixture(params=["compiled", "reference"])
def floats(request: pytest.FixtureRequest) -> ModuleType:
    return compiled("_floats") if request.param == "compiled" else reference


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (-1.0, "-1.0"),
        (0.1, "0.1"),
        (0.5, "0.5"),
        (1 / 3, "0.33333334"),
        (2 / 3, "0.6666667"),
        (-123.456, "-123.456"),
        (16777216.0, "1.6777216e+07"),
        (9999999.0, "9999999.0"),
        (9999999.5, "1e+07"),
        (1000000.5, "1000000.5"),
        (1e7, "1e+07"),
        (1e-5, "0.00001"),
        (9.9999e-6, "9.9999e-06"),
        (1.1754944e-38, "1.1754944e-38"),
        (1e-45, "1e-45"),
        (3.4028235e38, "3.4028235e+38"),
        (0.03125, "0.03125"),
        (1.00000012, "1.0000001"),
        (8388608.0, "8388608.0"),
    ],
)
def test_each_number_is_the_shortest_that_reads_back(floats: ModuleType, value: float, expected: str) -> None:
    assert floats.json_rows(np.array([[value]], dtype=np.float32)) == [b"[" + expected.encode() + b"]"]


def test_a_row_is_an_array(floats: ModuleType) -> None:
    x = np.array([[1, -2.5, 3e-9], [0, 7, 8]], dtype=np.float32)
    assert floats.json_rows(x) == [b"[1.0,-2.5,3e-09]", b"[0.0,7.0,8.0]"]


@pytest.mark.parametrize("exponent", range(-20, 26))
def test_powers_of_two_and_their_neighbours(floats: ModuleType, exponent: int) -> None:
    """Below a power of two the numbers lie twice as close as above it."""
    power = np.float32(2.0**exponent)
    x = np.array([[np.nextafter(power, np.float32(0)), power, np.nextafter(power, np.float32(np.inf))]])
    found = json.loads(floats.json_rows(x)[0])
    assert np.array(found, dtype=np.float32).tolist() == x[0].tolist()
    assert found == [float(str(value)) for value in x[0]], "NumPy writes the shortest as well"


@pytest.mark.parametrize("place", [(0, 0), (1, 2), (2, 4)])
@pytest.mark.parametrize(("value", "name"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_what_json_cannot_write_is_refused(floats: ModuleType, place: tuple[int, int], value: float, name: str) -> None:
    x = np.zeros((3, 5), dtype=np.float32)
    x[place] = value
    with pytest.raises(ValueError, match=f"found {name} at row {place[0]}, column {place[1]}"):
        floats.json_rows(x)


@pytest.mark.parametrize("columns", range(8))
def test_base64_is_that_of_the_little_endian_bytes(floats: ModuleType, columns: int) -> None:
    x = np.random.default_rng(columns).integers(0, 2**32, size=(3, columns), dtype=np.uint32).view(np.float32)
    found = floats.base64_rows(x)
    assert [base64.b64decode(text, validate=True) for text in found] == [row.astype("<f4").tobytes() for row in x]


@pytest.mark.parametrize(("shape", "count"), [((0, 4), 0), ((3, 0), 3), ((0, 0), 0)])
def test_empty_arrays(floats: ModuleType, shape: tuple[int, int], count: int) -> None:
    x = np.empty(shape, dtype=np.float32)
    assert floats.json_rows(x) == [b"[]"] * count
    assert floats.base64_rows(x) == [""] * count


@pytest.mark.parametrize("kernel", ["json_rows", "base64_rows"])
@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (np.ones((2, 2)), TypeError, "x: expected dtype float32, found float64"),
        (np.ones(2, dtype=np.float32), ValueError, "x: expected 2 dimensions"),
        (np.ones((2, 4), dtype=np.float32)[:, ::2], ValueError, "x: expected a C-contiguous"),
        ([[1.0]], TypeError, "x: expected a numpy.ndarray"),
    ],
)
def test_wrong_arguments(floats: ModuleType, kernel: str, x: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        getattr(floats, kernel)(x)
