"""A conversation becomes a prompt: the model's own Jinja template, as transformers renders it, within bounds.

The template comes from the model's maker, and what it renders from whoever talks to the model. So:

- it runs in Jinja's immutable sandbox, in a thread of the caller's, and every turn of a loop and call of a macro counts
  (`MAX_STEPS`), as do the characters that it makes (`max_characters`): no conversation keeps the thread busy for long.
  (A template that was made to do harm would find a way; but its maker has also made the graph.);
- what it raises refuses the conversation, with its own words;
- text of a message that spells a special token (`<|im_end|>`) stays text. A second rendering tells who wrote what: in
  it the first and last characters of special tokens have stand-ins wherever a client wrote them. A special token of
  the prompt is meant if the template wrote both its ends (it may put a role between them). If a template looks into
  the messages so that the second rendering is another text, nothing can be told, and such a conversation is refused if
  it names a special token. Phrases that a template looks for ("</think>") have no stand-ins, unless they could be a
  part of a special token.
"""

from __future__ import annotations

import json
import re
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from device_agent.inference.generation.special import pattern_of
from edgeonnx.errors import InvalidRequestError, ManifestError, RequestTooLargeError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from jinja2.parser import Parser

MAX_STEPS = 100_000
"""Turns of loops and calls of macros of one rendering; about half a second of them."""
MAX_NUMBER = 10_000
"""The largest number that a template may hand to a method or a filter: a width, most often."""
STAND_IN_BASES = range(0xF0000, 0x110000, 0x1000)
"""Where stand-ins may be: private use, so that text that holds them is rare, and then the next base is taken."""

_WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]*(\d{4}|\*)")

Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A rendered conversation.

    Attributes:
        text: What the model is to read.
        client: The same text with stand-ins where a client wrote the first or last character of a special token; empty
            where every special token in `text` is the template's.
        stand_ins: The stand-ins.
    """

    text: str
    client: str = ""
    stand_ins: frozenset[str] = frozenset()

    def from_client(self, span: tuple[int, int]) -> bool:
        """Whether a client wrote an end of the special token at `span`."""
        start, stop = span
        return self.client[start] in self.stand_ins or self.client[stop - 1] in self.stand_ins


@dataclass(kw_only=True)
class _Budget:
    """What a rendering may still do."""

    steps: int
    characters: int

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise _TooMuchError

    def write(self, count: int) -> None:
        self.characters -= count
        if self.characters < 0:
            raise _TooMuchError


class _TooMuchError(Exception):
    """A rendering takes more steps, or more characters, than it may."""


_BUDGET: ContextVar[_Budget] = ContextVar("budget")


class ChatTemplate:
    """A model's chat template, compiled once; safe in any thread.

    Args:
        source: The Jinja template.
        names: Texts that it may name (`bos_token`, ...).
        special: The texts of the tokenizer's special tokens.
        where: What it is called in messages.

    Raises:
        ManifestError: It is no Jinja template.
    """

    def __init__(
        self,
        source: str,
        *,
        names: Mapping[str, str],
        special: Iterable[str] = (),
        where: str = "generation.chat_template",
    ) -> None:
        self._names = dict(names)
        self._special = pattern_of(special)
        environment = _Environment()
        try:
            tree = environment.parse(source)
            kept = pattern_of(frozenset(_kept_phrases(tree, frozenset(special))))
            self._template = environment.compile_tree(_counted(tree))
        except (jinja2.TemplateError, RecursionError, ValueError) as error:
            raise ManifestError("the chat template is broken", where=where, found=first_line(error)) from None
        self._marks = _Marks(special=frozenset(special), kept=kept)
        self.knows_developer = "developer" in source

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        max_characters: int = 1 << 22,
    ) -> Prompt:
        """Render a conversation.

        Args:
            messages: Role, content and perhaps more of each message, as plain JSON values.
            add_generation_prompt: End with the beginning of the model's answer.
            variables: More that the template may use.
            max_characters: Most characters of the prompt, and of what is made on the way.

        Raises:
            InvalidRequestError: The template refuses the conversation, or the prompt's special tokens cannot be told
                from those that the messages spell.
            RequestTooLargeError: The prompt is too long, or takes too long to make.
        """
        given = {"messages": list(messages), **(variables or {})}
        text = self._run(given, add_generation_prompt, max_characters)
        client_text = list(_client_strings(given))
        if not self._marks.needed(client_text):
            return Prompt(text=text)
        table = self._marks.table(client_text)
        marked = self._run(self._marks.put(given, table), add_generation_prompt, max_characters)
        back = {ord(stand_in): character for character, stand_in in table.items()}
        if marked.translate(back) == text:
            return Prompt(text=text, client=marked, stand_ins=frozenset(table.values()))
        if self._special.findall(text) == self._special.findall(marked) and not any(
            self._special.search(each) for each in client_text
        ):
            return Prompt(text=text)
        raise InvalidRequestError(
            "the model's chat template cannot keep special tokens in a message apart from its own",
            where="messages",
            expected="no text that spells a special token of the model",
        )

    def _run(self, given: Mapping[str, Any], add_generation_prompt: bool, max_characters: int) -> str:
        variables = {"tools": None, "documents": None, **self._names, **given}
        budget = _Budget(steps=MAX_STEPS, characters=max_characters)
        token = _BUDGET.set(budget)
        written: list[str] = []
        try:
            for piece in self._template.generate(variables, add_generation_prompt=add_generation_prompt):
                written.append(piece)
                budget.write(len(piece))
        except (_TooMuchError, MemoryError):
            raise RequestTooLargeError(
                "the prompt that the model's chat template makes is too long",
                where="messages",
                expected=f"at most {max_characters:,} characters, in {MAX_STEPS:,} steps",
            ) from None
        except Exception as error:  # noqa: BLE001 - a template may raise anything, and it is the conversation's fault
            raise InvalidRequestError(
                "the model's chat template refuses the conversation", where="messages", found=first_line(error)
            ) from None
        finally:
            _BUDGET.reset(token)
        return "".join(written)


# Who wrote what


@dataclass(frozen=True, kw_only=True)
class _Marks:
    """Where clients' text gets stand-ins.

    Attributes:
        special: Texts of special tokens.
        kept: Finds the phrases that keep their characters.
    """

    special: frozenset[str]
    kept: re.Pattern[str]
    ends: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", frozenset(end for text in self.special for end in (text[0], text[-1])))

    def needed(self, texts: Iterable[str]) -> bool:
        """Whether a special token in the prompt could be a client's."""
        return any(not self.ends.isdisjoint(text) for text in texts)

    def table(self, texts: Sequence[str]) -> dict[str, str]:
        """A stand-in for each end; none of them is in the texts."""
        ends = sorted(self.ends)
        for base in STAND_IN_BASES:
            stand_ins = [chr(base + index) for index in range(len(ends))]
            if all(frozenset(stand_ins).isdisjoint(text) for text in texts):
                return dict(zip(ends, stand_ins, strict=True))
        raise InvalidRequestError(
            "the messages use all planes of private characters", where="messages", expected="text of assigned ones"
        )

    def put(self, value: Any, table: Mapping[str, str]) -> Any:
        """A copy of the values with stand-ins in every text but roles, which are words of the protocol."""
        if isinstance(value, dict):
            return {key: item if key == "role" else self.put(item, table) for key, item in value.items()}
        if isinstance(value, list):
            return [self.put(item, table) for item in value]
        return self._put_text(value, table) if isinstance(value, str) else value

    def _put_text(self, text: str, table: Mapping[str, str]) -> str:
        codes = {ord(character): stand_in for character, stand_in in table.items()}
        end, parts = 0, []
        for match in self.kept.finditer(text):
            parts += [text[end : match.start()].translate(codes), match[0]]
            end = match.end()
        return "".join([*parts, text[end:].translate(codes)])


