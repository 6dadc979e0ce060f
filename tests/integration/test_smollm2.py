"""SmolLM2 from its GGUF file to streamed tokens: the packager, the agent and OpenAI's own client, all of them real.

`make demo-chat` packages it, which takes some minutes, and CI runs that before the tests.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from edgeonnx.bundle import Bundle, open_bundle
from tests.support.agent import Agent

BUNDLE = Path(__file__).resolve().parents[2] / ".work" / "demo-chat" / "smollm2-1.0.0"
QUESTIONS = ("Where is the Eiffel Tower?", "Name three colours.", "What is two plus two?", "Why is the sky blue?")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    if not BUNDLE.is_dir():
        pytest.skip("SmolLM2 is not packaged here: make demo-chat")
    return open_bundle(BUNDLE)


@pytest.fixture(scope="module")
def client(bundle: Bundle) -> Iterator[openai.OpenAI]:
    with Agent(bundle=bundle.root) as agent, openai.OpenAI(base_url=f"{agent.url}/v1", api_key="none") as client:
        assert "variant cpu-int4" in agent.ready_line
        yield client


def test_it_was_proven_equal_and_its_embeddings_are_stored_once(bundle: Bundle) -> None:
    evidence, generation = bundle.evidence(), bundle.manifest.generation
    assert (evidence.parity["greedy_tokens"], evidence.parity["near_ties"]) == (192, 0)
    assert generation is not None
    assert (generation.cache.layers, generation.context_length, generation.stop_ids) == (30, 8192, (2,))
    int4, int8, fp32 = (evidence.variants[name] for name in ("cpu-int4", "cpu-int8", "cpu-fp32"))
    assert int4.fidelity["top1"] >= 0.90
    assert int8.fidelity["top1"] >= 0.97
    assert evidence.texts["positions"] >= 2000  # type: ignore[operator]
    parameters = bundle.manifest.properties["parameters"]
    assert isinstance(parameters, int)
    # With a second table for the embeddings fp32 would be a fifth larger.
    assert fp32.tensor_bytes < 1.01 * 4 * parameters
    assert int4.tensor_bytes < int8.tensor_bytes < 0.3 * fp32.tensor_bytes
    assert "com.microsoft.GatherBlockQuantized" in int4.operators


def ask(client: openai.OpenAI, question: str) -> list[str]:
    """The pieces of a streamed, greedy answer."""
    stream = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": question}],
        max_tokens=24,
        temperature=0,
        stream=True,
    )
    return [chunk.choices[0].delta.content or "" for chunk in stream]


def test_answers_are_streamed_and_the_same_alone_and_together(client: openai.OpenAI) -> None:
    alone = [ask(client, question) for question in QUESTIONS]
    with concurrent.futures.ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(lambda question: ask(client, question), QUESTIONS))
    assert ["".join(answer) for answer in together] == ["".join(answer) for answer in alone]
    assert "Paris" in "".join(alone[0])
    assert all(len([piece for piece in answer if piece]) > 5 for answer in alone)
