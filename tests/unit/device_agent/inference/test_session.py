from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from device_agent.inference.session import CPU_PROVIDER, Session, explain
from edgeonnx.bundle import open_bundle
from edgeonnx.errors import InvalidRequestError, RuntimeUnavailableError
from edgeonnx.spec.manifest import Task
from tests.support import bundles


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    bundle = open_bundle(bundles.make_bundle(tmp_path_factory.mktemp("session"), Task.TEXT_CLASSIFICATION))
    variant = bundle.manifest.entry_component.variants[0]
    model, tensors = bundle.model_path("encoder", variant), bundle.tensors_path(variant)
    return Session(model, tensors, provider=CPU_PROVIDER, threads=1)


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
