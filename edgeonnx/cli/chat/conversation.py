"""What was said so far, the requests that follow from it, and how fast the answers came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeonnx.cli.chat.events import Usage

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
COMPLETION_TOKENS = 256
"""Length of a continuation where nobody says one: a model that knows no turns seldom ends by itself."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the answers are made; None leaves it to the agent.

    Attributes:
        temperature: 0 takes the most probable token each time.
        seed: The same answers for the same questions.
        max_tokens: Longest answer.
    """

    temperature: float | None = None
    seed: int | None = None
    max_tokens: int | None = None

    def fields(self) -> dict[str, object]:
        """The members of a request."""
        found = {"temperature": self.temperature, "seed": self.seed, "max_tokens": self.max_tokens}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(kw_only=True)
class Conversation:
    """The turns of a conversation, or single texts to continue.

    Attributes:
        model: Name of the model.
        sampling: How the answers are made.
        chats: Whether the model converses; otherwise it continues each text by itself, and nothing is remembered.
        system: Instruction before the first turn.
        turns: Questions and answers in turn, each with `role` and `content`.
    """

    model: str
    sampling: Sampling
    chats: bool = True
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Where requests go."""
        return CHAT_PATH if self.chats else COMPLETIONS_PATH

    def request(self, question: str) -> dict[str, object]:
        """The body that asks a question; nothing is remembered yet."""
        common = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        if not self.chats:
            return {**common, "prompt": question, "max_tokens": COMPLETION_TOKENS, **self.sampling.fields()}
        before = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages = [*before, *self.turns, {"role": "user", "content": question}]
        return {**common, "messages": messages, **self.sampling.fields()}

    def remember(self, question: str, answer: str) -> None:
        """Add a turn. One without any answer is left out: models expect that the roles take turns."""
        if self.chats and answer:
            self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        """Forget all turns; the instruction stays."""
        self.turns.clear()


@dataclass(kw_only=True)
class Answer:
    """An answer and when its parts came.

    Attributes:
        text: As far as it came.
        finish: Why it ended, as OpenAI's API says it; None: it was cut off.
        usage: Its tokens; None: the agent did not come to say.
        first_seconds: From the request to the first text; None: none came.
        seconds: From the request to the end.
    """

    text: str = ""
    finish: str | None = None
    usage: Usage | None = None
    first_seconds: float | None = None
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Speed of the tokens after the first one; None where there are too few, or nobody counted."""
        if self.usage is None or self.first_seconds is None or self.usage.completion_tokens < 2:
            return None
        took = self.seconds - self.first_seconds
        return (self.usage.completion_tokens - 1) / took if took > 0 else None

    def to_dict(self, model: str) -> dict[str, object]:
        """The answer as one document for programs."""
        usage = self.usage
        return {
            "model": model,
            "answer": self.text,
            "finish_reason": self.finish,
            "prompt_tokens": usage and usage.prompt_tokens,
            "cached_tokens": usage and usage.cached_tokens,
            "completion_tokens": usage and usage.completion_tokens,
            "first_token_seconds": self.first_seconds,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
        }


def describe(answer: Answer) -> str:
    """One line about the speed of an answer."""
    parts = []
    if (usage := answer.usage) is not None:
        cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
        parts.append(f"{usage.prompt_tokens} tokens in{cached}, {usage.completion_tokens} out")
    if answer.first_seconds is not None:
        parts.append(f"first token after {answer.first_seconds * 1e3:.0f} ms")
    if (speed := answer.tokens_per_second) is not None:
        parts.append(f"{speed:.1f} tokens/s")
    if answer.finish == "length":
        parts.append("cut at the limit")
    elif answer.finish is None:
        parts.append("stopped")
    return ", ".join(parts)
