"""What are the passes for CPU graphs worth (`edgeonnx/optimize/passes.py`)?

First the whole graph: MiniLM fp32 as it is exported, with each pass alone, and with all of them; ONNX Runtime fuses
what it recognizes in every one of them. Then the single patterns, 16 x 32 tokens of MiniLM's widths: ONNX Runtime's
fused operator against the form that the pass writes.

One thread everywhere, passes in turn, the best pass of each counts. The peer is what stands in the first line of each
table. Run it with `PYTHONPATH=. python bench/optimize.py [--texts N] [--rounds N]`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from edgeonnx.evaluate.answers import plan_batches
from edgeonnx.export.encoder import load_encoder
from edgeonnx.export.source import locate
from edgeonnx.export.tasks import plan_task
from edgeonnx.model.graph import StoredGraph, restore_graph, store_graph
from edgeonnx.model.operators import loaded_operators
from edgeonnx.model.reference import pad_rows
from edgeonnx.model.runtime import open_graph
from edgeonnx.optimize.passes import CPU_PASSES, optimize_for_cpu, remove_unused
from tests.support.models import minilm_directory
from tests.support.texts import vader_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgeonnx.model.ports import IntTensors

SEED = 5
ROWS, TOKENS, HIDDEN, INNER, HEADS = 16, 32, 384, 1536, 12
REPEATS = 50
SHOWN = ("Attention", "Transpose", "com.microsoft.SkipLayerNormalization", "com.microsoft.BiasGelu", "Sum")
CONTRIB = "com.microsoft"


def take_turns(tasks: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of the best pass of each task; every round runs each once, beginning with another one."""
    best = dict.fromkeys(tasks, float("inf"))
    names = list(tasks)
    for task in tasks.values():  # the first run of a shape allocates
        task()
    for _ in range(rounds):
        for name in names:
            begin = time.perf_counter()
            tasks[name]()
            best[name] = min(best[name], time.perf_counter() - begin)
        names = [*names[1:], names[0]]
    return best


def with_pass(graph: StoredGraph, name: str) -> StoredGraph:
    """The graph after one pass."""
    model = restore_graph(graph)
    if not CPU_PASSES[name](model.graph):
        raise SystemExit(f"the pass {name!r} finds nothing to do")
    remove_unused(model)
    return store_graph(model)


def whole_graph(count: int, rounds: int) -> None:
    """Export MiniLM, and compare the graph with its optimized forms."""
    source = locate(str(minilm_directory()))
    encoder = load_encoder(source, plan_task(source, None), max_length=None)
    exported = encoder.export()
    graphs = {"as exported": exported} | {name: with_pass(exported, name) for name in CPU_PASSES}
    graphs["all passes"] = optimize_for_cpu(exported).graph
    every = vader_texts()
    texts = [every[row] for row in np.random.default_rng(SEED).choice(len(every), count, replace=False)]
    batches = batches_of(encoder.tokenize(texts, None), {"input_ids": encoder.tokenizer.pad_id})
    with TemporaryDirectory() as folder:
        paths = {name: graph.write(Path(folder), f"{place}.onnx") for place, (name, graph) in enumerate(graphs.items())}
        runs = {name: open_graph(path, Path(folder), threads=1) for name, path in paths.items()}
        tasks = {name: lambda run=run: [run(batch) for batch in batches] for name, run in runs.items()}
        times = take_turns(tasks, rounds)
        loaded = {name: loaded_operators(path) for name, path in paths.items()}
    print(f"MiniLM fp32, {count} texts in batches of up to 512 tokens, one thread, best of {rounds} passes")
    print(f"{'':<32}{'texts/s':>10}{'ratio':>8}   operators that ONNX Runtime runs")
    for name, seconds in times.items():
        operators = ", ".join(
            f"{loaded[name][operator]} {operator.removeprefix('com.microsoft.')}"
            for operator in SHOWN
            if operator in loaded[name]
        )
        print(f"{name:<32}{count / seconds:>10.1f}{times['as exported'] / seconds:>8.3f}   {operators}")


def batches_of(rows: Sequence[IntTensors], pad_ids: dict[str, int]) -> list[IntTensors]:
    """Rows as batches of similar length."""
    lengths = [row["input_ids"].shape[1] for row in rows]
    return [
        pad_rows([rows[index] for index in batch], max(lengths[index] for index in batch), pad_ids)
        for batch in plan_batches(lengths)
    ]


