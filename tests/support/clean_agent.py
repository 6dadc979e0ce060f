"""Proves the agent in an environment that has only the wheel's [agent] extra. Run by `make check-agent`.

It must not be imported from the source tree: it runs with `python -I` from another folder, so that `edgeonnx`,
`device_agent` and `edgeonnx_ext` are the installed ones.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("edgeonnx-agent")
FORBIDDEN = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "safetensors", "sentence_transformers")


def check_environment() -> None:
    """No library of the build host is importable, and our packages are the installed ones, compiled."""
    present = [name for name in FORBIDDEN if importlib.util.find_spec(name) is not None]
    assert not present, f"importable, but must not be: {present}"
    import edgeonnx_ext

    import device_agent
    import edgeonnx

    for package in (edgeonnx, device_agent, edgeonnx_ext):
        assert "site-packages" in str(package.__file__), f"{package.__name__} comes from {package.__file__}"
    assert edgeonnx_ext.HAS_NATIVE, "the wheel has no compiled kernels"


def install(repository: Path, state: Path) -> None:
    """The agent takes the release that a repository offers, and proves it."""
    root = repository / "metadata" / "1.root.json"
    url = repository.resolve().as_uri()
    subprocess.run([PROGRAM, "enroll", "--repo", url, "--root", root, "--state-dir", state], check=True)
    subprocess.run([PROGRAM, "update", "--once", "--state-dir", state], check=True)


@contextlib.contextmanager
def served(*what: str | Path) -> Iterator[tuple[str, str]]:
    """An agent for as long as the block lasts: its address and its ready line. It must end with exit code 0.

    Args:
        what: The options by which it finds its bundle.
    """
    agent = subprocess.Popen([PROGRAM, "serve", *what, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert agent.stdout is not None
        line = next(line for line in agent.stdout if "ready" in line)
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found, line
        yield found.group(), line
    finally:
        agent.send_signal(signal.SIGTERM)
        code = agent.wait(timeout=30)
    assert code == 0, f"exit code {code} after SIGTERM"


def asked(url: str, body: dict[str, object]) -> bytes:
    """The answer to a POST."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def check_generating(bundle: Path) -> None:
    """The agent proves a language model, renders its chat template, and streams an answer."""
    message = {"role": "user", "content": "hello"}
    with served("--bundle", bundle) as (address, _):
        body = {"model": "tiny-lm", "messages": [message], "max_tokens": 8, "temperature": 0, "stream": True}
        events = asked(f"{address}/v1/chat/completions", body).decode().strip().split("\n\n")
    assert events[-1] == "data: [DONE]", events[-1]
    assert '"finish_reason":"' in events[-2], events[-2]
    print(f"the agent streamed an answer of a language model in {len(events)} events")


def check_serving(bundle: Path, *what: str | Path) -> None:
    """The agent serves the bundle, and gives the golden answers of its golden texts.

    Args:
        bundle: The bundle.
        what: The options by which the agent finds it.
    """
    from edgeonnx.bundle import open_bundle

    opened = open_bundle(bundle)
    golden = opened.golden()
    with served(*what) as (address, line):
        answer = asked(f"{address}/v1/embeddings", {"model": "minilm", "input": list(golden.texts)})
    data = json.loads(answer)["data"]
    expected = golden.outputs["sentence_embedding"]
    worst = max(
        abs(have - float(want))
        for item, row in zip(data, expected, strict=True)
        for have, want in zip(item["embedding"], row, strict=True)
    )
    # What the variant that serves must reach is in its own manifest; int8 is further from the source than fp32.
    variants = {variant.name: variant for variant in opened.manifest.entry_component.variants}
    serving = next(variant for name, variant in variants.items() if f"variant {name} " in line)
    limit = next(bound.at_most for bound in serving.golden if bound.metric == "scaled_diff")
    assert limit is not None
    assert worst < limit, f"answers differ from the golden set by {worst}, allowed are {limit}"
    print(
        f"the agent served {len(golden.texts)} golden texts with {serving.name} within {worst:.1e}, "
        f"without {', '.join(FORBIDDEN)}"
    )


if __name__ == "__main__":
    check_environment()
    bundle, repository, state, decoder = map(Path, sys.argv[1:])
    check_serving(bundle, "--bundle", bundle)
    check_generating(decoder)
    install(repository, state)
    check_serving(bundle, "--state-dir", state)
