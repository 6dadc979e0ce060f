"""The rules of generation for any input: stop texts, rows and memory, and answers that do not depend on each other."""

from __future__ import annotations

import functools
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from edgeonnx_ext import SamplingParameters
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from device_agent.inference.generation.planning import MIN_REUSE, Copy, Move, Table, chunk_of
from device_agent.inference.generation.stops import StopFilter
from device_agent.inference.session import Session
from tests.support.decoders import TinyDecoder, encode
from tests.support.generation import Client, DenseMemory, make_generator, open_session, submit

TINY = TinyDecoder()

# Stop texts


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The oracle: the text before the stop text that is whole first, of several the longest."""
    for end in range(1, len(text) + 1):
        found = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(found)], True
    return text, False


def may_begin(text: str, stops: list[str]) -> int:
    """How many characters at the end of a text begin a stop text, at most."""
    return max((size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size])), default=0)


few = st.text("ab\n", max_size=12)
stop_lists = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=5)


@given(pieces=st.lists(few, max_size=8), stops=stop_lists)
def test_stop_texts_cut_where_a_search_of_the_whole_text_does(pieces: list[str], stops: list[str]) -> None:
    found = StopFilter(stops)
    out = ""
    for index, piece in enumerate(pieces):
        out += found.push(piece)
        expected, stopped = cut("".join(pieces[: index + 1]), stops)
        assert found.stopped == stopped
        held = 0 if stopped else may_begin(expected, stops)
        assert out == expected[: len(expected) - held], "as much as is certain, and no more"
    out += found.finish()
    assert out == cut("".join(pieces), stops)[0]


# Rows


@dataclass(eq=False)
class Sequence:
    """A sequence of the simulation: its tokens, and how many are known."""

    tokens: np.ndarray
    length: int


@dataclass
class Caches:
    """What stands in each row, by what was moved and written there."""

    rows: list[list[int]]

    def apply(self, moves: list[Move], table: Table[Sequence]) -> None:
        for move in moves:
            if isinstance(move, Copy):
                assert move.source != move.target
                assert len(self.rows[move.source]) >= move.length, "copied from what is there"
                self.rows[move.target] = self.rows[move.source][: move.length]
                total = sum(table.rounded(len(held)) for held in self.rows)
                assert not table.lazy or total <= table.budget + table.rounded(move.length), "one row is there twice"
            else:
                self.rows[move.row] = self.rows[move.row][: move.length]


@dataclass
class Simulation:
    """A table whose moves are carried out on lists, with the rules checked after each of them."""

    table: Table[Sequence]
    caches: Caches
    step: int
    active: list[Sequence] = field(default_factory=list)

    def begin(self, prompt: list[int], limit: int) -> None:
        tokens = np.array([*prompt, *[0] * limit], dtype=np.int64)
        sequence = Sequence(tokens, len(prompt))
        promise = len(prompt) + 4
        if not self.table.can_begin(promise):
            return
        reused, moves = self.table.begin(sequence, tokens, len(prompt), promise)
        self.caches.apply(moves, self.table)
        assert reused == 0 or MIN_REUSE <= reused <= max(0, len(prompt) - 2)
        self.active.append(sequence)
        self.check()

    def read(self) -> None:
        row = self.table.filling
        if row is None or row.owner is None:
            return
        size = chunk_of(row.owner.length - row.length, 16)
        assert size > 0
        self.write(self.table.running, row.owner.tokens[row.length : row.length + size].tolist())
        if row.length == row.owner.length:
            self.table.join()
        self.check()

    def write(self, index: int, tokens: list[int]) -> None:
        row = self.table[index]
        assert len(self.caches.rows[index]) == row.length, "nothing stands behind what is known"
        self.caches.rows[index] += tokens
        row.length += len(tokens)
        assert row.length <= row.promise

    def run(self, token: int) -> None:
        for index in range(self.table.running):
            row = self.table[index]
            if row.length == row.promise:
                moves = self.table.grow(index, row.promise + 4)
                if moves is None:
                    continue
                self.caches.apply(moves, self.table)
            sequence = row.owner
            assert sequence is not None
            if sequence.length + 1 < len(sequence.tokens):
                sequence.tokens[sequence.length] = token + index
                sequence.length += 1
                self.write(index, [token + index])
            self.check()

    def leave(self, choice: int, *, keep: bool) -> None:
        if self.table.sequences:
            index = choice % self.table.sequences
            owner = self.table[index].owner
            assert owner is not None
            self.active.remove(owner)
            self.caches.apply(self.table.leave(index, keep=keep), self.table)
            self.check()

    def check(self) -> None:
        table, rows = self.table, list(self.table)
        owners = [row.owner for row in rows[: table.sequences] if row is not None]
        assert len(owners) == table.sequences, "active rows stand together"
        assert set(map(id, owners)) == set(map(id, self.active)), "nobody is lost, and nobody is there twice"
        assert all(row is None or row.owner is None for row in rows[table.sequences :])
        for index, row in enumerate(rows):
            held = self.caches.rows[index]
            assert held == ([] if row is None else row.tokens[: row.length].tolist()), f"row {index}"
        assert table.tokens <= table.budget
        if table.lazy:
            assert sum(table.rounded(len(held)) for held in self.caches.rows) <= table.budget


actions = st.one_of(
    st.tuples(st.just("begin"), st.integers(0, 3), st.integers(1, 40), st.integers(0, 3)),
    st.tuples(st.just("read")),
    st.tuples(st.just("run"), st.integers(0, 3)),
    st.tuples(st.just("leave"), st.integers(0, 9), st.booleans()),
)


@settings(max_examples=150)
@given(
    script=st.lists(actions, max_size=60),
    budget=st.integers(60, 300),
    lazy=st.booleans(),
    spare=st.integers(0, 3),
    step=st.sampled_from([1, 16]),
)
def test_rows_hold_what_their_sequences_say_within_the_memory(
    script: list[tuple[object, ...]], budget: int, lazy: bool, spare: int, step: int
) -> None:
    table: Table[Sequence] = Table(
        active=3, rows=3 + spare, budget=budget, lazy=lazy, rounded=lambda tokens: -(-tokens // step) * step
    )
    found = Simulation(table, Caches([[] for _ in range(3 + spare)]), step)
    for name, *arguments in script:
        if name == "begin":
            kind, size, tail = (int(str(value)) for value in arguments)
            found.begin([*(100 * kind + place for place in range(size)), *range(tail)], 40)
        elif name == "read":
            found.read()
        elif name == "run":
            found.run(7 + int(str(arguments[0])))
        else:
            found.leave(int(str(arguments[0])), keep=bool(arguments[1]))


# Answers


@functools.cache
def session() -> Session:
    return open_session(Path(tempfile.mkdtemp()), TINY)


PREFIX = "the cat and the dog sat on the mat, both"
PROMPTS = [PREFIX, PREFIX + " in the hat", PREFIX + ".", "there", "x", "Größe 日本", PREFIX * 3]


@dataclass(frozen=True)
class Asked:
    """A request of a schedule: who asks, when, and when it leaves.

    Attributes:
        prompt: Which prompt.
        count: Tokens that it asks for.
        seed: Of its draws; None: greedy.
        after: It comes when the one before has so many tokens; 0: at once.
        leaves: It leaves at so many tokens; 0: it stays.
    """

    prompt: int
    count: int
    seed: int | None
    after: int
    leaves: int

    @property
    def fields(self) -> dict[str, object]:
        drawn: dict[str, object] = {"sampling": SamplingParameters(temperature=1.2), "seed": self.seed}
        return {} if self.seed is None else drawn


requests = st.builds(
    Asked,
    prompt=st.integers(0, len(PROMPTS) - 1),
    count=st.integers(1, 24),
    seed=st.none() | st.integers(0, 2),
    after=st.integers(0, 6),
    leaves=st.sampled_from([0, 0, 0, 1, 5]),
)


@functools.cache
def alone(prompt: int, seed: int | None) -> list[int]:
    """What a prompt gives by itself, on a generator that nobody else uses."""
    generator = make_generator(session(), TINY, max_sequences=1, prefix_reuse=False)
    client = Client()
    submit(generator, client, PROMPTS[prompt], 24, **Asked(prompt, 24, seed, 0, 0).fields)
    tokens = client.wait().tokens
    assert generator.close(5.0)
    return tokens


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    schedule=st.lists(requests, min_size=1, max_size=8),
    places=st.integers(1, 4),
    tokens=st.sampled_from([512, 1 << 16]),
    dense=st.booleans(),
)
def test_an_answer_is_the_same_alone_whatever_joins_and_leaves(
    schedule: list[Asked], places: int, tokens: int, dense: bool
) -> None:
    generator = make_generator(
        session(), TINY, max_sequences=places, prompt_chunk=16, cache_tokens=tokens, max_waiting=100,
        memory=DenseMemory() if dense else None,
    )  # fmt: skip
    clients = [Client() for _ in schedule]

    def begin(index: int) -> None:
        asked = schedule[index]
        client = clients[index]
        taken = threading.Event()
        following = index + 1
        if following < len(schedule):
            at = min(schedule[following].after, asked.count, asked.leaves or asked.count)
            client.at(at, lambda: begin(following))
        if asked.leaves:
            client.at(asked.leaves, taken.wait)
            client.at(asked.leaves, lambda: handle.cancel())
        handle = submit(generator, client, PROMPTS[asked.prompt], asked.count, **asked.fields)
        taken.set()
        if following < len(schedule) and at == 0:
            begin(following)

    begin(0)
    for asked, client in zip(schedule, clients, strict=True):
        given_ = client.wait().tokens
        expected = alone(asked.prompt, asked.seed)[: asked.count]
        if client.finished.reason == "cancelled":
            assert given_ == expected[: len(given_)]
            assert asked.leaves <= len(given_) <= asked.leaves + 3, "a character of several tokens comes whole"
        else:
            assert given_ == expected
            assert client.finished.reason == "length"
    state = generator.state()
    assert (state.active, state.waiting) == (0, 0)
    assert state.cache_bytes <= generator.limits.cache_bytes
    assert generator.close(5.0)


def test_the_prompts_are_longer_than_a_chunk_and_share_their_beginning() -> None:
    assert len(encode(PREFIX)) > 16 + MIN_REUSE
