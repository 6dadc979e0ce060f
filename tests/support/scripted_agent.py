"""An HTTP server that answers as an agent does, from a script: for tests of clients, also of what agents never send."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Script = Callable[[Body], Iterable[bytes] | tuple[int, Body]]

USAGE = {"prompt_tokens": 21, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}


def event(value: object) -> bytes:
    """One event of a stream."""
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def delta(text: str | None, finish: str | None = None) -> bytes:
    """The event of one chunk of a conversation."""
    content = {} if text is None else {"content": text}
    return event({"choices": [{"index": 0, "delta": content, "finish_reason": finish}], "usage": None})


def stream_of(*texts: str, finish: str = "stop", usage: Body | None = None) -> list[bytes]:
    """A whole streamed answer."""
    first = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
    last = event({"choices": [], "usage": usage or USAGE})
    return [first, *map(delta, texts), delta(None, finish), last, event(b"[DONE]")]


def echo(body: Body) -> list[bytes]:
    """Answers with the last message, in two pieces, and how many messages there were."""
    last = body["messages"][-1]["content"]
    return stream_of(f"{len(body['messages'])}:", last)


class ScriptedAgent:
    """What the server does and saw.

    Args:
        script: Makes the answer of a request: pieces of a stream, or a status and an error's body.
        models: Names of its models; None: it is no agent.
    """

    def __init__(self, script: Script, models: tuple[str, ...] | None) -> None:
        self.script = script
        self.models = models
        self.requests: list[tuple[str, Body]] = []
        self.tokens: list[str | None] = []
        self.left = threading.Event()
        self.url = ""


@contextmanager
def scripted(script: Script = echo, models: tuple[str, ...] | None = ("tiny",)) -> Iterator[ScriptedAgent]:
    """Serve on a free port of the loopback interface until the end of the block."""
    agent = ScriptedAgent(script, models)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            agent.tokens.append(self.headers.get("Authorization"))
            data = None if agent.models is None else [{"id": name} for name in agent.models]
            self.whole(200, {"object": "list", "data": data})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            agent.requests.append((self.path, body))
            agent.tokens.append(self.headers.get("Authorization"))
            answer = agent.script(body)
            if isinstance(answer, tuple):
                self.whole(*answer)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for piece in answer:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                agent.left.set()
                self.close_connection = True

        def whole(self, status: int, body: Body) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        agent.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield agent
        finally:
            server.shutdown()
            thread.join(5)
