"""Two questions about sessions on the CPU. Does I/O binding save time, and does a stored optimized graph open sooner?

Binding: the same batches through `run` (the peer), through the agent's own binding (`device_agent.inference.binding`),
and through a bare binding whose inputs are bound once and whose outputs ONNX Runtime allocates. Stored graph: the
bundle's graph opened with each level of optimization, and the graph that ONNX Runtime stored after its own
optimization (level "all"), opened without any. External tensors stay in the bundle's folder in both cases.

One thread, everything in turn, the best single call counts. Run it with
`PYTHONPATH=. python bench/binding.py BUNDLE [--rounds N]`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime as ort

from device_agent.inference.binding import Binding
from edgeonnx.bundle import open_bundle
from edgeonnx.spec.manifest import EXTERNAL_FOLDER_OPTION

SHAPES = ((1, 8), (1, 32), (8, 16), (16, 32))
LEVELS = {
    "disable": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
PROVIDERS = ["CPUExecutionProvider"]


def options(tensors: Path | None, level: str = "all", store: Path | None = None) -> ort.SessionOptions:
    """Options as the agent sets them, with another level of optimization, or storing the optimized graph."""
    made = ort.SessionOptions()
    made.intra_op_num_threads = 1
    made.log_severity_level = 3
    made.graph_optimization_level = LEVELS[level]
    made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if tensors is not None:
        made.add_session_config_entry(EXTERNAL_FOLDER_OPTION, str(tensors))
    if store is not None:
        made.optimized_model_filepath = str(store)
    return made


def best(work: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best time of a single call of each, in milliseconds, all in turn: the least that others disturbed."""
    found = dict.fromkeys(work, float("inf"))
    for _ in range(rounds):
        for name, run in work.items():
            begun = time.perf_counter()
            run()
            found[name] = min(found[name], (time.perf_counter() - begun) * 1000)
    return found


def bench_binding(session: ort.InferenceSession, rounds: int) -> None:
    """Print what a run takes with and without I/O binding."""
    names, run_options = [node.name for node in session.get_outputs()], ort.RunOptions()
    binding, bare = Binding(session), session.io_binding()
    print(f"  {'rows x tokens':15} {'run':>9} {'bound':>9} {'bare':>9}   bound / run")
    for rows, tokens in SHAPES:
        inputs = {
            node.name: np.full((rows, tokens), 1 if "mask" in node.name else 0 if "type" in node.name else 2000)
            for node in session.get_inputs()
        }
        bare.clear_binding_inputs()
        bare.clear_binding_outputs()
        for name, array in inputs.items():
            bare.bind_cpu_input(name, array)
        for name in names:
            bare.bind_output(name)

        def run_bare() -> object:
            session.run_with_iobinding(bare)
            return bare.copy_outputs_to_cpu()

        found = best(
            {
                "run": lambda inputs=inputs: session.run(names, inputs, run_options),
                "bound": lambda inputs=inputs: binding.run(inputs, names, run_options),
                "bare": run_bare,
            },
            max(10, rounds * 8 // rows),
        )
        print(
            f"  {f'{rows} x {tokens}':15} {found['run']:6.2f} ms {found['bound']:6.2f} ms {found['bare']:6.2f} ms"
            f"   {found['bound'] / found['run']:.2f}"
        )


def bench_stored(model: Path, tensors: Path | None, rounds: int) -> None:
    """Print what opening takes at each level, and from a stored graph."""
    with TemporaryDirectory() as folder:
        stored = Path(folder) / "stored.onnx"
        ort.InferenceSession(str(model), options(tensors, store=stored), providers=PROVIDERS)

        def opening(path: Path, level: str) -> Callable[[], object]:
            return lambda: ort.InferenceSession(str(path), options(tensors, level), providers=PROVIDERS)

        work = {level: opening(model, level) for level in LEVELS}
        work["stored"] = opening(stored, "disable")
        found = best(work, rounds)
        print("  open with level " + ", ".join(f"{name} {found[name]:.1f} ms" for name in LEVELS))
        print(
            f"  stored graph ({stored.stat().st_size >> 10} KiB) {found['stored']:.1f} ms, "
            f"{found['all'] - found['stored']:.1f} ms sooner than level all; ratio {found['all'] / found['stored']:.2f}"
        )


def main() -> None:
    """Run both for every variant of a bundle that the CPU takes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    bundle = open_bundle(arguments.bundle)
    component = bundle.manifest.entry_component
    for variant in component.variants:
        if variant.requirements.provider not in PROVIDERS:
            continue
        model, tensors = bundle.model_path(component.name, variant), bundle.tensors_path(variant)
        print(f"{bundle.manifest.name} {variant.name}, onnxruntime {ort.__version__}")
        bench_stored(model, tensors, arguments.rounds)
        bench_binding(ort.InferenceSession(str(model), options(tensors), providers=PROVIDERS), arguments.rounds)


if __name__ == "__main__":
    main()
