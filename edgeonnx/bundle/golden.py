"""The golden set: real texts with the tensors they become and the source model's answers, replayed wherever it counts.

It answers two questions on any machine: does the text path give the source tokenizer's ids, and does the graph give the
source model's numbers, in a padded batch as well as alone?
"""

from __future__ import annotations

import io
import tokenize
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from edgeonnx.errors import GoldenSetError, ManifestError, ValidationError
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.paths import check_relative_path
from edgeonnx.spec.report import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from edgeonnx.spec.parse import Node
    from edgeonnx.spec.report import Threshold
    from edgeonnx.spec.tensor import ModelSignature

    Tensors = Mapping[str, NDArray[np.generic]]

Scalar = TypeVar("Scalar", np.int64, np.float32)

GOLDEN_FILE = "golden.json"
GOLDEN_SCHEMA = "1.0"
MASK_INPUT = "attention_mask"

# What NumPy raises for bytes that are no array file: its header is a Python literal.
_NPY_ERRORS = (
    ValueError,
    TypeError,
    EOFError,
    SyntaxError,
    MemoryError,
    OverflowError,
    RecursionError,
    tokenize.TokenError,
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How far two sets of outputs are apart, over the positions that carry meaning.

    Attributes:
        max_abs_diff: Largest absolute difference of two elements.
        scaled_diff: The same, divided by the largest expected magnitude of that output if it is above 1. Equal to
            `max_abs_diff` for normalized embeddings and probabilities; for hidden states and logits it is relative.
        min_cosine: Smallest cosine between corresponding vectors (the last axis).
        worst_output: Name of the output with the largest `scaled_diff`.
        worst_row: Row (first axis) in which that difference lies.
    """

    max_abs_diff: float
    scaled_diff: float
    min_cosine: float
    worst_output: str
    worst_row: int

    def metrics(self) -> dict[str, float]:
        """The figures by the names that thresholds use."""
        return {
            "max_abs_diff": self.max_abs_diff,
            "scaled_diff": self.scaled_diff,
            "min_cosine": self.min_cosine,
        }

    @classmethod
    def worst(cls, comparisons: Iterable[Comparison]) -> Comparison:
        """One comparison with the worst of each figure, located where `scaled_diff` is worst."""
        found = list(comparisons)
        leader = max(found, key=lambda item: _nan_last(item.scaled_diff))
        return cls(
            max_abs_diff=max((item.max_abs_diff for item in found), key=_nan_last),
            scaled_diff=leader.scaled_diff,
            min_cosine=min((item.min_cosine for item in found), key=lambda value: -_nan_last(-value)),
            worst_output=leader.worst_output,
            worst_row=leader.worst_row,
        )


def _nan_last(value: float) -> float:
    return np.inf if np.isnan(value) else value


def compare_outputs(expected: Tensors, actual: Tensors, mask: NDArray[np.int64]) -> Comparison:
    """Compare two sets of outputs.

    Args:
        expected: Reference outputs by name; float, shape (rows, ...) or (rows, tokens, ...).
        actual: Outputs to judge, with the same names and shapes (or wider along the token axis: the rest is padding).
        mask: int64 (rows, tokens); per-token outputs are compared only where it is not 0.

    Raises:
        ValidationError: An output is missing or has another shape.
    """
    return Comparison.worst(_compare_one(name, value, actual, mask) for name, value in expected.items())


def _compare_one(name: str, expected: NDArray[np.generic], outputs: Tensors, mask: NDArray[np.int64]) -> Comparison:
    want = np.asarray(expected, dtype=np.float64)
    if name not in outputs:
        raise ValidationError(
            "an output is missing", where=f"output {name}", expected=name, found=", ".join(outputs) or "no output"
        )
    have = np.asarray(outputs[name], dtype=np.float64)
    if want.ndim == 3 and have.ndim == 3:  # per token: compare the tokens that exist
        have = have[:, : want.shape[1]]
    if want.shape != have.shape:
        raise ValidationError(
            "an output has another shape", where=f"output {name}", expected=str(want.shape), found=str(have.shape)
        )
    if want.ndim == 3:
        meant = (mask[:, : want.shape[1]] != 0)[:, :, None]
        want, have = np.where(meant, want, 0.0), np.where(meant, have, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        diff = np.abs(want - have)
        cosine = _cosine(want, have)
    rows = np.where(np.isnan(diff), np.inf, diff).reshape(len(diff), -1).max(axis=1)
    row = int(rows.argmax())
    largest = float(np.nan) if np.isinf(rows[row]) else float(rows[row])
    return Comparison(
        max_abs_diff=largest,
        scaled_diff=largest / max(1.0, float(np.abs(want).max())),
        min_cosine=float(cosine.min()),
        worst_output=name,
        worst_row=row,
    )


def _cosine(want: NDArray[np.float64], have: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosine along the last axis; two zero vectors are equal (1), a zero and another are not (0), NaN stays NaN."""
    product = (want * have).sum(axis=-1)
    norms = np.sqrt((want * want).sum(axis=-1)) * np.sqrt((have * have).sum(axis=-1))
    equal = (want == have).all(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        result = np.where(norms == 0, 0.0, product / norms)
    return np.where(equal, 1.0, result)


@dataclass(frozen=True, kw_only=True)
class GoldenSet:
    """Real texts, the graph's inputs for them as one padded batch, and the source model's outputs.

    Attributes:
        texts: One text a row.
        pairs: The second text of each row, for tasks that take two; otherwise None.
        inputs: int64 (rows, tokens) by input name.
        outputs: float32 by output name, each row as the source model gives it for that text alone; rows of per-token
            outputs are filled up with zeros.
    """

    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None
    inputs: dict[str, NDArray[np.int64]]
    outputs: dict[str, NDArray[np.float32]]

    @property
    def mask(self) -> NDArray[np.int64]:
        """The attention mask: int64 (rows, tokens)."""
        return self.inputs[MASK_INPUT]

    def to_files(self) -> dict[str, bytes]:
        """The golden set as the files of one asset, by name."""
        files = {
            GOLDEN_FILE: canonical_json(
                {
                    "schema_version": GOLDEN_SCHEMA,
                    "texts": list(self.texts),
                    "pairs": None if self.pairs is None else list(self.pairs),
                    "inputs": list(self.inputs),
                    "outputs": list(self.outputs),
                }
            )
        }
        for side, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            for name, value in tensors.items():
                files[f"{side}.{name}.npy"] = _to_npy(value)
        return files

    @classmethod
    def from_files(cls, read: Callable[[str], bytes]) -> GoldenSet:
        """Read a golden set.

        Args:
            read: Gives the bytes of a file of the asset by its name.

        Raises:
            ManifestError: A file does not hold what it must.
        """
        node = parse_document(read(GOLDEN_FILE), GOLDEN_FILE)
        node = node.version("schema_version", known=GOLDEN_SCHEMA)
        node.only(("schema_version", "texts", "pairs", "inputs", "outputs"))
        texts = tuple(item.typed(str) for item in node.required("texts").items())
        pairs = node.required("pairs")
        inputs = _read_side(read, node, "inputs", np.int64, len(texts))
        outputs = _read_side(read, node, "outputs", np.float32, len(texts))
        if not texts or MASK_INPUT not in inputs or not outputs:
            node.fail(f"needs texts, an input {MASK_INPUT} and an output")
        second = None if pairs.value is None else tuple(item.typed(str) for item in pairs.items())
        if second is not None and len(second) != len(texts):
            pairs.fail("has another length than texts", expected=f"{len(texts)} texts")
        _check_tensors(inputs, outputs)
        return cls(texts=texts, pairs=second, inputs=inputs, outputs=outputs)

    def check_names(self, signature: ModelSignature) -> None:
        """Check that the golden set has every input and output of the graph that it is for: what it lacks is unproven.

        Raises:
            ManifestError: It has others.
        """
        for side, tensors, specs in (
            ("inputs", self.inputs.keys(), signature.inputs),
            ("outputs", self.outputs.keys(), signature.outputs),
        ):
            expected = [spec.name for spec in specs]
            if set(expected) != set(tensors):
                raise ManifestError(
                    f"the golden set has other {side} than the component's signature",
                    where=f"{GOLDEN_FILE}: {side}",
                    expected=", ".join(expected),
                    found=", ".join(tensors),
                )

    def replay(self, run: Callable[[dict[str, NDArray[np.int64]]], Tensors], *, alone: bool = True) -> Comparison:
        """Run the golden inputs and compare.

        Args:
            run: Runs the graph: inputs by name to outputs by name.
            alone: Also run each row by itself, without padding.
        """
        found = [compare_outputs(self.outputs, run(self.inputs), self.mask)]
        for row in range(len(self.texts) if alone else 0):
            length = int(self.mask[row].sum())
            inputs = {name: np.ascontiguousarray(value[row : row + 1, :length]) for name, value in self.inputs.items()}
            expected = {
                name: value[row : row + 1, :length] if value.ndim == 3 else value[row : row + 1]
                for name, value in self.outputs.items()
            }
            found.append(_at_row(compare_outputs(expected, run(inputs), inputs[MASK_INPUT]), row))
        return Comparison.worst(found)

    def check_replay(self, comparison: Comparison, thresholds: Iterable[Threshold], *, where: str) -> None:
        """Judge a replay.

        Raises:
            GoldenSetError: A threshold is not kept.
        """
        verdict = judge(comparison.metrics(), thresholds)
        if not verdict.passed:
            raise GoldenSetError(
                "the golden set is not reproduced on this machine",
                where=where,
                details=(
                    *verdict.failures,
                    f"worst in output {comparison.worst_output} for the text {self.texts[comparison.worst_row]!r}",
                ),
                hint="do not serve this bundle here; check the runtime's version and the machine's instruction sets",
            )

    def check_tokens(self, encoded: Mapping[str, NDArray[np.int64]], *, where: str) -> None:
        """Compare what the text path gives for the golden texts with the golden inputs.

        Args:
            encoded: int64 (rows, tokens) by input name; names that the graph does not take are ignored.
            where: What is being checked, for the message.

        Raises:
            GoldenSetError: An id, a mask or a type differs.
        """
        for name, expected in self.inputs.items():
            found = encoded.get(name)
            if found is None:
                raise GoldenSetError(
                    "the text path does not give an input that the graph takes",
                    where=where,
                    expected=name,
                    found=", ".join(encoded),
                )
            if found.shape != expected.shape:
                raise GoldenSetError(
                    f"the text path gives {name} of another shape than the source's tokenizer",
                    where=where,
                    expected=str(expected.shape),
                    found=str(found.shape),
                )
            rows = np.flatnonzero((found != expected).any(axis=1))
            if len(rows):
                row = int(rows[0])
                raise GoldenSetError(
                    f"the text path gives other {name} than the source's tokenizer",
                    where=f"{where}, text {self.texts[row]!r}",
                    expected=str(expected[row].tolist()),
                    found=str(found[row].tolist()),
                )


def _at_row(comparison: Comparison, row: int) -> Comparison:
    return Comparison(
        max_abs_diff=comparison.max_abs_diff,
        scaled_diff=comparison.scaled_diff,
        min_cosine=comparison.min_cosine,
        worst_output=comparison.worst_output,
        worst_row=row,
    )


def _to_npy(value: NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(value), version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _read_side(
    read: Callable[[str], bytes], node: Node, side: str, dtype: type[Scalar], rows: int
) -> dict[str, NDArray[Scalar]]:
    """The tensors that the list `side` names, each from its own file."""
    tensors = {}
    for item in node.required(side).items():
        file = check_relative_path(f"{side}.{item.typed(str)}.npy", where=item.where)
        if "/" in file:
            item.fail("names a file in another folder")
        tensors[item.typed(str)] = _from_npy(read(file), file, dtype, rows)
    return tensors


def _check_tensors(inputs: dict[str, NDArray[np.int64]], outputs: dict[str, NDArray[np.float32]]) -> None:
    """Inputs are one batch with padding on the right, each row with a token; per-token outputs are as wide."""
    mask = inputs[MASK_INPUT]
    lengths = mask.sum(axis=1)
    if mask.ndim != 2 or not np.array_equal(mask, np.arange(mask.shape[1]) < lengths[:, None]) or lengths.min() < 1:
        raise ManifestError(
            "is not a mask", where=f"inputs.{MASK_INPUT}.npy", expected="in each row ones, then zeros, at least one 1"
        )
    wrong = [f"inputs.{name}.npy" for name, value in inputs.items() if value.shape != mask.shape]
    wrong += [
        f"outputs.{name}.npy" for name, value in outputs.items() if value.ndim == 3 and value.shape[1] != mask.shape[1]
    ]
    if wrong:
        raise ManifestError("has another number of tokens than the mask", where=wrong[0], expected=str(mask.shape))


def _from_npy(data: bytes, file: str, dtype: type[Scalar], rows: int) -> NDArray[Scalar]:
    try:
        value = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except _NPY_ERRORS as error:
        raise ManifestError("is not a NumPy array file", where=file, found=str(error)[:200]) from None
    if value.dtype != dtype or value.ndim not in (2, 3) or len(value) != rows or value.size == 0:
        raise ManifestError(
            "holds another array than the golden set needs",
            where=file,
            expected=f"{np.dtype(dtype)} with {rows} rows",
            found=f"{value.dtype} of shape {value.shape}",
        )
    return value
