from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from device_agent.inference.generation.decoder import Decoder
from device_agent.inference.generation.memory import HostMemory
from device_agent.inference.session import Session
from edgeonnx.errors import InferenceError, RuntimeUnavailableError
from edgeonnx.spec.generation import CacheShape
from tests.support.decoders import TEXTS, VOCABULARY, TinyDecoder, encode, uncached_logits
from tests.support.generation import DenseMemory, cuda_memory, open_session

TINY = TinyDecoder()
ROWS = [encode(text) for text in TEXTS]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return open_session(tmp_path_factory.mktemp("decoder"), TINY)


@pytest.fixture(params=[HostMemory, DenseMemory])
def decoder(session: Session, request: pytest.FixtureRequest) -> Decoder:
    return Decoder(session, TINY.cache, memory=request.param())


def close(found: np.ndarray, session: Session, ids: list[int]) -> None:
    np.testing.assert_allclose(found, uncached_logits(session.raw, TINY, ids), atol=2e-5)


@pytest.mark.parametrize("first", [1, 2, 7, 30])
def test_a_prompt_in_pieces_is_the_whole_sequence(decoder: Decoder, session: Session, first: int) -> None:
    ids = ROWS[2]
    close(decoder.extend(0, ids[:first], 0), session, ids[:first])
    close(decoder.extend(0, ids[first:], first), session, ids)


def test_rows_of_any_lengths_step_together(decoder: Decoder, session: Session) -> None:
    decoder.reserve(len(ROWS), 8)  # they grow
    for row, ids in enumerate(ROWS):
        decoder.extend(row, ids, 0)
    lengths = np.array([len(ids) for ids in ROWS])
    for count in (4, 2, 3, 1, 4):
        new = np.arange(10, 10 + count)
        found = decoder.step(new, lengths[:count])
        assert found.shape == (count, len(VOCABULARY))
        assert found.flags.c_contiguous
        for row in range(count):
            close(found[row], session, [*ROWS[row], 10 + row])


def test_a_copied_row_goes_on_like_the_first(decoder: Decoder, session: Session) -> None:
    decoder.reserve(2, 64)
    decoder.extend(0, ROWS[3], 0)
    decoder.extend(1, ROWS[2], 0)
    decoder.cache.copy(0, 1, 10)
    close(decoder.extend(1, ROWS[0], 10), session, [*ROWS[3][:10], *ROWS[0]])


def test_what_a_row_held_before_does_not_show(decoder: Decoder, session: Session) -> None:
    poisoned = [*ROWS[2], VOCABULARY["<|poison|>"], *ROWS[2]]
    assert np.isnan(decoder.extend(0, poisoned, 0)).all()
    close(decoder.extend(0, ROWS[0], 0), session, ROWS[0])
    close(decoder.step(np.array([5]), np.array([len(ROWS[0])]))[0], session, [*ROWS[0], 5])


def test_a_step_allocates_nothing_once_it_ran(session: Session) -> None:
    import tracemalloc

    decoder = Decoder(session, TINY.cache)
    decoder.reserve(4, 200)
    for row, ids in enumerate(ROWS):
        decoder.extend(row, ids, 0)
    new, lengths = np.arange(4), np.array([len(each) for each in ROWS])
    decoder.step(new, lengths)
    tracemalloc.start()
    try:
        for step in range(100):
            decoder.step(new, lengths + step)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A mask of 4 rows of 130 places, or the logits, would be 4 KB; objects of Python's own are small and go at once.
    assert most < 4096 + 20_000


def test_a_run_that_fails_is_our_error(decoder: Decoder) -> None:
    with pytest.raises(InferenceError):
        decoder.extend(0, [len(VOCABULARY) + 1], 0)


def test_a_graph_with_other_caches_is_refused(session: Session) -> None:
    with pytest.raises(RuntimeUnavailableError, match="5 layers"):
        Decoder(session, CacheShape(layers=5, heads=2, head_size=16))


def test_a_graph_with_logits_of_every_position_is_no_decoder_of_this_contract(tmp_path: Path) -> None:
    every = open_session(tmp_path, TinyDecoder(every_position=True))
    decoder = Decoder(every, TINY.cache)
    with pytest.raises(InferenceError):
        decoder.extend(0, ROWS[0], 0)


class Recorder:
    """A session and its bindings, which note what is bound to which device."""

    providers = ("CUDAExecutionProvider",)
    cuda, gpu = "13.0", 1

    def __init__(self, session: Session) -> None:
        self.usual = session.raw
        self.bound: list[tuple[str, str, int]] = []

    @property
    def raw(self) -> Recorder:
        return self

    def get_inputs(self) -> object:
        return self.usual.get_inputs()

    def get_outputs(self) -> object:
        return self.usual.get_outputs()

    def io_binding(self) -> Recorder:
        return self

    def bind_input(self, name: str, device: str, index: int, kind: object, shape: object, address: int) -> None:
        assert address
        self.bound.append((name.partition(".")[0], device, index))

    bind_output = bind_input

    def run_bound(self, _: object) -> None:
        self.bound.append(("run", "", 0))


def test_on_a_gpu_the_caches_are_bound_there_and_what_the_host_writes_is_bound_for_each_run(session: Session) -> None:
    recorder = Recorder(session)
    memory, _ = cuda_memory()
    decoder = Decoder(recorder, TINY.cache, memory=memory)  # type: ignore[arg-type]
    decoder.reserve(2, 20)
    host = [("input_ids", "cpu", 0), ("attention_mask", "cpu", 0)]
    caches = [("past_key_values", "cuda", 1), ("present", "cuda", 1)]
    for _ in range(2):
        recorder.bound.clear()
        decoder.extend(1, [1, 2], 0)
        assert set(recorder.bound) == {*host, *caches, ("logits", "cpu", 0), ("run", "", 0)}
        assert recorder.bound.count(caches[0]) == 2 * TINY.layers
    decoder.step(np.array([1, 2]), np.array([2, 2]))
    recorder.bound.clear()
    decoder.step(np.array([1, 2]), np.array([3, 3]))
    assert recorder.bound == [*host, ("run", "", 0)]