def graph_of(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Sequence[int]], constants: Mapping[str, np.ndarray]
) -> Callable[[], object]:
    """A small graph with float32 inputs of these shapes and the output `y`; a function that runs it on random data.

    ONNX Runtime's fusions are off, so that each form is run as it is written.
    """
    graph = helper.make_graph(
        list(nodes),
        "pattern",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(CONTRIB, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(SEED)
    data = {name: generator.standard_normal(shape, dtype=np.float32) for name, shape in inputs.items()}
    return lambda: session.run(None, data)


def patterns() -> dict[str, dict[str, Callable[[], object]]]:
    """By pattern: the form that is replaced, then the form that a pass writes."""
    hidden, inner = (ROWS, TOKENS, HIDDEN), (ROWS, TOKENS, INNER)
    one, bias = np.ones(HIDDEN, np.float32), np.full(HIDDEN, 0.1, np.float32)
    wide = np.full(INNER, 0.1, np.float32)
    node = helper.make_node
    skip = node("SkipLayerNormalization", ["a", "b", "scale", "shift", "bias"], ["y"], domain=CONTRIB, epsilon=1e-12)
    norm = [
        node("Sum", ["a", "b", "bias"], ["s"]),
        node("LayerNormalization", ["s", "scale", "shift"], ["y"], epsilon=1e-12),
    ]
    gelu = [node("Sum", ["a", "bias"], ["s"]), node("Gelu", ["s"], ["y"])]
    norms = {"scale": one, "shift": bias, "bias": bias}
    two = {"a": hidden, "b": hidden}
    three = dict.fromkeys("qkv", hidden)
    return {
        "residual, bias and normalization": {
            "SkipLayerNormalization": graph_of([skip], two, norms),
            "Sum, LayerNormalization": graph_of(norm, two, norms),
        },
        "bias and Gelu": {
            "BiasGelu": graph_of(
                [node("BiasGelu", ["a", "bias"], ["y"], domain=CONTRIB)], {"a": inner}, {"bias": wide}
            ),
            "Sum, Gelu": graph_of(gelu, {"a": inner}, {"bias": wide}),
        },
        "attention": {
            "Attention on 4-D with transposes": graph_of(*split_attention(three)),
            "Attention on 3-D": graph_of(
                [node("Attention", list("qkv"), ["y"], q_num_heads=HEADS, kv_num_heads=HEADS)], three, {}
            ),
        },
    }


def split_attention(
    inputs: dict[str, tuple[int, int, int]],
) -> tuple[list[onnx.NodeProto], dict[str, tuple[int, int, int]], dict[str, np.ndarray]]:
    """Attention as it is exported: heads are cut out and moved before it, and moved back after it."""
    node, order = helper.make_node, (0, 2, 1, 3)
    nodes = []
    for name in inputs:
        nodes.append(node("Reshape", [name, "heads"], [f"{name}_cut"]))
        nodes.append(node("Transpose", [f"{name}_cut"], [f"{name}_moved"], perm=order))
    nodes.append(node("Attention", [f"{name}_moved" for name in inputs], ["attended"]))
    nodes.append(node("Transpose", ["attended"], ["back"], perm=order))
    nodes.append(node("Reshape", ["back", "merged"], ["y"]))
    shapes = {"heads": np.array([0, 0, HEADS, HIDDEN // HEADS]), "merged": np.array([0, 0, HIDDEN])}
    return nodes, inputs, shapes


def check_equal(forms: Mapping[str, Callable[[], object]]) -> None:
    """Stop if the two forms do not compute the same."""
    first, second = (np.asarray(form()) for form in forms.values())
    if not np.allclose(first, second, atol=1e-5):
        raise SystemExit(f"{' and '.join(forms)} differ by {np.abs(first - second).max():.2e}")


def single_patterns(rounds: int) -> None:
    """Compare the forms of each pattern."""
    print(f"\nsingle patterns, {ROWS} x {TOKENS} tokens, one thread, best of {rounds} passes of {REPEATS} runs")
    print(f"{'':<36}{'microseconds':>14}{'ratio':>8}")
    for forms in patterns().values():
        check_equal(forms)
        times = take_turns({name: lambda form=form: repeat(form) for name, form in forms.items()}, rounds)
        first = next(iter(times.values()))
        for name, seconds in times.items():
            print(f"{name:<36}{seconds / REPEATS * 1e6:>14.1f}{first / seconds:>8.2f}")


def repeat(form: Callable[[], object]) -> None:
    """One pass over a pattern."""
    for _ in range(REPEATS):
        form()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=500, help="number of real texts (default: 500)")
    parser.add_argument("--rounds", type=int, default=5, help="passes of each (default: 5)")
    options = parser.parse_args()
    whole_graph(options.texts, options.rounds)
    single_patterns(options.rounds)


if __name__ == "__main__":
    main()
