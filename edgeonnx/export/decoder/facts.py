"""What the device must know of a decoder besides its graph: where answers end, how a prompt is made, how to sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeonnx.errors import CorruptSourceError
from edgeonnx.spec.generation import MAX_STOP_IDS, SamplingDefaults

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgeonnx.spec.generation import CacheShape

_ANSWER = "QQanswerQQ"
"""Stands for an answer in a rendered conversation; no template has it by itself."""


@dataclass(frozen=True, kw_only=True)
class DecoderFacts:
    """How text is generated with a decoder.

    Attributes:
        cache: Its key and value caches.
        context_length: Most tokens of a sequence.
        stop_ids: Tokens that end an answer, in rising order.
        chat_template: Jinja text that makes a prompt of a conversation, or None.
        special_tokens: Texts that the template may name (`bos_token`, ...).
        sampling: How the model's makers sample.
        exporter: What makes the graph, with its version.
    """

    cache: CacheShape
    context_length: int
    stop_ids: tuple[int, ...]
    chat_template: str | None
    special_tokens: dict[str, str]
    sampling: SamplingDefaults
    exporter: str


def read_template(tokenizer: Any) -> str | None:
    """The template for plain conversations; where a tokenizer has several by name, the one called `default`."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) and template.strip() else None


def read_special_tokens(tokenizer: Any) -> dict[str, str]:
    """The special tokens that have a name of their own, as transformers hands them to a template."""
    return {name: str(token) for name, token in tokenizer.special_tokens_map.items() if not isinstance(token, list)}


def read_stop_ids(
    tokenizer: Any, settings: Iterable[Mapping[str, object] | None], *, vocabulary: int, where: str
) -> tuple[int, ...]:
    """The tokens that end an answer.

    Args:
        tokenizer: The source's tokenizer.
        settings: Its configurations; each may state `eos_token_id`, a number or a list.
        vocabulary: Number of logits: other ids never come.
        where: The source, for the message.

    Raises:
        CorruptSourceError: A configuration states something else, or too many.
    """
    found: set[int] = set()
    for setting in settings:
        stated = None if setting is None else setting.get("eos_token_id")
        for token in stated if isinstance(stated, list) else [stated]:
            if token is not None and (not isinstance(token, int) or isinstance(token, bool)):
                raise CorruptSourceError(
                    "is no token id", where=f"{where}: eos_token_id", expected="an integer", found=str(token)[:80]
                )
            found |= {token} if token is not None else set()
    end = answer_end(tokenizer)
    if end is not None:
        found.add(end)
    if not found and tokenizer.eos_token_id is not None:
        found.add(int(tokenizer.eos_token_id))
    ids = tuple(sorted(token for token in found if 0 <= token < vocabulary))
    if len(ids) > MAX_STOP_IDS:
        raise CorruptSourceError(
            "states too many tokens that end an answer",
            where=f"{where}: eos_token_id",
            expected=f"at most {MAX_STOP_IDS}",
            found=str(len(ids)),
        )
    return ids


def answer_end(tokenizer: Any) -> int | None:
    """The special token that the chat template writes after an answer, or None.

    Configurations often lack it (they have the token that ends a document), and the model then talks on and on.
    """
    if read_template(tokenizer) is None:
        return None
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # noqa: BLE001 - a template may refuse a conversation by any error; it then tells nothing
        return None
    _, answered, rest = text.rpartition(_ANSWER)
    if not answered or not rest.strip():
        return None
    ids = tokenizer(rest.lstrip(), add_special_tokens=False)["input_ids"]
    token = tokenizer.added_tokens_decoder.get(ids[0])
    return int(ids[0]) if token is not None and token.special else None


def read_sampling(settings: Mapping[str, object] | None, *, where: str) -> SamplingDefaults:
    """How to sample, by `generation_config.json`; what it does not state stays off.

    Args:
        settings: The file's content, or None.
        where: The source, for the message.

    Raises:
        CorruptSourceError: A value is out of its range.
    """
    stated = {name: value for name, value in (settings or {}).items() if value is not None}
    greedy = stated.get("do_sample") is False

    def number(name: str, default: float, low: float, high: float) -> float:
        value = stated.get(name, default)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not math.isfinite(value)
            or not low <= value <= high
        ):
            raise CorruptSourceError(
                "is out of its range",
                where=f"{where}: generation_config.json: {name}",
                expected=f"a number from {low} to {high}",
                found=str(value)[:80],
            )
        return float(value)

    smallest = math.nextafter(0.0, 1.0)
    return SamplingDefaults(
        temperature=0.0 if greedy else number("temperature", 1.0, 0.0, 100.0),
        top_k=int(number("top_k", 0, 0, 1 << 31)),
        top_p=number("top_p", 1.0, smallest, 1.0),
        repetition_penalty=number("repetition_penalty", 1.0, smallest, 100.0),
    )
