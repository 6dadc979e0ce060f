"""Exit codes: one for each kind of failure, all of them documented."""

from __future__ import annotations

import inspect
import re

import pytest

from edgeonnx import errors
from edgeonnx.cli import exits
from edgeonnx.errors import EdgeOnnxError, ServingError

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, EdgeOnnxError) and kind is not EdgeOnnxError and not issubclass(kind, ServingError)
]
DOCUMENTED = {int(code) for code in re.findall(r"^  (\d+) ", exits.HELP, flags=re.MULTILINE)}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_of_the_build_host_has_a_documented_code(kind: type[EdgeOnnxError]) -> None:
    code = kind("m").exit_code
    assert code not in (0, 1)
    assert code in DOCUMENTED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("m"), 2),
        (errors.SourceNotFoundError("m"), 3),
        (errors.UnsafeSourceError("m"), 3),
        (errors.ExportError("m"), 4),
        (errors.ParityError("m"), 4),
        (errors.IntegrityError("m"), 5),
        (errors.UnsafePathError("m"), 5),
        (errors.GoldenSetError("m"), 6),
        (errors.SelectionError("m"), 6),
        (errors.RuntimeUnavailableError("m"), 7),
        (EdgeOnnxError("m"), 1),
    ],
)
def test_the_codes(error: EdgeOnnxError, code: int) -> None:
    assert error.exit_code == code


def test_the_help_documents_no_code_that_nothing_gives() -> None:
    given = {kind("m").exit_code for kind in CLASSES}
    assert given | {0, 1, exits.INTERRUPTED} == DOCUMENTED
