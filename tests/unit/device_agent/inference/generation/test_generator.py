from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from edgeonnx_ext import SamplingParameters

from device_agent.inference.generation.generator import Generator
from device_agent.inference.generation.request import Event, GenerationRequest
from device_agent.inference.session import Session
from edgeonnx.errors import (
    DeadlineExceededError,
    InferenceError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
    ProviderLostError,
    RequestTooLargeError,
)
from tests.support import decoders
from tests.support.decoders import POISON_ID, STOP_IDS, TEXTS, VOCABULARY, TinyDecoder, encode, uncached_greedy
from tests.support.generation import (
    Client,
    DenseMemory,
    FaultySession,
    ScarceMemory,
    TornMemory,
    ask,
    make_generator,
    open_session,
    submit,
)

TINY = TinyDecoder()
LONG = "there, and in another thing again: the cat and the dog sat on the mat and the rat was in the hat. " * 2
LOST = ProviderLostError("the execution provider failed", where="TestExecutionProvider", found="it is gone")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decoder")


@pytest.fixture(scope="module")
def session(folder: Path) -> Session:
    return open_session(folder, TINY)


@pytest.fixture(scope="module")
def oracle(session: Session) -> ort.InferenceSession:
    return session.raw


@pytest.fixture
def generator(session: Session) -> Iterator[Generator]:
    made = make_generator(session, TINY)
    yield made
    assert made.close(5.0), "the thread ends"


@pytest.mark.parametrize("text", TEXTS)
def test_an_answer_is_that_of_the_whole_sequence_without_caches(
    generator: Generator, oracle: ort.InferenceSession, text: str
) -> None:
    client = ask(generator, text, 40).wait()
    assert client.tokens == uncached_greedy(oracle, TINY, encode(text), 40)
    assert client.finished.reason == "length"
    assert (client.finished.prompt_tokens, client.finished.completion_tokens) == (len(encode(text)), 40)
    assert client.text == _decoded(client.tokens)


def _decoded(ids: list[int]) -> str:
    from tests.support.generation import text

    return text().decoder.decode(ids)


def test_events_come_in_one_thread_as_tokens_come(generator: Generator) -> None:
    client = ask(generator, "the cat", 12).wait()
    assert len(client.events) > 8, "piece by piece"
    assert client.threads == {generator._thread.ident}


