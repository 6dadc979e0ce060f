"""Random arrays for the number kernels, and arguments that they must refuse."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e-38, 3.4028235e38, -3.4028235e38, float("inf"), float("-inf"), float("nan")]


def generator_of(rng: random.Random) -> np.random.Generator:
    """NumPy's random numbers, from ours."""
    return np.random.default_rng(rng.getrandbits(63))


def floats(rng: random.Random, shape: tuple[int, ...], *, finite: bool = False) -> np.ndarray:
    """float32 of any scale; now and then with repeated, extreme and, unless `finite`, non-finite values among them."""
    numbers = generator_of(rng)
    found = numbers.standard_normal(shape) * 10.0 ** rng.choice((-30, -3, 0, 0, 1, 2, 30))
    if rng.random() < 0.3:
        found = np.round(found)  # ties
    found = found.astype(np.float32)
    if found.size and rng.random() < 0.4:
        places = numbers.integers(0, found.size, rng.randint(1, 4))
        found.flat[places] = rng.choices(SPECIAL[:8] if finite else SPECIAL, k=len(places))
    return found


def bits(rng: random.Random, shape: tuple[int, ...]) -> np.ndarray:
    """float32 with any finite bit pattern: subnormal numbers, both zeros, the largest."""
    patterns = generator_of(rng).integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)
    return np.where(np.isfinite(patterns), patterns, np.float32(0)).astype(np.float32)


def broken(rng: random.Random, arguments: Mapping[str, Any], outputs: set[str]) -> dict[str, Any]:
    """`arguments` with one array that no kernel may take.

    Args:
        rng: Chooses which array, and what is wrong with it.
        arguments: By name; the arrays are C-contiguous.
        outputs: Names of those that the kernel writes.
    """
    name = rng.choice([name for name, value in arguments.items() if isinstance(value, np.ndarray)])
    array: np.ndarray = arguments[name]
    kinds = ["dtype", "dimensions", "rows", "list", "none", *(["readonly"] if name in outputs else [])]
    strided = np.repeat(array, 2, axis=-1)[..., ::2]
    if not strided.flags.c_contiguous:
        kinds.append("strided")
    changed = {
        "dtype": lambda: array.astype(rng.choice((np.complex64, array.dtype.newbyteorder(), object))),
        "dimensions": lambda: array[np.newaxis],
        "rows": lambda: np.zeros((array.shape[0] + 1, *array.shape[1:]), dtype=array.dtype),
        "list": array.tolist,
        "none": lambda: None,
        "readonly": lambda: _read_only(array),
        "strided": lambda: strided,
    }[rng.choice(kinds)]()
    return {**arguments, name: changed}


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
