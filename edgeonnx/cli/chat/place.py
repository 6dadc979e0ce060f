"""Which agent to talk to: one that runs, or one that is started for this conversation."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.cli.chat.client import Client, parse_url
from edgeonnx.errors import UsageError, printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from edgeonnx.cli.chat.terminal import Terminal
    from edgeonnx.spec.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Served:
    """An agent that answers.

    Attributes:
        client: Talks to it.
        model: The model to talk to.
        chats: Whether the model has a chat template, as far as is known.
        about: One line for the person.
    """

    client: Client
    model: str
    chats: bool
    about: str


@dataclass(frozen=True, kw_only=True)
class Place:
    """What the command line says about the agent.

    Attributes:
        bundle: Start an agent that serves this bundle; None: `url` names one that runs.
        url: Address of a running agent.
        model: Which of the running agent's models; None: its first.
        token_file: File with the running agent's token.
        variant: Which of the bundle's variants; None: the agent chooses.
    """

    bundle: Path | None
    url: str | None
    model: str | None
    token_file: Path | None
    variant: str | None

    def check(self) -> None:
        """Refuse options that exclude each other.

        Raises:
            UsageError: As said.
        """
        if (self.bundle is None) == (self.url is None):
            raise UsageError(
                "which agent?", expected="either BUNDLE or --url", found="none" if self.url is None else "both"
            )
        without = {"--variant": self.variant} if self.bundle is None else {}
        with_bundle = {"--model": self.model, "--token-file": self.token_file} if self.bundle is not None else {}
        for option, value in {**without, **with_bundle}.items():
            if value is not None:
                raise UsageError(f"{option} cannot be used with {'--url' if self.bundle is None else 'a bundle'}")

    @contextmanager
    def served(self, terminal: Terminal) -> Iterator[Served]:
        """The agent, ready; one that was started for this is ended at the end of the block.

        Raises:
            EdgeOnnxError: It is not there, does not start, or has no model that generates text.
        """
        if self.bundle is not None:
            with self._started(self.bundle, terminal) as served:
                yield served
        else:
            yield self._running(parse_url(self.url or ""))

    @contextmanager
    def _started(self, bundle: Path, terminal: Terminal) -> Iterator[Served]:
        from edgeonnx.bundle import open_bundle
        from edgeonnx.cli.chat import child

        manifest = open_bundle(bundle).manifest
        chats = _chats(manifest, bundle)
        options = () if self.variant is None else ("--variant", self.variant)
        with ExitStack() as stack:
            with terminal.waiting(f"loading {manifest.name}"):
                url, about = stack.enter_context(child.running(bundle, options))
            yield Served(client=Client(url=url), model=manifest.name, chats=chats, about=about)

    def _running(self, url: str) -> Served:
        token = None if self.token_file is None else _token(self.token_file)
        client = Client(url=url, token=token)
        names = client.models()
        model = self.model or next(iter(names), None)
        if model is None or model not in names:
            raise UsageError(
                "the agent does not serve this model",
                where="--model",
                expected=" or ".join(names) or "a model: it serves none yet",
                found=self.model,
            )
        return Served(client=client, model=model, chats=True, about=f"{model} at {printable(url)}")


def _chats(manifest: Manifest, bundle: Path) -> bool:
    if manifest.generation is None:
        raise UsageError(
            "this model does not generate text",
            where=str(bundle),
            expected="a bundle of the task text-generation",
            found=manifest.task.value,
        )
    return manifest.generation.chat_template is not None


def _token(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        found = error.strerror if isinstance(error, OSError) else "no text"
        raise UsageError("the token cannot be read", where=f"--token-file {path}", found=found) from None
