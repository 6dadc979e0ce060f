"""Proves the agent in an environment that has only the wheel's [agent] extra. Run by `make check-agent`.

It must not be imported from the source tree: it runs with `python -I` from another folder, so that `edgeonnx`,
`device_agent` and `edgeonnx_ext` are the installed ones.
"""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
import urllib.request
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


def check_serving(bundle: Path, *what: str | Path) -> None:
    """The agent serves the bundle, and gives the golden answers of its golden texts.

    Args:
        bundle: The bundle.
        what: The options by which the agent finds it.
    """
    from edgeonnx.bundle import open_bundle

    opened = open_bundle(bundle)
    golden = opened.golden()
    agent = subprocess.Popen([PROGRAM, "serve", *what, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert agent.stdout is not None
        line = next(line for line in agent.stdout if "ready" in line)
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found, line
        body = json.dumps({"model": "minilm", "input": list(golden.texts)}).encode()
        request = urllib.request.Request(f"{found.group()}/v1/embeddings", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            data = json.load(answer)["data"]
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
    finally:
        agent.send_signal(signal.SIGTERM)
        code = agent.wait(timeout=30)
    assert code == 0, f"exit code {code} after SIGTERM"
    print(
        f"the agent served {len(golden.texts)} golden texts with {serving.name} within {worst:.1e}, "
        f"without {', '.join(FORBIDDEN)}"
    )


if __name__ == "__main__":
    check_environment()
    bundle, repository, state = map(Path, sys.argv[1:])
    check_serving(bundle, "--bundle", bundle)
    install(repository, state)
    check_serving(bundle, "--state-dir", state)
