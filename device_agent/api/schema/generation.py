"""The shapes of `/v1/completions` and `/v1/chat/completions` for the OpenAPI document.

As in `device_agent.api.schema.models`, nothing validates with them at run time.
"""

# No `from __future__ import annotations`: pydantic needs the local names in the annotations.
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from device_agent.api.generation.conversation import MAX_TOP_LOGPROBS
from device_agent.api.generation.parameters import (
    MAX_BIASES,
    MAX_CHOICES,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    MAX_TOKENS,
)
from device_agent.api.generation.prompts import MAX_LOGPROBS
from device_agent.config import Limits

TOKEN_IDS = 2**31


class Strict(BaseModel):
    """What has these members and no others."""

    model_config = ConfigDict(extra="forbid")


class PromptTokensDetails(Strict):
    """Tokens of prompts that the caches had."""

    cached_tokens: int


class GenerationUsage(Strict):
    """Tokens that were read and generated; each prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(Strict):
    """A token, and how probable it was."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of an answer, with the most probable ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Strict):
    """Log probabilities of a message."""

    content: list[TokenLogprob]
    refusal: None


class AssistantMessage(Strict):
    """The answer to a conversation."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Strict):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(Strict):
    """The answers to a conversation; a stream has them as `chat.completion.chunk` events."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: GenerationUsage


class TextLogprobs(Strict):
    """Log probabilities of a continuation, by the place of the token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Strict):
    """One continuation."""

    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(Strict):
    """The continuations of the prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: GenerationUsage


class StreamOptions(Strict):
    """What a stream has beside its pieces."""

    include_usage: Annotated[bool | None, Field(description="end with a chunk that has the usage")] = False
    include_obfuscation: Annotated[bool | None, Field(description="ignored")] = None


class PlainFormat(Strict):
    """Any text, or any JSON object."""

    type: Literal["text", "json_object"]


class JsonSchema(Strict):
    """A JSON schema with a name."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class SchemaFormat(Strict):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


Penalty = Annotated[float, Field(ge=-2, le=2)] | None
Share = Annotated[float, Field(ge=0, le=1)] | None
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None


class GenerationRequest(Strict):
    """What both routes take; null is as good as left out, and the model's own settings are the defaults."""

    model: str
    max_tokens: Tokens = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Share = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS, description="0 or -1 keeps all")] | None = None
    min_p: Share = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_BIASES, description="by token id")] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    ignore_eos: Annotated[bool | None, Field(description="the model's own stop tokens end nothing")] = None
    stream: bool | None = None
    stream_options: Annotated[StreamOptions | None, Field(description="for streams alone")] = None
    response_format: PlainFormat | SchemaFormat | None = None
    user: Annotated[Any, Field(description="ignored, as the others of this kind")] = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    prediction: Any = None
    parallel_tool_calls: Any = None


def chat_request(limits: Limits) -> type[BaseModel]:
    """The request of `/v1/chat/completions` under the limits of an agent."""
    a_text = Annotated[str, Field(max_length=limits.max_text_characters)]

    class TextPart(Strict):
        type: Literal["text"]
        text: a_text

    class Message(Strict):
        role: Literal["system", "developer", "user", "assistant", "tool"]
        content: a_text | list[TextPart]
        name: a_text | None = None
        tool_call_id: a_text | None = None
        reasoning_content: a_text | None = None
        refusal: Literal[""] | None = None
        annotations: Annotated[list[Any], Field(max_length=0)] | None = None
        audio: None = None
        function_call: None = None
        tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None
        reasoning: Literal[""] | None = None

    class ChatRequest(GenerationRequest):
        messages: Annotated[list[Message], Field(min_length=1, max_length=limits.max_texts)]
        max_completion_tokens: Tokens = None
        logprobs: bool | None = None
        top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
        tools: Annotated[list[Any], Field(max_length=0, description="the agent calls no tools")] | None = None
        tool_choice: Literal["none", "auto"] | None = None
        modalities: list[Literal["text"]] | None = None
        reasoning_effort: Annotated[str | None, Field(description="handed to the model's chat template")] = None
        verbosity: Literal["medium"] | None = None
        chat_template_kwargs: Annotated[
            dict[str, str | int | float | bool | None] | None,
            Field(description="handed to the model's chat template"),
        ] = None
        audio: None = None
        functions: None = None
        function_call: None = None
        moderation: None = None
        web_search_options: None = None

    return ChatRequest


def completion_request(limits: Limits) -> type[BaseModel]:
    """The request of `/v1/completions` under the limits of an agent."""
    a_text = Annotated[str, Field(max_length=limits.max_text_characters)]
    token_id = Annotated[int, Field(ge=0, lt=TOKEN_IDS)]
    token_row = Annotated[list[token_id], Field(min_length=1)]

    class CompletionRequest(GenerationRequest):
        prompt: (
            a_text
            | Annotated[list[a_text], Field(min_length=1, max_length=MAX_CHOICES)]
            | token_row
            | Annotated[list[token_row], Field(min_length=1, max_length=MAX_CHOICES)]
        )
        best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES, description="as n, or null")] | None = None
        echo: bool | None = None
        logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
        suffix: None = None

    return CompletionRequest
