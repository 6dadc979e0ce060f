"""Answers in JSON: `response_format` by llguidance, which tells for each token whether it may come next.

The library compiles a JSON schema to a grammar over the model's own tokens, within limits of its own on the size of
schema and parser. It is an optional extra (`json`), imported by the first request that asks for it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import orjson

from edgeonnx.errors import InferenceError, InvalidRequestError, first_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from device_agent.api.generation.parameters import Format
    from device_agent.inference.generation.text import GenerationText

WHERE = "response_format"
WHITESPACE = r"[ \n\t]{0,8}"
"""Between the parts of JSON: a small model may otherwise go on with spaces until its answer is full."""


def constrain(
    asked: Format, text: GenerationText, vocabulary: int, stop_ids: Sequence[int], choices: int
) -> list[JsonConstraint]:
    """The form of each choice of a request.

    Takes up to a second for a large schema, and for the first request to a model: call it in a thread.

    Args:
        asked: The form.
        text: The model's tokenizer.
        vocabulary: Number of logits.
        stop_ids: Tokens that end an answer.
        choices: How many are needed: each has a state of its own.

    Raises:
        InvalidRequestError: llguidance is not installed; or the schema is none, or too large, or uses what the library
            does not know.
    """
    library = _library()
    tokenizer = _tokenizer(library, text, vocabulary, stop_ids)
    schema: dict[str, object] = {"type": "object"} if asked.schema is None else asked.schema
    try:
        grammar = library.LLMatcher.grammar_from_json_schema(
            orjson.dumps(schema).decode(), overrides={"whitespace_pattern": WHITESPACE}
        )
        matcher = library.LLMatcher(tokenizer, grammar)
    except (ValueError, TypeError) as error:  # orjson's TypeError: nested too deeply
        raise _bad_schema(first_line(error)) from None
    if not matcher.is_error():
        # A schema that nothing follows (it needs itself, say) shows at the first token.
        JsonConstraint(matcher, vocabulary).fill()
    if matcher.is_error():
        raise _bad_schema(matcher.get_error())
    return [JsonConstraint(matcher.deep_copy(), vocabulary) for _ in range(choices)]


def _bad_schema(found: str) -> InvalidRequestError:
    return InvalidRequestError(
        "the schema cannot be followed",
        where=f"{WHERE}.json_schema.schema",
        expected="a JSON schema that llguidance knows",
        found=_first_line(found),
    )


def _first_line(text: str) -> str:
    """The library adds the whole state of its parser."""
    lines = text.strip().splitlines()
    return lines[0][:200] if lines else "an error"


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise InvalidRequestError(
            "this agent has no library for answers in JSON",
            where=WHERE,
            expected="llguidance",
            hint="pip install 'edgeonnx[json]' on the device, or ask for JSON in the prompt alone",
        ) from None
    return llguidance


_tokenizers: WeakKeyDictionary[GenerationText, Any] = WeakKeyDictionary()
_opening = threading.Lock()


def _tokenizer(library: Any, text: GenerationText, vocabulary: int, stop_ids: Sequence[int]) -> Any:
    """The library's own view of a model's tokens; made once (0.4 s for 49,152 tokens)."""
    with _opening:
        found = _tokenizers.get(text)
        if found is None:
            try:
                found = library.LLTokenizer(
                    text.tokenizer_json.decode(), n_vocab=vocabulary, eos_token=list(stop_ids) or None
                )
            except (ValueError, RuntimeError) as error:
                raise InvalidRequestError(
                    "this model's tokenizer is not one that llguidance knows", where=WHERE, found=first_line(error)
                ) from None
            _tokenizers[text] = found
        return found


class JsonConstraint:
    """The form of one answer; see `device_agent.inference.generation.request.Constraint`.

    Args:
        matcher: llguidance's matcher.
        vocabulary: Number of logits.
    """

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher = matcher
        self._bits = np.zeros(-(-vocabulary // 32), dtype=np.int32)

    @property
    def finished(self) -> bool:
        """Whether the JSON is whole and nothing may follow."""
        return bool(self._matcher.is_stopped())

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Set the logits of tokens that must not come next to -infinity.

        Args:
            logits: float32 (vocabulary,).

        Raises:
            InferenceError: The library gave up.
        """
        self.fill()
        self._check()
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: logits.size]
        logits[allowed == 0] = -np.inf

    def fill(self) -> None:
        """Let the library find the tokens that may come next."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)

    def accept(self, token: int) -> None:
        """Take note of the token that came.

        Raises:
            InferenceError: The library did not expect it.
        """
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InferenceError(
                "the answer's form cannot be followed any further",
                where=WHERE,
                found=_first_line(self._matcher.get_error()),
            )
