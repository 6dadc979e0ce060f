"""Targets of pooling, scores, sampling, floats and images."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from tests.fuzz.arrays import bits, broken, floats, generator_of
from tests.fuzz.target import Attempt, Target, same_refusal, twins

ROWS = (0, 1, 1, 2, 3, 5)
COLUMNS = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100)


def _refuses_broken(
    rng: random.Random, kinds: Mapping[str, ModuleType], kernel: str, arguments: dict[str, Any], outputs: set[str]
) -> None:
    """Fail unless every twin refuses broken arguments, with the same words, before anything is written."""
    before = {name: arguments[name].copy() for name in outputs}
    changed = broken(rng, arguments, outputs)
    actions = {kind: lambda twin=twin: getattr(twin, kernel)(**changed) for kind, twin in kinds.items()}
    same_refusal(actions, TypeError, ValueError)
    for name in outputs:
        np.testing.assert_array_equal(arguments[name], before[name], err_msg=f"{kernel}: {name} was written")


def _close(found: np.ndarray, expected: np.ndarray, tolerance: np.ndarray, what: str) -> None:
    """Fail unless `found` is the float64 `expected` within float32 rounding and `tolerance`, both absolute."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = expected.astype(np.float32)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded), err_msg=what)
        bound = 2e-7 * np.abs(expected) + tolerance + 1e-44
        wrong = ~((found == rounded) | (np.abs(found.astype(np.float64) - expected) <= bound) | np.isnan(rounded))
        wrong &= ~(np.isinf(found) & (np.abs(expected) > 3.4e38) & (np.sign(found) == np.sign(expected)))
    assert not wrong.any(), f"{what}: found {found[wrong][:5]}, expected {expected[wrong][:5]}"


