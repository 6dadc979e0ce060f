"""The verb: what is asked for, of which agent, and what the end of it means."""

from __future__ import annotations

import math
import sys
from pathlib import Path  # noqa: TC003 - Typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer

from edgeonnx.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeonnx.cli.chat.client import Client
    from edgeonnx.cli.chat.conversation import Conversation
    from edgeonnx.cli.chat.terminal import Terminal

    Verb = Callable[..., None]

STDIN = "-"


def register(app: typer.Typer, reported: Callable[[Verb], Verb]) -> None:
    """Add the verb to the command line.

    Args:
        app: The command line.
        reported: Turns our errors into messages and exit codes.
    """
    app.command("chat")(reported(chat))


def chat(
    bundle: Annotated[
        Path | None, typer.Argument(metavar="BUNDLE", help="Folder of a language model's bundle.", show_default=False)
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Talk to this running agent, instead of one of its own.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="With --url: which of its models. [default: its first]")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="With --url: file with the agent's token.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="Ask only this, print the answer, end. -: read it."),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="Instruction before the conversation.")] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="Continue each text by itself (/v1/completions), instead of conversing.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0, help="0: always the same answer. [default: the model's]")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="The same answers to the same questions.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Longest answer.")] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", help="Variant of the bundle, by name. [default: the agent chooses]")
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Tell the speed after each answer.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --prompt: print answer, tokens and times as one JSON document.")
    ] = False,
) -> None:
    """Talk with a language model: on an agent that is started for it, or on one that runs.

    Each line is a question, and the answer streams as it is made. Ctrl-C stops an answer; Ctrl-D or /exit ends; /help
    tells more. From a pipe, each line is a question; answers alone go to stdout.
    """
    from edgeonnx.cli.chat.conversation import Conversation, Sampling
    from edgeonnx.cli.chat.place import Place
    from edgeonnx.cli.chat.talk import Talk
    from edgeonnx.cli.chat.terminal import Terminal

    if as_json and prompt is None:
        raise UsageError("--json needs --prompt", hint="a conversation is no single document")
    if temperature is not None and not math.isfinite(temperature):
        raise UsageError("the temperature is no number", where="--temperature", found=str(temperature))
    sampling = Sampling(temperature=temperature, seed=seed, max_tokens=max_tokens)
    place = Place(bundle=bundle, url=url, model=model, token_file=token_file, variant=variant)
    place.check()
    question = sys.stdin.read() if prompt == STDIN else prompt
    terminal = Terminal()
    with place.served(terminal) as served:
        chats = served.chats and not complete
        conversation = Conversation(model=served.model, sampling=sampling, chats=chats, system=system)
        if question is None:
            terminal.note(served.about)
        if not served.chats and not as_json:
            terminal.note("the model has no chat template, so it takes no conversation: texts are continued instead")
        if question is not None:
            _ask_once(served.client, conversation, terminal, question, as_json=as_json, stats=stats)
            return
        failed = Talk(served.client, conversation, terminal, stats=stats).run()
    if failed is not None:
        raise typer.Exit(failed.exit_code)


def _ask_once(
    client: Client, conversation: Conversation, terminal: Terminal, question: str, *, as_json: bool, stats: bool
) -> None:
    from edgeonnx.cli.chat.conversation import describe
    from edgeonnx.cli.chat.talk import answer
    from edgeonnx.cli.output import print_json

    if as_json:
        print_json(answer(client, conversation, question, lambda _: None).to_dict(conversation.model))
        return
    try:
        found = answer(client, conversation, question, terminal.write)
    finally:
        terminal.end_line()
    if stats:
        terminal.note(describe(found))