def test_a_prompt_longer_than_a_chunk_gives_the_same(session: Session, oracle: ort.InferenceSession) -> None:
    generator = make_generator(session, TINY, prompt_chunk=16, prefix_reuse=False)
    client = ask(generator, LONG, 8).wait()
    assert client.tokens == uncached_greedy(oracle, TINY, encode(LONG), 8)
    assert generator.state().prompts == -(-len(encode(LONG)) // 16)
    assert generator.close(5.0)


def test_float16_caches(tmp_path: Path) -> None:
    half = TinyDecoder(half=True)
    session = open_session(tmp_path, half)
    generator = make_generator(session, half)
    client = ask(generator, "the cat", 30).wait()
    assert client.tokens == uncached_greedy(session.raw, half, encode("the cat"), 30)
    assert generator.state().cache_bytes == 128 * half.cache.bytes_per_token(2), "a page of 4 KiB has 128 places"
    assert generator.close(5.0)


def test_many_at_once_answer_as_each_alone(session: Session, oracle: ort.InferenceSession) -> None:
    generator = make_generator(session, TINY, max_sequences=3, prompt_chunk=16)
    prompts = [*TEXTS, LONG, "a", "the cat and", "in the"]
    clients = [ask(generator, prompt, 10 + 3 * index) for index, prompt in enumerate(prompts)]
    for index, (prompt, client) in enumerate(zip(prompts, clients, strict=True)):
        assert client.wait().tokens == uncached_greedy(oracle, TINY, encode(prompt), 10 + 3 * index)
    state = generator.state()
    assert (state.active, state.waiting) == (0, 0)
    assert state.finished == {"length": len(prompts)}
    assert state.generated_tokens == sum(10 + 3 * index for index in range(len(prompts)))
    assert state.steps < state.generated_tokens / 1.5, "they ran together"
    assert generator.close(5.0)


def test_stop_ids_stop_texts_and_lengths_end_an_answer(session: Session, oracle: ort.InferenceSession) -> None:
    free = uncached_greedy(oracle, TINY, encode("the cat"), 20)
    generator = make_generator(session, TINY, stop_ids=(free[7],))
    stopped = ask(generator, "the cat", 20).wait()
    at = free.index(free[7])
    assert (stopped.tokens, stopped.finished.reason) == (free[:at], "stop")
    assert stopped.finished.completion_tokens == at + 1, "the stop token was generated too"
    going_on = ask(generator, "the cat", 20, ignore_stop_ids=True).wait()
    assert going_on.tokens == free
    text = going_on.text
    cut = ask(generator, "the cat", 20, ignore_stop_ids=True, stop=(text[6:9],)).wait()
    assert (cut.text, cut.finished.reason) == (text[: text.index(text[6:9])], "stop")
    assert generator.state().finished == {"stop": 2, "length": 1}
    assert generator.close(5.0)


def test_the_context_is_the_longest_sequence(generator: Generator) -> None:
    prompt = list(range(200))
    client = ask(generator, prompt, 1000).wait()
    assert (client.finished.reason, client.finished.completion_tokens) == ("length", 56)
    with pytest.raises(RequestTooLargeError, match="context"):
        ask(generator, list(range(256)), 1)
    assert ask(generator, list(range(255)), 5).wait().finished.completion_tokens == 1


@pytest.mark.parametrize(
    ("prompt", "fields", "where"),
    [
        ([], {}, "prompt"),
        ([len(VOCABULARY)], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([1], {"max_tokens": 0}, "max_tokens"),
        ([1], {"max_tokens": -5}, "max_tokens"),
    ],
)
def test_what_cannot_be_answered_is_refused_at_once(
    generator: Generator, prompt: list[int], fields: dict[str, int], where: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ask(generator, prompt, **fields)
    assert caught.value.where == where
    assert generator.state().requests == 0


def test_a_sequence_that_fails_fails_alone(generator: Generator, oracle: ort.InferenceSession) -> None:
    others = [Client(), Client()]
    poisoned = Client()
    prompt = encode(LONG)
    begin = {5: lambda: submit(generator, poisoned, [*prompt, POISON_ID], 9)}
    others[0] = Client(begin)
    for client in others:
        submit(generator, client, "the dog", 30)
    assert isinstance(poisoned.wait().error, InferenceError)
    for client in others:
        assert client.wait().tokens == uncached_greedy(oracle, TINY, encode("the dog"), 30)
    after = ask(generator, [*prompt, *encode("the cat")], 9).wait()
    assert after.finished.cached_tokens == 0, "what failed is no beginning for others"
    assert generator.state().finished == {"failed": 1, "length": 3}


class Form:
    """Lets `count` tokens come, then the answer is whole; or fails at one of them."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count, self.error, self.seen = count, error, 0

    @property
    def finished(self) -> bool:
        return self.seen == self.count

    def mask(self, logits: np.ndarray) -> None:
        logits[VOCABULARY["the"]] = 1e9

    def accept(self, token: int) -> None:
        self.seen += 1
        if self.seen == self.count and self.error is not None:
            raise self.error


def test_a_constraint_shapes_and_ends_an_answer(generator: Generator) -> None:
    client = ask(generator, "a", 20, constraint=Form(3)).wait()
    assert (client.text, client.finished.reason) == ("thethethe", "stop")


def test_a_constraint_that_fails_ends_its_own_answer(generator: Generator) -> None:
    other = ask(generator, "the dog", 20)
    failed = ask(generator, "a", 20, constraint=Form(3, RuntimeError("no way on"))).wait()
    assert "no way on" in str(failed.error)
    assert other.wait().finished.completion_tokens == 20


def test_a_client_that_leaves_frees_its_place_at_the_next_token(session: Session) -> None:
    generator = make_generator(session, TINY, max_sequences=1)
    leaving = Client()
    leaving.at(3, lambda: handle.cancel())
    waiting = Client()
    handle = submit(generator, leaving, "the cat", 200)
    submit(generator, waiting, "the dog", 5)
    assert leaving.wait().finished.reason == "cancelled"
    assert leaving.finished.completion_tokens == 3
    assert waiting.wait().finished.completion_tokens == 5
    handle.cancel()
    assert generator.state().finished == {"cancelled": 1, "length": 1}
    assert generator.close(5.0)


def test_who_leaves_while_waiting_never_begins(session: Session) -> None:
    generator = make_generator(session, TINY, max_sequences=1)
    waiting = Client()
    first = Client({2: lambda: handle.cancel()})
    submit(generator, first, "the cat", 30)
    handle = submit(generator, waiting, "the dog", 30)
    assert waiting.wait().finished.reason == "cancelled"
    assert waiting.finished.completion_tokens == 0
    assert first.wait().finished.completion_tokens == 30
    assert generator.close(5.0)


def test_time_that_is_over_ends_a_sequence_with_an_error(session: Session) -> None:
    generator = make_generator(session, TINY, max_sequences=1)
    slow = Client(dict.fromkeys(range(1, 200), lambda: time.sleep(0.01)))
    submit(generator, slow, "the cat", 200, deadline=0.1)
    waiting = ask(generator, "the dog", 30, deadline=0.05)
    for client in (slow, waiting):
        assert isinstance(client.wait().error, DeadlineExceededError)
    assert 0 < len(slow.tokens) < 30
    assert not waiting.tokens
    assert generator.close(5.0)


def test_a_full_queue_refuses(session: Session) -> None:
    generator = make_generator(session, TINY, max_sequences=1, max_waiting=2)
    go = threading.Event()
    first = Client({1: go.wait})
    submit(generator, first, "the cat", 5)
    while generator.state().active == 0:
        time.sleep(0.001)
    others = [ask(generator, "the dog", 5) for _ in range(2)]
    with pytest.raises(OverloadedError) as caught:
        ask(generator, "the dog", 5)
    assert caught.value.retry_after > 0
    assert generator.state().refused == 1
    go.set()
    for client in (first, *others):
        assert client.wait().finished.completion_tokens == 5
    assert generator.close(5.0)


def test_who_could_not_be_answered_in_time_is_refused_at_once(session: Session) -> None:
    generator = make_generator(session, TINY, max_sequences=1)
    go = threading.Event()
    first = Client({1: go.wait})
    submit(generator, first, "the cat", 5)
    while generator.state().active == 0:
        time.sleep(0.001)
    waiting = ask(generator, list(range(100)), 5)
    generator._pace.prompt_token = 0.1
    with pytest.raises(OverloadedError, match="first token") as caught:
        ask(generator, list(range(20)), 5, deadline=11.0)
    assert caught.value.retry_after == pytest.approx(1.0, abs=0.2), "100 tokens wait, and its own are 20"
    late = ask(generator, list(range(20)), 5, deadline=25.0)
    go.set()
    for client in (first, waiting, late):
        assert client.wait().finished.completion_tokens == 5
    assert generator.close(5.0)


def test_where_addresses_are_limited_the_caches_grow_as_needed(session: Session, oracle: ort.InferenceSession) -> None:
    generator = make_generator(session, TINY, memory=ScarceMemory(), context=1 << 16)
    assert generator.state().cache_bytes == 0
    client = ask(generator, "the cat", 20).wait()
    assert client.tokens == uncached_greedy(oracle, TINY, encode("the cat"), 20)
    assert generator.state().places == 256
    assert generator.close(5.0)


def test_they_begin_in_the_order_in_which_they_came(session: Session) -> None:
    generator = make_generator(session, TINY, max_sequences=2)
    order: list[int] = []
    clients = [Client({1: lambda index=index: order.append(index)}) for index in range(12)]  # type: ignore[misc]
    for index, client in enumerate(clients):
        submit(generator, client, LONG if index % 3 else "a", 5 + index % 4)
    for client in clients:
        client.wait()
    assert order == list(range(12))
    assert generator.close(5.0)


def test_a_long_prompt_does_not_stop_those_that_run(session: Session) -> None:
    generator = make_generator(session, TINY, prompt_chunk=16, prefix_reuse=False)
    between: list[int] = []
    late = Client({1: lambda: between.append(len(first.tokens))})
    first = Client({4: lambda: submit(generator, late, LONG, 3)})
    submit(generator, first, "the cat", 60)
    first.wait()
    late.wait()
    pieces = -(-len(encode(LONG)) // 16)
    assert pieces >= 6
    assert between[0] == 4 + pieces - 1, "one token between two pieces"
    assert generator.close(5.0)


def test_a_prompt_that_begins_alike_is_not_read_again_and_answers_the_same(
    session: Session, oracle: ort.InferenceSession
) -> None:
    generator = make_generator(session, TINY)
    prompts = [LONG + end for end in ("who?", "what is it?", "", "who? the", "who?")]
    found = [ask(generator, prompt, 20, top_logprobs=3).wait() for prompt in prompts]
    alone = make_generator(session, TINY, prefix_reuse=False)
    expected = [ask(alone, prompt, 20, top_logprobs=3).wait() for prompt in prompts]
    assert [client.told for client in found] == [client.told for client in expected], "bit by bit"
    size = len(encode(LONG))
    cached = [client.finished.cached_tokens for client in found]
    assert cached[0] == 0
    assert all(size - 2 <= count for count in cached[1:])
    assert {client.finished.cached_tokens for client in expected} == {0}
    state = generator.state()
    assert (state.cached_tokens, state.idle) == (sum(cached), len([row for row in range(8) if row < state.idle]))
    assert alone.state().cache_bytes == 0, "nothing is kept"
    assert generator.close(5.0)
    assert alone.close(5.0)


def test_a_conversation_goes_on_from_its_own_answer(generator: Generator) -> None:
    prompt = encode(LONG)
    first = ask(generator, prompt, 20).wait()
    second = ask(generator, [*prompt, *first.tokens, *encode(" and the")], 5).wait()
    assert second.finished.cached_tokens == len(prompt) + 19, "the last token was never put in"


def test_a_prompt_takes_from_a_sequence_that_still_runs(generator: Generator, oracle: ort.InferenceSession) -> None:
    late = Client()
    first = Client({6: lambda: submit(generator, late, LONG + "who?", 10)})
    submit(generator, first, LONG + "what?", 30)
    assert late.wait().finished.cached_tokens >= len(encode(LONG)) - 2
    assert late.tokens == uncached_greedy(oracle, TINY, encode(LONG + "who?"), 10)
    assert first.wait().tokens == uncached_greedy(oracle, TINY, encode(LONG + "what?"), 30)


@pytest.mark.parametrize("dense", [False, True])
def test_memory_is_never_above_its_limit_and_all_are_answered(session: Session, dense: bool) -> None:
    limit = 1024 if dense else 640
    generator = make_generator(session, TINY, memory=DenseMemory() if dense else None, cache_tokens=limit)
    alone = make_generator(session, TINY, max_sequences=1, prefix_reuse=False)
    most: list[int] = []
    watch = dict.fromkeys(range(0, 250, 3), lambda: most.append(generator.state().cache_bytes))
    prompts = [str(index) + LONG[:40] for index in range(4)]
    clients = [Client(watch) for _ in prompts]
    order: list[int] = []
    for index, (prompt, client) in enumerate(zip(prompts, clients, strict=True)):
        client.at(220, lambda index=index: order.append(index))  # type: ignore[misc]
        submit(generator, client, prompt, 220)
    for prompt, client in zip(prompts, clients, strict=True):
        assert client.wait().tokens == ask(alone, prompt, 220).wait().tokens
    assert 0 < max(most) <= generator.limits.cache_bytes
    state = generator.state()
    assert state.finished == {"length": 4}
    assert dense or state.preempted > 0, "the youngest had to wait again"
    assert order == [0, 1, 2, 3], "the oldest never had to"
    assert generator.close(5.0)
    assert alone.close(5.0)


def test_who_gave_its_memory_up_goes_on_before_others_begin(session: Session) -> None:
    generator = make_generator(session, TINY, cache_tokens=448)
    first, second, third = Client(), Client(), Client()
    given: list[int] = []
    first.at(140, lambda: given.append(generator.state().preempted))
    third.at(1, lambda: given.append(len(second.tokens)))
    for client, text in ((first, "the cat"), (second, "the dog"), (third, "a mat")):
        submit(generator, client, text, 200)
    assert third.wait().finished.completion_tokens == 200
    assert given[0] == 1, "the second one gave its memory to the first"
    assert given[1] > 129, "and went on before the third began: its first promise was for 131 tokens, 3 of its prompt"
    assert first.finished.completion_tokens == second.wait().finished.completion_tokens == 200
    assert generator.close(5.0)


def test_a_prompt_that_fits_into_no_memory_is_refused(session: Session) -> None:
    generator = make_generator(session, TINY, cache_tokens=64)
    with pytest.raises(RequestTooLargeError, match="memory"):
        ask(generator, LONG, 5)
    client = ask(generator, list(range(30)), 100).wait()
    assert client.finished.completion_tokens == 34, "what has no room is cut off"
    assert generator.close(5.0)


def test_drawn_answers_depend_on_their_seed_alone(session: Session) -> None:
    generator = make_generator(session, TINY)
    warm = {"sampling": SamplingParameters(temperature=1.5, top_p=0.95), "seed": 11}
    alone = ask(generator, "the cat", 30, **warm).wait()
    noise = [ask(generator, text, 40, sampling=SamplingParameters(), stop=("e",)) for text in TEXTS]
    beside = ask(generator, "the cat", 30, **warm).wait()
    assert beside.tokens == alone.tokens
    assert ask(generator, "the cat", 30, **{**warm, "seed": 12}).wait().tokens != alone.tokens
    for client in noise:
        client.wait()
    assert generator.close(5.0)


def test_penalties_and_bias_reach_the_answer(generator: Generator) -> None:
    the = VOCABULARY["the"]
    assert set(ask(generator, "a", 5, logit_bias={the: 100.0}).wait().tokens) == {the}
    penalized = ask(generator, "a", 8, logit_bias={the: 100.0}, frequency_penalty=60.0).wait().tokens
    assert penalized[0] == the
    assert 1 < penalized.count(the) < 5


def faulty(folder: Path, faults: dict[int, Exception]) -> FaultySession:
    found = open_session(folder, TINY, FaultySession)
    assert isinstance(found, FaultySession)
    found.faults = faults  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("at", [0, 3, 12])
def test_a_lost_provider_is_replaced_in_the_middle_of_answers(
    folder: Path, session: Session, oracle: ort.InferenceSession, at: int
) -> None:
    lost: list[ProviderLostError] = []

    def replace(error: ProviderLostError) -> Session:
        lost.append(error)
        return session

    generator = make_generator(faulty(folder, {at: LOST}), TINY, replace=replace, prompt_chunk=16)
    clients = [ask(generator, text, 30) for text in TEXTS]
    for text, client in zip(TEXTS, clients, strict=True):
        assert client.wait().tokens == uncached_greedy(oracle, TINY, encode(text), 30)
    assert lost == [LOST]
    assert generator.state().recovered == 1
    assert generator.close(5.0)


def test_without_another_provider_those_that_run_fail_and_the_thread_lives(
    folder: Path, oracle: ort.InferenceSession
) -> None:
    generator = make_generator(faulty(folder, {6: LOST}), TINY)
    assert ask(generator, "the cat", 30).wait().error is LOST
    assert ask(generator, "the cat", 30).wait().tokens == uncached_greedy(oracle, TINY, encode("the cat"), 30)
    assert generator.close(5.0)


def test_a_step_that_fails_is_tried_for_each_sequence_alone(folder: Path, oracle: ort.InferenceSession) -> None:
    broken = InferenceError("ONNX Runtime failed to run the model", found="a node")
    # Two prompts, and a step after the first; the next step is of both: it fails, and then the first one alone.
    generator = make_generator(faulty(folder, {3: broken, 4: broken}), TINY)
    both = threading.Event()
    clients = [Client({1: both.wait}), Client()]
    submit(generator, clients[0], "the cat", 30)
    submit(generator, clients[1], "the dog", 30)
    both.set()
    assert clients[0].wait().error is broken
    assert clients[1].wait().tokens == uncached_greedy(oracle, TINY, encode("the dog"), 30)
    assert generator.close(5.0)


def test_a_prompt_that_cannot_be_read_fails_alone(folder: Path, oracle: ort.InferenceSession) -> None:
    broken = InferenceError("ONNX Runtime failed to run the model", found="a node")
    generator = make_generator(faulty(folder, {4: broken}), TINY)  # a prompt, three steps, and the second prompt
    second = Client()
    first = Client({4: lambda: submit(generator, second, "the dog", 9)})
    submit(generator, first, "the cat", 20)
    assert second.wait().error is broken
    assert first.wait().tokens == uncached_greedy(oracle, TINY, encode("the cat"), 20)
    assert generator.close(5.0)


def test_what_nobody_thought_of_fails_those_that_run_and_no_other(
    folder: Path, oracle: ort.InferenceSession, caplog: pytest.LogCaptureFixture
) -> None:
    generator = make_generator(faulty(folder, {4: MemoryError("for caches")}), TINY)
    assert "for caches" in str(ask(generator, "the cat", 30).wait().error)
    assert ask(generator, "the cat", 30).wait().tokens == uncached_greedy(oracle, TINY, encode("the cat"), 30)
    assert "generating text failed" in caplog.text
    assert generator.close(5.0)


def test_what_sinks_give_back_is_called_once_when_all_were_told(generator: Generator) -> None:
    told: list[str] = []
    clients = [Client() for _ in range(6)]

    def wake() -> None:
        told.append("wake")

    for client in clients:

        def sink(events: Sequence[Event], client: Client = client) -> Callable[[], object]:
            told.append("told")
            client(events)
            return wake

        generator.submit(GenerationRequest(prompt=tuple(encode("the cat")), max_tokens=40), sink)
    for client in clients:
        client.wait()
    state = generator.state()
    assert told.count("told") > 5 * 30
    assert told.count("wake") <= state.steps + state.prompts + 6, "once for each run, and for who ends"


def test_a_sequence_that_failed_while_it_began_does_not_begin_again(
    session: Session, oracle: ort.InferenceSession, caplog: pytest.LogCaptureFixture
) -> None:
    generator = make_generator(session, TINY, memory=TornMemory())
    late = Client()
    first = Client({3: lambda: submit(generator, late, LONG + "who?", 10)})
    submit(generator, first, LONG, 20)
    assert "a copy failed" in str(first.wait().error)
    assert "a copy failed" in str(late.wait().error)
    assert ask(generator, "the dog", 9).wait().tokens == uncached_greedy(oracle, TINY, encode("the dog"), 9)
    state = generator.state()
    assert (state.waiting, state.generated_tokens) == (0, 3 + 9)
    assert "generating text failed" in caplog.text
    assert generator.close(5.0)


def test_a_sink_that_raises_ends_its_own_request(generator: Generator, caplog: pytest.LogCaptureFixture) -> None:
    def sink(_: object) -> None:
        raise RuntimeError("a client's fault")

    generator.submit(GenerationRequest(prompt=(1,), max_tokens=200), sink)
    assert ask(generator, "the dog", 20).wait().finished.completion_tokens == 20
    assert "sink failed" in caplog.text
    assert generator.state().finished == {"cancelled": 1, "length": 1}


def test_closing_lets_those_that_were_taken_finish(session: Session) -> None:
    generator = make_generator(session, TINY, max_sequences=1)
    clients = [ask(generator, "the cat", 20), ask(generator, "the dog", 20)]
    assert generator.close(10.0)
    assert [client.finished.completion_tokens for client in clients] == [20, 20]
    with pytest.raises(NotReadyError):
        ask(generator, "the cat")
    assert generator.close(1.0), "it may be closed again"


def test_closing_ends_what_is_not_done_in_time(session: Session) -> None:
    generator = make_generator(session, TINY, max_sequences=1)
    slow = Client(dict.fromkeys(range(1, 250), lambda: time.sleep(0.02)))
    submit(generator, slow, "the cat", 240)
    waiting = ask(generator, "the dog", 20)
    assert generator.close(0.1), "the thread ends at its next token"
    for client in (slow, waiting):
        assert isinstance(client.error, NotReadyError)
    told = len(slow.events)
    time.sleep(0.05)
    assert len(slow.events) == told, "nothing follows the last event"
    assert "tiny-generator" not in {thread.name for thread in threading.enumerate() if thread is generator._thread}


def test_the_golden_set_is_replayed_as_sequences_are_served(generator: Generator) -> None:
    busy = ask(generator, "the cat", 60)
    golden = decoders.golden_set(TINY)
    assert golden.replay(generator.replay).scaled_diff < 1e-5
    assert decoders.golden_set(TINY, error=0.5).replay(generator.replay).max_abs_diff > 0.4
    assert busy.wait().finished.completion_tokens == 60


def test_the_models_own_stop_tokens_end_answers(session: Session, oracle: ort.InferenceSession) -> None:
    generator = make_generator(session, TINY, stop_ids=STOP_IDS)
    client = ask(generator, TEXTS[0], 60).wait()
    expected = uncached_greedy(oracle, TINY, encode(TEXTS[0]), 60, stops=STOP_IDS)
    assert expected[-1] in STOP_IDS
    assert client.tokens == expected[:-1]
    assert client.finished.reason == "stop"
    assert generator.close(5.0)
