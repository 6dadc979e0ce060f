"""Exit codes, one per kind of failure, so that scripts and CI can tell them apart."""

from __future__ import annotations

from edgeonnx import errors

OK = 0
UNEXPECTED = 1
USAGE = 2
SOURCE = 3
VALIDATION = 4
BUNDLE = 5
DEVICE = 6
MISSING_LIBRARY = 7
INTERRUPTED = 130

# The first class that an error is an instance of decides.
_CODES: tuple[tuple[type[errors.EdgeOnnxError], int], ...] = (
    (errors.UsageError, USAGE),
    (errors.SourceError, SOURCE),
    (errors.ExportError, VALIDATION),
    (errors.ValidationError, VALIDATION),
    (errors.BundleError, BUNDLE),
    (errors.GoldenSetError, DEVICE),
    (errors.SelectionError, DEVICE),
    (errors.RuntimeUnavailableError, MISSING_LIBRARY),
)

HELP = """\b
Exit codes:
  0    success
  1    an unexpected failure (a bug: please report it)
  2    wrong usage, or the output exists already
  3    the source model cannot be used
  4    export or validation failed; nothing was written
  5    the bundle is damaged, or is not a bundle
  6    the bundle does not give its golden answers on this machine
  7    a library is missing
  130  interrupted"""


def exit_code(error: errors.EdgeOnnxError) -> int:
    """The exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), UNEXPECTED)
