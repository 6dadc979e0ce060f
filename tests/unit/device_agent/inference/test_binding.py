from __future__ import annotations

import ctypes
import gc
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from device_agent.inference.binding import Binding, Buffers, PinnedMemory, bindable, host_memory, output_shape, pageable
from device_agent.inference.session import CPU_PROVIDER, Session
from edgeonnx.bundle import open_bundle
from edgeonnx.errors import InvalidRequestError
from edgeonnx.spec.manifest import Task
from tests.support import bundles

Array = np.ndarray


def open_session(folder: Path, task: Task, *, bind: bool) -> Session:
    bundle = open_bundle(folder)
    variant = bundle.manifest.entry_component.variants[0]
    model, tensors = bundle.model_path("encoder", variant), bundle.tensors_path(variant)
    return Session(model, tensors, provider=CPU_PROVIDER, threads=1, bind=bind)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Session]:
    """The same graph, with outputs of two and of three dimensions, through I/O binding and without."""
    folder = bundles.make_bundle(tmp_path_factory.mktemp("binding"), Task.TOKEN_CLASSIFICATION)
    bound, plain = (open_session(folder, Task.TOKEN_CLASSIFICATION, bind=bind) for bind in (True, False))
    assert bound.bound
    assert not plain.bound
    return bound, plain


def batch(rows: int, width: int, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, width + 1, rows)
    return {
        "input_ids": rng.integers(0, len(bundles.VOCABULARY), (rows, width)),
        "attention_mask": (np.arange(width) < lengths[:, None]).astype(np.int64),
        "token_type_ids": rng.integers(0, 2, (rows, width)),
    }


@given(shapes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 17), st.integers(0, 99)), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_bound_equals_plain_whatever_the_sequence_of_shapes(
    pair: tuple[Session, Session], shapes: list[tuple[int, int, int]]
) -> None:
    bound, plain = pair
    kept: list[tuple[dict[str, Array], dict[str, Array]]] = []
    for rows, width, seed in shapes:
        inputs = batch(rows, width, seed)
        kept.append((bound.run(inputs), plain.run(inputs)))
    # Compared at the end: an answer must survive the runs that follow it, in the same memory.
    for found, expected in kept:
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].shape == value.shape
            assert found[name].dtype == value.dtype
            np.testing.assert_array_equal(found[name], value)


def test_buffers_of_the_caller_that_are_filled_again_are_read_again(pair: tuple[Session, Session]) -> None:
    bound, plain = pair
    inputs = batch(4, 6, 1)
    first = bound.run(inputs)
    for name, value in batch(4, 6, 2).items():
        inputs[name][:] = value
    second = bound.run(inputs)
    np.testing.assert_array_equal(second["logits"], plain.run(batch(4, 6, 2))["logits"])
    np.testing.assert_array_equal(first["logits"], plain.run(batch(4, 6, 1))["logits"])


def test_only_the_outputs_that_are_asked_for(pair: tuple[Session, Session]) -> None:
    bound, plain = pair
    inputs = batch(2, 3, 5)
    bound.run(inputs)
    found = bound.run(inputs, ["scores"])
    assert list(found) == ["scores"]
    np.testing.assert_array_equal(found["scores"], plain.run(inputs)["scores"])
    assert list(bound.run(inputs, ["scores", "logits"])) == ["scores", "logits"]


def test_arrays_that_do_not_lie_in_one_piece(pair: tuple[Session, Session]) -> None:
    bound, plain = pair
    inputs = {name: np.asfortranarray(value) for name, value in batch(5, 7, 3).items()}
    np.testing.assert_array_equal(bound.run(inputs)["logits"], plain.run(batch(5, 7, 3))["logits"])


def test_wrong_inputs_are_told_as_without_binding_and_the_next_run_is_right(pair: tuple[Session, Session]) -> None:
    bound, plain = pair
    wrong = {**batch(2, 3, 0), "input_ids": np.full((2, 3), 999)}
    for session in (bound, plain):
        with pytest.raises(InvalidRequestError):
            session.run(wrong)
    np.testing.assert_array_equal(bound.run(batch(2, 3, 0))["logits"], plain.run(batch(2, 3, 0))["logits"])