def _pooled(kernel: str, hidden: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What a pooling kernel must write, float64, and the sum of magnitudes behind each number."""
    rows, _, dim = hidden.shape
    empty = -np.inf if kernel == "masked_max_into" else 0.0
    expected, scale = np.full((rows, dim), empty), np.zeros((rows, dim))
    for row in range(rows):
        places = np.flatnonzero(mask[row])
        kept = hidden[row, places].astype(np.float64)
        if kernel == "first_token_into" and hidden.shape[1]:
            expected[row] = hidden[row, places[0] if len(places) else 0]
        elif not len(places):
            continue
        elif kernel == "last_token_into":
            expected[row] = kept[-1]
        elif kernel == "masked_max_into":
            expected[row] = kept.max(axis=0)
        else:
            weights = places - places[0] + 1.0 if "weighted" in kernel else np.ones(len(places))
            weighed = kept * weights[:, None]
            divisor = weights.sum() ** (0.5 if "sqrt" in kernel else 1.0)
            expected[row], scale[row] = weighed.sum(axis=0) / divisor, np.abs(weighed).sum(axis=0)
    return expected, scale


POOLING = (
    "masked_mean_into", "masked_mean_sqrt_into", "masked_weighted_mean_into", "masked_max_into", "first_token_into",
    "last_token_into",
)  # fmt: skip


def _open_pooling() -> Attempt:
    kinds = twins("_pooling", "pooling")

    def attempt(rng: random.Random) -> None:
        rows, tokens, dim = rng.choice(ROWS), rng.choice((0, 1, 2, 5, 9)), rng.choice(COLUMNS)
        hidden = floats(rng, (rows, tokens, dim))
        mask = (generator_of(rng).random((rows, tokens)) < rng.choice((0.0, 0.5, 0.9, 1.0))).astype(np.int64)
        kernel = rng.choice(POOLING)
        arguments = {"hidden": hidden, "mask": mask, "out": np.full((rows, dim), -7, dtype=np.float32)}
        if rng.random() < 0.2:
            _refuses_broken(rng, kinds, kernel, arguments, {"out"})
            return
        with np.errstate(over="ignore", invalid="ignore"):
            expected, scale = _pooled(kernel, hidden, mask)
        for kind, twin in kinds.items():
            out = np.full((rows, dim), -7, dtype=np.float32)
            getattr(twin, kernel)(hidden, mask, out)
            _close(out, expected, 1e-12 * scale, f"{kind}, {kernel}, hidden {hidden.shape}, mask {mask.tolist()}")

    return attempt


def _open_normalize() -> Attempt:
    kinds = twins("_pooling", "pooling")

    def attempt(rng: random.Random) -> None:
        x = floats(rng, (rng.choice(ROWS), rng.choice(COLUMNS)))
        arguments = {"x": x, "out": np.full_like(x, -7)}
        if rng.random() < 0.2:
            _refuses_broken(rng, kinds, "l2_normalize_into", arguments, {"out"})
            return
        wide = x.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = wide / np.maximum(np.sqrt((wide * wide).sum(axis=1, keepdims=True)), 1e-12)
        for kind, twin in kinds.items():
            out = np.full_like(x, -7)
            twin.l2_normalize_into(x, out)
            _close(out, expected, 1e-12 * np.ones_like(wide), f"{kind} of {x!r}")
            same = x.copy()
            twin.l2_normalize_into(same, same)
            np.testing.assert_array_equal(same, out, err_msg=f"{kind}: in place")

    return attempt


def _log_softmax(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    if not wide.size:
        return wide
    shifted = wide - wide.max(axis=1, keepdims=True)
    shifted[np.isnan(shifted).any(axis=1)] = np.nan
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x.astype(np.float64)))


ELEMENTWISE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax_into": lambda x: np.exp(_log_softmax(x)),
    "log_softmax_into": _log_softmax,
    "sigmoid_into": _sigmoid,
}


def _exp_tolerance(kernel: str, expected: np.ndarray) -> np.ndarray:
    """What float32 costs: exp(y) is off by |y| roundings of its argument, and is 0 where float32 is subnormal."""
    if kernel == "log_softmax_into":
        return np.full_like(expected, 2e-6)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(1.2e-7 * expected * (np.abs(np.log(expected)) + 8)) + 2e-38


def _open_scores() -> Attempt:
    kinds = twins("_scores", "scores")

    def attempt(rng: random.Random) -> None:
        x = floats(rng, (rng.choice(ROWS), rng.choice(COLUMNS)))
        kernel = rng.choice(list(ELEMENTWISE))
        if rng.random() < 0.2:
            _refuses_broken(rng, kinds, kernel, {"x": x, "out": np.full_like(x, -7)}, {"out"})
            return
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            expected = ELEMENTWISE[kernel](x)
            tolerance = _exp_tolerance(kernel, expected)
        for kind, twin in kinds.items():
            out = np.full_like(x, -7)
            getattr(twin, kernel)(x, out)
            _close(out, expected, tolerance, f"{kind}, {kernel} of {x!r}")

    return attempt


def _open_top_k() -> Attempt:
    kinds = twins("_scores", "scores")

    def attempt(rng: random.Random) -> None:
        x = floats(rng, (rng.choice(ROWS), rng.choice(COLUMNS[1:])))
        k = rng.randint(1, x.shape[1])
        outputs = {
            "values": np.full((x.shape[0], k), -7, dtype=np.float32),
            "indices": np.full((x.shape[0], k), -7, dtype=np.int64),
        }
        best = np.full(x.shape[0], -7, dtype=np.int64)
        if np.isnan(x).any():
            same_refusal({kind: lambda t=t: t.top_k_into(x, k, **outputs) for kind, t in kinds.items()}, ValueError)
            same_refusal({kind: lambda t=t: t.argmax_into(x, best) for kind, t in kinds.items()}, ValueError)
            assert (best == -7).all()
            assert all((output == -7).all() for output in outputs.values())
            return
        if rng.random() < 0.2:
            _refuses_broken(rng, kinds, "top_k_into", {"x": x, "k": k, **outputs}, set(outputs))
            return
        for kind, twin in kinds.items():
            twin.top_k_into(x, k, **outputs)
            twin.argmax_into(x, best)
            for row in range(x.shape[0]):
                order = sorted(range(x.shape[1]), key=lambda column: (-x[row, column], column))[:k]
                assert outputs["indices"][row].tolist() == order, (kind, x[row], k)
                assert outputs["values"][row].tolist() == x[row, order].tolist(), (kind, x[row], k)
                assert best[row] == order[0], (kind, x[row])

    return attempt


def _open_floats() -> Attempt:
    kinds = twins("_floats", "floats")

    def attempt(rng: random.Random) -> None:
        shape = (rng.choice(ROWS), rng.choice(COLUMNS))
        x = bits(rng, shape) if rng.random() < 0.5 else floats(rng, shape)
        if not np.isfinite(x).all():
            same_refusal({kind: lambda twin=twin: twin.json_rows(x) for kind, twin in kinds.items()}, ValueError)
            x = np.where(np.isfinite(x), x, np.float32(1))
        rows = {kind: twin.json_rows(x) for kind, twin in kinds.items()}
        coded = {kind: [_bytes(row) for row in twin.base64_rows(x)] for kind, twin in kinds.items()}
        for kind in kinds:
            read = np.array([json.loads(row) for row in rows[kind]], dtype=np.float32).reshape(x.shape)
            assert read.tobytes() == np.ascontiguousarray(x).tobytes(), (kind, x, rows[kind])
            assert b"".join(map(base64.b64decode, coded[kind])) == x.astype("<f4").tobytes(), kind
        assert len({b"".join(found) for found in rows.values()}) == 1, (rows, x)

    return attempt


def _bytes(value: str | bytes) -> bytes:
    return value.encode("ascii") if isinstance(value, str) else value


TARGETS = [
    Target(
        name="pooling",
        invariant="pooling follows its formula in float64, NaN and infinity included; bad arguments are refused "
        "alike by both twins and nothing is written",
        open=_open_pooling,
    ),
    Target(
        name="normalize",
        invariant="L2 normalization follows its formula in float64, in place too; bad arguments are refused alike",
        open=_open_normalize,
    ),
    Target(
        name="scores",
        invariant="softmax, log softmax and sigmoid follow their formulas in float64; bad arguments are refused alike",
        open=_open_scores,
    ),
    Target(
        name="top-k",
        invariant="top k and argmax are those of a full sort, lower index first; NaN and bad arguments are refused",
        open=_open_top_k,
    ),
    Target(
        name="floats",
        invariant="JSON and base64 give back the same float32 bits; both twins write the same JSON",
        open=_open_floats,
    ),
]
