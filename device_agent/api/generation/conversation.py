"""The request of `/v1/chat/completions`: a conversation, and what is asked of its next message.

- Messages have the roles system, developer, user, assistant and tool; the content is a text or a list of text parts,
  which are joined by line feeds (as vLLM and llama.cpp join them). Where the model's template does not know developers,
  their messages are a system's, which is what the name replaced.
- The members that OpenAI's client adds to an answer (`refusal`, `annotations`, ...) may come back empty, so that a
  program can send it as it got it. What stands in them otherwise is refused.
- Tools, audio and pictures are refused: the agent generates text from text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from device_agent.api.edge.body import check_row_count, check_texts, of_type, required
from device_agent.api.generation.parameters import (
    FIELDS,
    IGNORED,
    MAX_TOKENS,
    Options,
    integer,
    parse_options,
    refuse,
)
from device_agent.api.tasks import check_fields, optional_flag, optional_text
from edgeonnx.errors import InvalidRequestError, RequestTooLargeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from device_agent.config import Limits
    from edgeonnx.spec.generation import SamplingDefaults

ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGE_TEXTS = ("name", "tool_call_id", "reasoning_content")
"""Members of a message that templates may read."""
EMPTY_MEMBERS: dict[str, object] = {
    "refusal": "",
    "annotations": [],
    "audio": None,
    "function_call": None,
    "tool_calls": [],
    "reasoning": "",
}
"""Members of answers, with what they are where an answer has none of it; or null."""
MAX_TOP_LOGPROBS = 20

_NO_TOOLS = "this agent calls no tools; describe them in a message, and ask for JSON with response_format"
REFUSED = {
    "audio": "this agent answers with text alone",
    "functions": _NO_TOOLS,
    "function_call": _NO_TOOLS,
    "moderation": "this agent moderates nothing",
    "web_search_options": "this agent does not search the web",
}
CHAT_FIELDS = (
    *FIELDS,
    *IGNORED,
    *REFUSED,
    "messages",
    "max_completion_tokens",
    "top_logprobs",
    "tools",
    "tool_choice",
    "modalities",
    "reasoning_effort",
    "verbosity",
    "chat_template_kwargs",
)


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """A checked request.

    Attributes:
        options: What both routes share.
        messages: The conversation, as a template takes it.
        variables: More for the template.
        top_logprobs: Alternatives to tell of each token; None: no log probabilities at all.
    """

    options: Options
    messages: list[dict[str, Any]]
    variables: dict[str, Any]
    top_logprobs: int | None


def parse_chat(
    body: dict[str, object],
    *,
    model: str,
    defaults: SamplingDefaults,
    vocabulary_size: int,
    knows_developer: bool,
    limits: Limits,
) -> ChatRequest:
    """Check the body of a request.

    Args:
        body: The request.
        model: The name of its model.
        defaults: How the model's makers sample from it.
        vocabulary_size: Token ids are below this.
        knows_developer: The model's template has a place for developers.
        limits: The agent's limits.

    Raises:
        InvalidRequestError: A field is missing, unknown or wrong.
        RequestTooLargeError: A limit is exceeded.
    """
    check_fields(body, CHAT_FIELDS)
    refuse(body, REFUSED)
    _refuse_tools(body)
    _check_style(body)
    options = parse_options(body, model, defaults, vocabulary_size, _max_tokens(body))
    return ChatRequest(
        options=options,
        messages=_messages(required(body, "messages"), limits, knows_developer=knows_developer),
        variables=_variables(body),
        top_logprobs=_top_logprobs(body),
    )


def _refuse_tools(body: Mapping[str, object]) -> None:
    """Refuse tools; clients that have none may say so."""
    if body.get("tools") not in (None, []):
        raise InvalidRequestError(_NO_TOOLS, where="tools")
    if body.get("tool_choice") not in (None, "none", "auto"):
        raise InvalidRequestError(_NO_TOOLS, where="tool_choice")


def _check_style(body: Mapping[str, object]) -> None:
    """Fields of which one value asks for what the agent does anyway."""
    for name, usual in (("modalities", ["text"]), ("verbosity", "medium")):
        if body.get(name) not in (None, usual):
            raise InvalidRequestError("the agent has no other choice", where=name, expected=f"null or {usual!r}")


def _max_tokens(body: Mapping[str, object]) -> int | None:
    """`max_completion_tokens`, or `max_tokens`, its name of old."""
    new = integer(body, "max_completion_tokens", least=1, most=MAX_TOKENS)
    old = integer(body, "max_tokens", least=1, most=MAX_TOKENS)
    if new is not None and old is not None and new != old:
        raise InvalidRequestError(
            "is not what max_completion_tokens says",
            where="max_tokens",
            expected=str(new),
            found=str(old),
            hint="send one of the two",
        )
    return old if new is None else new


def _top_logprobs(body: Mapping[str, object]) -> int | None:
    wanted = optional_flag(body, "logprobs", False)
    count = integer(body, "top_logprobs", least=0, most=MAX_TOP_LOGPROBS)
    if count and not wanted:
        raise InvalidRequestError("is for log probabilities", where="top_logprobs", hint='set "logprobs": true')
    return (count or 0) if wanted else None


def _variables(body: Mapping[str, object]) -> dict[str, Any]:
    """What the client hands to the template: `reasoning_effort`, and `chat_template_kwargs` as vLLM takes them."""
    found: dict[str, Any] = {}
    effort = optional_text(body, "reasoning_effort")
    if effort is not None:
        found["reasoning_effort"] = effort
    value = body.get("chat_template_kwargs")
    given: dict[str, object] = {} if value is None else of_type(value, dict, "chat_template_kwargs")
    for name, item in given.items():
        where = f"chat_template_kwargs.{name[:80]}"
        if name in ("messages", "tools", "documents", "add_generation_prompt") or not name.isidentifier():
            raise InvalidRequestError("is not for clients to set", where=where)
        if not isinstance(item, str | int | float | bool | None):
            raise InvalidRequestError("is of the wrong type", where=where, expected="a text, a number, true or false")
        found[name] = item
    return found


def _messages(value: object, limits: Limits, *, knows_developer: bool) -> list[dict[str, Any]]:
    entries = of_type(value, list, "messages")
    if not entries:
        raise InvalidRequestError("is empty", where="messages", expected="at least one message")
    check_row_count(len(entries), "messages", limits)
    messages = [_message(entry, f"messages[{index}]", limits) for index, entry in enumerate(entries)]
    for message in messages:
        if message["role"] == "developer" and not knows_developer:
            message["role"] = "system"
    return messages


def _message(value: object, where: str, limits: Limits) -> dict[str, Any]:
    entry: dict[str, object] = of_type(value, dict, where)
    check_fields(entry, ("role", "content", *MESSAGE_TEXTS, *EMPTY_MEMBERS), f"{where}.")
    role = of_type(required(entry, "role", where), str, f"{where}.role")
    if role not in ROLES:
        raise InvalidRequestError(
            "unknown role", where=f"{where}.role", expected=", ".join(ROLES), found=repr(role[:40])
        )
    for name, empty in EMPTY_MEMBERS.items():
        if entry.get(name) not in (None, empty):
            raise InvalidRequestError("the agent generates text from text alone", where=f"{where}.{name}")
    message = {"role": role, "content": _content(required(entry, "content", where), f"{where}.content", limits)}
    for name in MESSAGE_TEXTS:
        text = optional_text(entry, name, f"{where}.")
        if text is not None:
            message[name] = check_texts([text], f"{where}.{name}", limits)[0]
    return message


def _content(value: object, where: str, limits: Limits) -> str:
    """A text, or text parts as one."""
    if isinstance(value, str):
        return _text(value, where, limits)
    if not isinstance(value, list):
        raise InvalidRequestError("is of the wrong type", where=where, expected="a text or an array of text parts")
    texts = []
    for index, item in enumerate(value):
        place = f"{where}[{index}]"
        part: dict[str, object] = of_type(item, dict, place)
        kind = of_type(required(part, "type", place), str, f"{place}.type")
        if kind != "text":
            raise InvalidRequestError(
                "the agent reads text alone", where=f"{place}.type", expected='"text"', found=repr(kind[:40])
            )
        check_fields(part, ("type", "text"), f"{place}.")
        texts.append(_text(required(part, "text", place), f"{place}.text", limits))
    return _text("\n".join(texts), where, limits)


def _text(value: object, where: str, limits: Limits) -> str:
    text = of_type(value, str, where)
    if len(text) > limits.max_text_characters:
        raise RequestTooLargeError(
            "the text is too long",
            where=where,
            expected=f"at most {limits.max_text_characters:,} characters",
            found=f"{len(text):,}",
        )
    return text
