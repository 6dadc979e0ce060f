"""`timings.json`: what is written is read back; broken ones stand in tests/attacks/test_bundle_unsealed.py."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from edgeonnx.errors import ManifestError, SchemaVersionError
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.timings import TIMINGS_FILE, DecodingTiming, Timing, Timings


def timing(**changes: Any) -> Timing:
    figures: dict[str, Any] = {
        "threads": 1,
        "texts": 500,
        "tokens": 12_345,
        "texts_per_second": 712.125,
        "tokens_per_second": 17_581.5,
        "latency_ms": 3.25,
        "latency_p95_ms": 4.0,
        **changes,
    }
    return Timing(**figures)


def timings() -> Timings:
    return Timings(
        machine={"processor": "a CPU", "architecture": "x86_64", "cores": "2", "onnxruntime": "1.32.0"},
        graphs={"cpu-int8": timing(), "int8/1": timing(threads=2)},
        stages={"export": 10.25, "quantize": 3.0},
    )


def read(document: dict[str, Any]) -> Timings:
    return Timings.from_dict(parse_document(canonical_json(document), TIMINGS_FILE))


def test_what_is_written_is_read_back() -> None:
    assert read(timings().to_dict()) == timings()


def test_times_are_written_to_the_microsecond() -> None:
    made = Timings(machine={}, graphs={"a": timing(latency_ms=1 / 3)}, stages={"export": 2 / 3})
    found = read(made.to_dict())
    written = found.graphs["a"]
    assert isinstance(written, Timing)
    assert written.latency_ms == 0.333
    assert found.stages == {"export": 0.667}


def test_whole_numbers_are_times_too() -> None:
    document = copy.deepcopy(timings().to_dict())
    document["stages"] = {"export": 10}
    assert read(document).stages == {"export": 10.0}


def test_a_newer_minor_version_may_say_more() -> None:
    document = copy.deepcopy(timings().to_dict())
    document.update(schema_version="1.3", of_a_later_release=[])
    assert read(document) == timings()


def test_another_major_version_is_refused() -> None:
    with pytest.raises(SchemaVersionError):
        read({**timings().to_dict(), "schema_version": "2.0"})


@pytest.mark.parametrize("field", ["threads", "texts", *Timing.FLOATS])
def test_each_figure_is_required(field: str) -> None:
    document: Any = copy.deepcopy(timings().to_dict())
    del document["graphs"]["cpu-int8"][field]
    with pytest.raises(ManifestError, match=field) as caught:
        read(document)
    assert caught.value.where == "timings.json: graphs.cpu-int8"


def test_a_decoder_s_speed_is_of_another_kind() -> None:
    speed = DecodingTiming(threads=2, prompt_tokens=128, new_tokens=64, prompt_ms=81.5, tokens_per_second=133.25)
    made = Timings(machine={}, graphs={"cpu-int8": speed, "model": timing()})
    found = read(made.to_dict())
    assert found == made
    assert (found.graphs["cpu-int8"].rate, found.graphs["model"].rate) == (133.25, 712.125)


@pytest.mark.parametrize("field", ["threads", "prompt_tokens", "new_tokens", "tokens_per_second"])
def test_a_decoder_s_speed_has_every_figure(field: str) -> None:
    speed = DecodingTiming(threads=2, prompt_tokens=128, new_tokens=64, prompt_ms=81.5, tokens_per_second=133.25)
    document: Any = copy.deepcopy(Timings(machine={}, graphs={"a": speed}).to_dict())
    del document["graphs"]["a"][field]
    with pytest.raises(ManifestError) as caught:
        read(document)
    assert field in str(caught.value)
