"""A virtual environment for each peer, with pinned requirements: several exclude each other, and all exclude ours."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".work" / "peers"
STAMP = ".requirements"

# What runs the int8 graph in the peers, the same versions as in edgeonnx's own environment.
RUNTIME = ("onnxruntime==1.32.0", "tokenizers==0.23.3", "numpy==2.4.6")

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    # infinity imports `optimum.bettertransformer`, which optimum 2 no longer has; optimum 1.24 wants transformers below
    # 4.49. infinity wants NumPy below 2, which newer pyarrow (of datasets, of sentence-transformers) does not take.
    "infinity": (
        "infinity_emb[server,torch,optimum]==0.0.78",
        "torch==2.13.0",
        "transformers==4.48.3",
        "optimum==1.24.0",
        "sentence-transformers==3.4.1",
        "numpy==1.26.4",
        "pyarrow==21.0.0",
        "datasets==4.4.2",
        "onnxruntime==1.32.0",
    ),
    "mlserver": ("mlserver==1.7.1", "fastapi==0.115.14", "uvloop==0.23.0", *RUNTIME),
    "llama": ("llama-cpp-python==0.3.36", "numpy==2.4.6"),
    "litserve": ("litserve==0.2.19", "fastapi==0.165.0", "uvloop==0.23.0", "httptools==0.9.0", *RUNTIME),
}


GGML_FLAGS = {
    "avx": "GGML_AVX",
    "avx2": "GGML_AVX2",
    "bmi2": "GGML_BMI2",
    "fma": "GGML_FMA",
    "f16c": "GGML_F16C",
    "avx512f": "GGML_AVX512",
    "avx512vbmi": "GGML_AVX512_VBMI",
    "avx512_vnni": "GGML_AVX512_VNNI",
    "avx512_bf16": "GGML_AVX512_BF16",
    "avx_vnni": "GGML_AVX_VNNI",
}
"""llama.cpp's build options, by the names that Linux gives to an x86 processor's instruction sets."""


class PeerFailsError(Exception):
    """A peer cannot be installed, does not start, or does not answer as it must; the message says why."""


def make_environment(name: str) -> Path:
    """The interpreter of a peer's environment, made if it is not there or was made for other requirements.

    Raises:
        PeerFailsError: pip could not install the requirements.
    """
    folder = PEERS / name
    python, stamp = folder / "bin" / "python", folder / STAMP
    wanted = "\n".join(REQUIREMENTS[name])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"{name}: installing {', '.join(REQUIREMENTS[name])}", file=sys.stderr)
    if not python.exists():
        venv.create(folder, with_pip=True, symlinks=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS[name]]
    variables = {**os.environ, "PYTHONPATH": "", **(llama_variables() if name == "llama" else {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if done.returncode != 0:
        raise PeerFailsError(f"pip could not install it: {last_line(done.stderr)}")
    stamp.write_text(wanted, encoding="utf-8")
    return python


def llama_variables(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Variables with which llama.cpp is compiled for this machine.

    Its own way, `-march=native`, takes AMX for usable on virtual machines that forbid it, and then dies of an illegal
    instruction; so every instruction set but AMX is named.
    """
    text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    has = next((set(line.split()) for line in text.splitlines() if line.startswith("flags")), None)
    if has is None:  # no x86: there its own way works
        return {}
    options = {option: "ON" if flag in has else "OFF" for flag, option in GGML_FLAGS.items()}
    arguments = " ".join(f"-D{option}={value}" for option, value in {"GGML_NATIVE": "OFF", **options}.items())
    return {"CMAKE_ARGS": arguments, "FORCE_CMAKE": "1"}


def last_line(text: str) -> str:
    """The last line that says something, cut to 200 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"
