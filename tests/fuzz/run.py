"""Runs fuzz targets: seeded random inputs until the time is over, and the seed of what fails.

    python -m tests.fuzz.run TARGET... [--seconds 60] [--seed 0] [--count N]
    python -m tests.fuzz.run all --seconds 10
    python -m tests.fuzz.run strings --count 200000
    python -m tests.fuzz.run code-points
    python -m tests.fuzz.run --list

Attempt i of a run has the seed SEED + i; a failure prints the command that repeats it alone. `strings` and
`code-points` are the large comparisons with the `tokenizers` library, for every real tokenizer, in batches.
"""

from __future__ import annotations

import argparse
import math
import sys
import traceback

from tests.fuzz.registry import TARGETS
from tests.fuzz.target import Target, attempt_until

COMPARISONS = ("strings", "code-points")


def run(target: Target, seed: int, count: int | None, seconds: float) -> bool:
    """Run a target, print what came of it, and return whether its invariant held."""
    outcome = attempt_until(target.open(), seed, count=count, seconds=seconds)
    rate = outcome.attempts / max(outcome.seconds, 1e-9)
    last = seed + max(outcome.attempts - 1, 0)
    line = f"{target.name:<12}{outcome.attempts:>9} inputs{rate:>10.0f}/s   seeds {seed} to {last}   "
    if outcome.error is None:
        print(f"{line}ok: {target.invariant}", flush=True)
        return True
    print(f"{line}FAILED: {target.invariant}")
    traceback.print_exception(outcome.error, file=sys.stdout)
    print(f"repeat it: python -m tests.fuzz.run {target.name} --count 1 --seed {outcome.failed}", flush=True)
    return False


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description="Fuzz the kernels of the extension.")
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"{', '.join(COMPARISONS)}, all, or: {', '.join(TARGETS)}"
    )
    parser.add_argument(
        "--seconds", type=float, default=None, help="for each target (60, or no end if --count is given)"
    )
    parser.add_argument("--count", type=int, default=None, help="inputs of each target (no end; 200000 strings)")
    parser.add_argument("--seed", type=int, default=0, help="of the first input")
    parser.add_argument("--list", action="store_true", help="print the targets and their invariants")
    arguments = parser.parse_args()
    if arguments.list or not arguments.targets:
        for target in TARGETS.values():
            print(f"{target.name:<12} {target.invariant}")
        return
    names = [name for given in arguments.targets for name in (TARGETS if given == "all" else [given])]
    unknown = [name for name in names if name not in TARGETS and name not in COMPARISONS]
    if unknown:
        parser.error(
            f"expected targets among {', '.join(COMPARISONS)}, all, {', '.join(TARGETS)}, found {', '.join(unknown)}"
        )
    seconds = arguments.seconds or (math.inf if arguments.count else 60.0)
    held = [_run_named(name, arguments.seed, arguments.count, seconds) for name in names]
    sys.exit(0 if all(held) else 1)


def _run_named(name: str, seed: int, count: int | None, seconds: float) -> bool:
    if name in TARGETS:
        return run(TARGETS[name], seed, count, seconds)
    from tests.fuzz.compare import compare_code_points, compare_strings

    return compare_code_points() if name == "code-points" else compare_strings(seed, count or 200_000)


if __name__ == "__main__":
    main()