def _client_strings(value: Any) -> Iterable[str]:
    """Every text in the values but roles."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key != "role":
                yield from _client_strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _client_strings(item)
    elif isinstance(value, str):
        yield value


def _kept_phrases(tree: nodes.Template, special: frozenset[str]) -> Iterable[str]:
    """The template's own phrases that it may look for in messages, and that no special token could be made with."""
    for node in tree.find_all(nodes.Const):
        phrase = node.value
        if isinstance(phrase, str) and phrase and not any(_overlap(phrase, text) for text in special):
            yield phrase


def _overlap(phrase: str, special: str) -> bool:
    """Whether an end of a special token that stands beside a phrase, or across its edge, can lie within it."""
    if phrase in special or special in phrase:
        return True
    sizes = range(1, min(len(phrase), len(special)))
    return any(phrase.endswith(special[:size]) or phrase.startswith(special[-size:]) for size in sizes)


# The sandbox


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja as transformers sets it up, with what makes text or numbers without bound taken into the account."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self.filters = {name: _bounded(filter_) for name, filter_ in {**self.filters, "tojson": _to_json}.items()}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def compile_tree(self, tree: nodes.Template) -> jinja2.Template:
        """A template from a syntax tree."""
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None), None)

    def count_step(self) -> str:
        """Called by every turn of a loop, and every call of a macro."""
        _BUDGET.get().step()
        return ""

    def joined(self, parts: Sequence[object]) -> str:
        """What `~` makes."""
        texts = [str(part) for part in parts]
        _BUDGET.get().write(sum(map(len, texts)))
        return "".join(texts)

    def call(self, context: jinja2.runtime.Context, function: Any, *args: Any, **keywords: Any) -> Any:
        """Every call of a template."""
        if getattr(function, "__self__", None) is not self:
            _check_numbers(args, keywords)
        return super().call(context, function, *args, **keywords)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Operators whose result may be far larger than what they are given."""
        if operator == "**":
            raise SecurityError("a chat template may not use powers")
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            _BUDGET.get().write(len(left) + len(right))
        for value, times in ((left, right), (right, left)):
            if operator == "*" and isinstance(value, str | list | tuple) and isinstance(times, int):
                _BUDGET.get().write(len(value) * max(0, times))
        return super().call_binop(context, operator, left, right)


class _GenerationTag(Extension):
    """`{% generation %}`: what the model wrote, which matters in training only."""

    tags = {"generation"}  # noqa: RUF012 - so Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, as it is."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _counted(tree: nodes.Template) -> nodes.Template:
    """The tree with `count_step` in every loop and macro, and `joined` in place of `~`."""
    node: Any
    for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        call = nodes.Call(nodes.EnvironmentAttribute("count_step"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
    return _Joining().visit(tree)  # type: ignore[no-any-return]


class _Joining(jinja2.visitor.NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - so Jinja calls it
        self.generic_visit(node)
        call = nodes.Call(nodes.EnvironmentAttribute("joined"), [nodes.List(node.nodes)], [], None, None)
        return call.set_lineno(node.lineno)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that takes no large numbers."""

    @wraps(function)
    def bounded(*args: Any, **keywords: Any) -> Any:
        if function is jinja2.filters.do_format:
            _check_format(str(args[0]))
        _check_numbers(args[1:], keywords)
        return function(*args, **keywords)

    return bounded


def _check_numbers(args: Iterable[object], keywords: Mapping[str, object]) -> None:
    """Refuse a number that could ask for gigabytes: `'a'.ljust(10 ** 10)`."""
    for value in (*args, *keywords.values()):
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise SecurityError(f"a chat template may not use numbers above {MAX_NUMBER} so")


def _check_format(form: str) -> None:
    """Refuse a format that asks for gigabytes: `'%10000000000d'`."""
    if _WIDE_FORMAT.search(form):
        raise SecurityError("a chat template may not use formats so wide")


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the escapes for HTML that Jinja's own filter makes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # the local day, as templates want it