def test_each_thread_has_its_own_binding(pair: tuple[Session, Session]) -> None:
    bound, plain = pair
    wrong: list[str] = []

    def work(seed: int) -> None:
        for turn in range(25):
            inputs = batch(1 + (seed + turn) % 5, 1 + (seed * turn) % 11, seed * 100 + turn)
            if not np.array_equal(bound.run(inputs)["logits"], plain.run(inputs)["logits"]):
                wrong.append(f"{seed} {turn}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def small_graph(output: list[int | str | None], operator: str = "Relu", kind: int = TensorProto.FLOAT) -> bytes:
    x = helper.make_tensor_value_info("x", kind, ["batch", "width"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64 if operator == "NonZero" else kind, output)
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.ModelProto.SerializeToString(model)


def test_a_session_on_a_graph_that_states_wrong_shapes_runs_without_binding(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model.onnx").write_bytes(small_graph(["batch", 2]))
    session = Session(tmp_path / "model.onnx", None, provider=CPU_PROVIDER, threads=1, bind=True)
    for width in (2, 3):
        np.testing.assert_array_equal(session.run({"x": np.ones((2, width), np.float32)})["y"], np.ones((2, width)))
    assert session.bound is False
    assert "runs without" in caplog.text


def run_bound(graph: bytes, arrays: list[Array]) -> list[Array]:
    session = ort.InferenceSession(graph, providers=[CPU_PROVIDER])
    binding, options = Binding(session), ort.RunOptions()
    options.log_severity_level = 4
    return [binding.run({"x": array}, ["y"], options)[0] for array in arrays]


def test_an_output_whose_shape_the_inputs_do_not_tell() -> None:
    arrays = [np.array([[1, 0, 2]], np.float32), np.array([[0, 0], [3, 0]], np.float32), np.ones((3, 3), np.float32)]
    for found, array in zip(run_bound(small_graph([2, "found"], "NonZero"), arrays), arrays, strict=True):
        np.testing.assert_array_equal(found, np.stack(np.nonzero(array)))


def test_outputs_of_an_earlier_run_are_forgotten() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "width"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "width"])
    z = helper.make_tensor_value_info("z", TensorProto.INT64, [2, "found"])
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("NonZero", ["x"], ["z"])]
    graph = helper.make_graph(nodes, "g", [x], [y, z])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=[CPU_PROVIDER])
    binding, array = Binding(session), np.array([[0, 3]], np.float32)
    assert len(binding.run({"x": array}, ["y", "z"], ort.RunOptions())) == 2
    (found,) = binding.run({"x": array}, ["z"], ort.RunOptions())
    np.testing.assert_array_equal(found, [[0], [1]])


def test_a_graph_that_states_a_wrong_output_shape_is_an_error_not_a_wrong_answer() -> None:
    with pytest.raises(Exception, match=r"(?i)shape"):
        run_bound(small_graph(["batch", 2]), [np.ones((2, 3), np.float32)])


def test_outputs_survive_the_session() -> None:
    found = run_bound(small_graph(["batch", "width"]), [np.full((64, 64), 2, np.float32)])
    gc.collect()
    assert (found[0] == 2).all()


@pytest.mark.parametrize(
    ("output", "inputs", "expected"),
    [
        (["batch", "sequence", 384], [(["batch", "sequence"], (2, 3))], (2, 3, 384)),
        (["batch", 8], [(["batch", "sequence"], (2, 3)), (["batch", "sequence"], (2, 3))], (2, 8)),
        (["batch"], [(["batch", "a"], (2, 3)), (["batch", "b"], (4, 3))], None),
        (["other"], [(["batch"], (2,))], None),
        ([None, 3], [([None, "x"], (2, 3))], None),
        ([], [(["batch"], (2,))], ()),
    ],
)
def test_the_shape_of_an_output(output: list, inputs: list, expected: tuple[int, ...] | None) -> None:
    assert output_shape(output, inputs) == expected


def test_memory_is_reused_and_an_array_has_exactly_its_shape() -> None:
    allocated: list[int] = []

    def allocate(size: int) -> Array:
        allocated.append(size)
        return pageable(size)

    buffers = Buffers(allocate)
    large = buffers.view("a", np.dtype(np.int64), (4, 8))
    small = buffers.view("a", np.dtype(np.float32), (3, 5))
    assert allocated == [256]
    assert (large.shape, small.shape, small.dtype) == ((4, 8), (3, 5), np.float32)
    assert np.shares_memory(large, small)
    assert not np.shares_memory(large, buffers.view("b", np.dtype(np.int64), (4, 8)))
    buffers.view("a", np.dtype(np.int64), (5, 8))
    assert buffers.nbytes == 512 + 256


class FakeCuda:
    """CUDA's runtime, as far as pinned memory needs it."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.blocks: dict[int, ctypes.Array[ctypes.c_uint8]] = {}
        self.freed: list[int] = []

    def cudaHostAlloc(self, pointer: object, size: ctypes.c_size_t, flags: int) -> int:  # noqa: N802
        if self.code == 0:
            block = (ctypes.c_uint8 * size.value)()
            address = ctypes.addressof(block)
            self.blocks[address] = block
            pointer._obj.value = address  # type: ignore[attr-defined]
        return self.code

    def cudaFreeHost(self, pointer: ctypes.c_void_p) -> int:  # noqa: N802
        self.freed.append(pointer.value or 0)
        return 0


def test_pinned_memory_is_freed_with_the_last_array_on_it() -> None:
    cuda = FakeCuda()
    buffers = Buffers(PinnedMemory(cuda))  # type: ignore[arg-type]
    view = buffers.view("a", np.dtype(np.int64), (4, 4))
    view[:] = 7
    (address,) = cuda.blocks
    assert view.ctypes.data == address
    assert bytes(cuda.blocks[address])[:8] == (7).to_bytes(8, "little")
    buffers.view("a", np.dtype(np.int64), (40, 40))
    gc.collect()
    assert cuda.freed == []
    del view
    gc.collect()
    assert cuda.freed == [address]


def test_a_driver_without_pinned_memory_gives_ordinary_memory() -> None:
    block = PinnedMemory(FakeCuda(code=2))(64)  # type: ignore[arg-type]
    assert block.nbytes == 64


def test_without_cuda_memory_is_ordinary() -> None:
    assert host_memory("") is pageable
    assert host_memory("999.0") is pageable


def test_strings_and_empty_arrays_are_not_bound() -> None:
    assert bindable({"x": np.ones((1, 1)), "y": np.ones(1, dtype=bool)})
    assert not bindable({"x": np.array(["a"], dtype=object)})
    assert not bindable({"x": np.ones((0, 4))})
