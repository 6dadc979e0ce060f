from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from device_agent.inference.session import (
    CPU_PROVIDER,
    DeviceMemoryError,
    Session,
    _version_hint,
    explain,
    failure_of,
    runtime_build,
)
from edgeonnx.bundle import open_bundle
from edgeonnx.errors import InferenceError, InvalidRequestError, ProviderLostError, RuntimeUnavailableError
from edgeonnx.spec.manifest import Task
from tests.support import bundles


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    bundle = open_bundle(bundles.make_bundle(tmp_path_factory.mktemp("session"), Task.TEXT_CLASSIFICATION))
    variant = bundle.manifest.entry_component.variants[0]
    model, tensors = bundle.model_path("encoder", variant), bundle.tensors_path(variant)
    return Session(model, tensors, provider=CPU_PROVIDER, threads=1)


@pytest.mark.parametrize(("asked", "value"), [({}, "0"), ({"spinning": True}, "1")])
def test_threads_wait_without_spinning_unless_they_are_told_to(
    session: Session, tmp_path: Path, asked: dict[str, bool], value: str
) -> None:
    bundle = open_bundle(bundles.make_bundle(tmp_path, Task.TEXT_CLASSIFICATION))
    variant = bundle.manifest.entry_component.variants[0]
    model, tensors = bundle.model_path("encoder", variant), bundle.tensors_path(variant)
    made = Session(model, tensors, provider=CPU_PROVIDER, threads=2, **asked)
    options = made.raw.get_session_options()
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == value
    np.testing.assert_array_equal(made.run(inputs())["scores"], session.run(inputs())["scores"])


def inputs(**changes: object) -> dict[str, np.ndarray]:
    ones = np.ones((2, 3), dtype=np.int64)
    return {"input_ids": ones * 5, "attention_mask": ones, "token_type_ids": ones * 0, **changes}  # type: ignore[dict-item]


def test_it_names_its_inputs_outputs_and_the_providers_that_loaded(session: Session) -> None:
    assert session.inputs == bundles.INPUTS
    assert session.outputs == ("logits", "scores")
    assert session.providers == (CPU_PROVIDER,)


def test_it_computes_what_numpy_computes(session: Session) -> None:
    found = session.run(inputs())
    for name, expected in bundles.reference(Task.TEXT_CLASSIFICATION, inputs()).items():
        np.testing.assert_allclose(found[name], expected, atol=1e-5)


def test_it_computes_only_what_is_asked_for(session: Session) -> None:
    assert list(session.run(inputs(), ["scores"])) == ["scores"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_ids": np.full((2, 3), 999)},
        {"token_type_ids": np.full((2, 3), 2)},
        {"input_ids": np.ones(3, dtype=np.int64)},
        {"input_ids": np.ones((2, 3), dtype=np.int32)},
    ],
)
def test_inputs_that_do_not_fit_are_invalid_and_nothing_is_written_to_stderr(
    session: Session, wrong: dict[str, np.ndarray], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidRequestError):
        session.run(inputs(**wrong))
    assert capfd.readouterr().err == ""


def test_a_file_that_is_no_graph(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(RuntimeUnavailableError, match=r"model\.onnx"):
        Session(tmp_path / "model.onnx", None, provider=CPU_PROVIDER, threads=1)
    assert capfd.readouterr().err == ""


def test_a_message_of_the_runtime_is_one_short_line() -> None:
    assert explain(RuntimeError("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : bad\n  thing")) == "bad thing"
    assert len(explain(RuntimeError("x" * 10_000))) == 400
    assert explain(RuntimeError("")) == "RuntimeError"


def test_it_tells_where_every_node_runs(session: Session) -> None:
    assert session.assignment.share(CPU_PROVIDER) == 1.0
    assert session.assignment.total == sum(session.assignment.operators[CPU_PROVIDER].values()) > 3
    assert session.assignment.operators[CPU_PROVIDER]["Gather"] == 2


def test_the_cpu_runs_without_binding(session: Session) -> None:
    assert session.bound is False


def test_an_older_runtime_is_told_to_be_too_old() -> None:
    assert "install onnxruntime 1.30 or newer: 1.24.1" in _version_hint("1.24.1")
    assert "1.32.0" in _version_hint("1.32.0")
    assert "install" not in _version_hint("2.0")


def test_a_failure_of_the_device_is_told_apart_from_one_of_the_run() -> None:
    class RuntimeException(Exception):  # noqa: N818 - ONNX Runtime's name
        pass

    cuda = "CUDAExecutionProvider"
    lost = failure_of(RuntimeException("Status Message: CUDA failure 700: an illegal memory access ; GPU=0"), cuda)
    full = failure_of(RuntimeException("Status Message: CUDA failure 2: out of memory ; GPU=0"), cuda)
    run = failure_of(RuntimeException("Status Message: no kernel"), cuda)
    assert type(lost) is ProviderLostError
    assert (lost.where, lost.found) == (cuda, "CUDA failure 700: an illegal memory access")
    assert type(full) is DeviceMemoryError
    assert isinstance(full, ProviderLostError)
    assert type(run) is InferenceError


def test_the_runtime_says_what_it_is() -> None:
    assert runtime_build()["version"][0].isdigit()
    assert set(runtime_build()) == {"version", "package", "cuda", "build"}
