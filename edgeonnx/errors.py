"""The one error tree of edgeonnx, on the build host and on the device.

    EdgeOnnxError
    ├── UsageError               the command or the request to build cannot be carried out as written
    ├── SourceError              the source model cannot be used
    │   ├── SourceNotFoundError      no such directory, file or hub id
    │   ├── UnsafeSourceError        weights that could run code when read (pickle)
    │   ├── CorruptSourceError       truncated, inconsistent or unreadable files
    │   └── UnsupportedModelError    an architecture, module or setting that edgeonnx does not know
    ├── ExportError              the exporter failed
    ├── ValidationError          the exported graph is not what it must be
    │   └── ParityError              it does not agree with the source model
    ├── QuantizationError        a graph cannot be quantized by the recipe
    ├── GateError                no candidate of a variant keeps the thresholds
    ├── BundleError              a bundle cannot be read or written
    │   ├── NotABundleError          the path holds no bundle
    │   ├── ManifestError            a metadata file breaks the schema; `where` names the field
    │   ├── SchemaVersionError       written for a format version that this release does not read
    │   ├── UnsafePathError          a path that leaves the bundle: absolute, `..`, or a link
    │   └── IntegrityError           bytes on disk differ from what contents.json says
    ├── GoldenSetError           a loaded model does not reproduce its golden set on this machine
    ├── SelectionError           no variant of the bundle fits this device
    ├── RuntimeUnavailableError  a library that this operation needs is missing or does not load
    ├── AgentError               an agent that was asked over the network does not answer, or refuses
    ├── RepositoryError          a repository of releases cannot be used
    │   ├── KeyStoreError            a signing key is missing, or its passphrase is wrong
    │   ├── RepositoryBusyError      another process publishes to it
    │   ├── UntrustedError           metadata that is not signed as it must be, is too old, or goes back
    │   ├── FetchError               a file could not be fetched: the next try may succeed
    │   └── BlobError                a blob does not decode to the content that it was asked for
    ├── UpdateError              the device cannot take or give back a release
    │   ├── NotEnrolledError         it knows no repository
    │   ├── StateError               its state directory is damaged, read-only, or in use by another process
    │   ├── NoSpaceError             the disk has no room
    │   └── CandidateError           a release did not prove itself here
    └── ServingError             a request that the agent does not answer with a result
        ├── InvalidRequestError      the request is wrong; `where` names the field
        │   └── ContextLengthError       the prompt is longer than the model's context
        ├── RequestTooLargeError     a stated limit of the agent is exceeded
        ├── UnsupportedEncodingError the body's compression is not one that the agent reads
        ├── SlowClientError          the body did not arrive in time
        ├── ClientGoneError          the client left before its answer was ready
        ├── UnauthorizedError        no token, or a wrong one
        ├── ForbiddenError           the token does not allow this operation
        ├── ModelNotFoundError       no model of that name or version
        ├── MemoryBudgetError        a model does not fit into the memory that the operator allows
        ├── OverloadedError          the answer could not come in time: try again later
        ├── DeadlineExceededError    the request's time is over
        ├── NotReadyError            the model is still loading, or the agent is stopping
        └── InferenceError           the runtime failed on a well-formed request
            └── ProviderLostError        an execution provider failed: the next one may answer

Every message answers four questions: what was expected, what was found, where, and what to do. The parts are kept
apart so that the command line, the API and `--json` can each show them in their own way.
"""

from __future__ import annotations

from typing import ClassVar


class EdgeOnnxError(Exception):
    """Base of every error that edgeonnx raises on purpose.

    Args:
        message: What went wrong, one sentence without a final stop.
        where: File, field, node or row that the message is about.
        expected: What would have been right.
        found: What was there instead.
        hint: What the user can do about it.
        details: Further facts, one line each (for example every damaged file).

    Attributes:
        exit_code: What a command exits with; subclasses share the code of their kind of failure.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
        details: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.expected = expected
        self.found = found
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        """The message and its parts in one line."""
        parts = [self.message if self.where is None else f"{self.where}: {self.message}"]
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.found is not None:
            parts.append(f"found {self.found}")
        parts.extend(self.details)
        if self.hint is not None:
            parts.append(self.hint)
        return "; ".join(parts)

    def to_dict(self) -> dict[str, object]:
        """The error as plain data for `--json`; absent parts are left out."""
        fields = {
            "error": type(self).__name__,
            "message": self.message,
            "where": self.where,
            "expected": self.expected,
            "found": self.found,
            "hint": self.hint,
            "details": list(self.details) or None,
        }
        return {key: value for key, value in fields.items() if value is not None}


class EdgeOnnxWarning(UserWarning):
    """Base of the warnings that edgeonnx issues; the test suite turns them into errors."""


class UsageError(EdgeOnnxError):
    """The command or the request to build cannot be carried out as written."""

    exit_code = 2


class SourceError(EdgeOnnxError):
    """The source model cannot be used."""

    exit_code = 3


class SourceNotFoundError(SourceError):
    """No such directory, file or hub id."""


class UnsafeSourceError(SourceError):
    """Weights in a format that can run code when read (pickle). They are never opened."""


class CorruptSourceError(SourceError):
    """Truncated, inconsistent or unreadable source files."""


class UnsupportedModelError(SourceError):
    """An architecture, module or setting that edgeonnx does not know."""


class ExportError(EdgeOnnxError):
    """The exporter failed."""

    exit_code = 4


class ValidationError(EdgeOnnxError):
    """The exported graph is not what it must be."""

    exit_code = 4


class ParityError(ValidationError):
    """The exported graph does not agree with the source model."""


class QuantizationError(EdgeOnnxError):
    """A graph cannot be quantized by the recipe that was asked for."""

    exit_code = 4


class GateError(EdgeOnnxError):
    """No candidate of a variant keeps the thresholds; `details` has the worst inputs."""

    exit_code = 8


class BundleError(EdgeOnnxError):
    """A bundle cannot be read or written."""

    exit_code = 5


class NotABundleError(BundleError):
    """The path holds no bundle."""


class ManifestError(BundleError):
    """A metadata file breaks the schema; `where` names the file and the field."""


class SchemaVersionError(BundleError):
    """The bundle was written for a format version that this release does not read."""


class UnsafePathError(BundleError):
    """A path that leaves the bundle: absolute, with `..`, or through a link."""


class IntegrityError(BundleError):
    """Bytes on disk differ from what contents.json says."""


class GoldenSetError(EdgeOnnxError):
    """A loaded model does not reproduce its golden set on this machine."""

    exit_code = 6


class SelectionError(EdgeOnnxError):
    """No variant of the bundle fits this device."""

    exit_code = 6


class RuntimeUnavailableError(EdgeOnnxError):
    """A library that this operation needs is missing or does not load."""

    exit_code = 7


class AgentError(EdgeOnnxError):
    """An agent that was asked over the network does not answer, or refuses; `where` names the field, or its address."""

    exit_code = 12


class RepositoryError(EdgeOnnxError):
    """A repository of releases cannot be used."""

    exit_code = 9


class KeyStoreError(RepositoryError):
    """A signing key is missing, or its passphrase is wrong."""


class RepositoryBusyError(RepositoryError):
    """Another process publishes to the repository."""


class UntrustedError(RepositoryError):
    """Metadata that is not signed as it must be, is too old, or goes back behind what was verified before."""


class FetchError(RepositoryError):
    """A file could not be fetched; nothing is wrong with the device, and the next try may succeed."""

    exit_code = 10


class BlobError(RepositoryError):
    """A blob does not decode to the content that it was asked for."""


class UpdateError(EdgeOnnxError):
    """The device cannot take or give back a release."""

    exit_code = 11


class NotEnrolledError(UpdateError):
    """The device knows no repository."""


class StateError(UpdateError):
    """The state directory is damaged, read-only, or in use by another process."""


class NoSpaceError(UpdateError):
    """The disk has no room for what the release needs."""


class CandidateError(UpdateError):
    """A release did not prove itself on this device."""


class ServingError(EdgeOnnxError):
    """A request that the agent does not answer with a result."""


class InvalidRequestError(ServingError):
    """The request is wrong; `where` names the field."""


class ContextLengthError(InvalidRequestError):
    """The prompt is longer than the model's context has room for."""


class RequestTooLargeError(ServingError):
    """A stated limit of the agent is exceeded."""


class UnsupportedEncodingError(ServingError):
    """The body's compression is not one that the agent reads."""


class SlowClientError(ServingError):
    """The body did not arrive in time."""


class ClientGoneError(ServingError):
    """The client left before its answer was ready: nobody reads this error."""


class UnauthorizedError(ServingError):
    """No token, or a wrong one."""


class ForbiddenError(ServingError):
    """The token does not allow this operation."""


class ModelNotFoundError(ServingError):
    """No model of that name or version."""


class MemoryBudgetError(ServingError):
    """A model does not fit into the memory that the operator allows."""

    exit_code = 6


class OverloadedError(ServingError):
    """The answer could not come in time, so the request is not taken.

    Args:
        message: As for every error.
        retry_after: Seconds after which it is worth trying again.
        **parts: As for every error.
    """

    def __init__(self, message: str, *, retry_after: float, **parts: str | None) -> None:
        super().__init__(
            message,
            where=parts.get("where"),
            expected=parts.get("expected"),
            found=parts.get("found"),
            hint=parts.get("hint"),
        )
        self.retry_after = retry_after


class DeadlineExceededError(ServingError):
    """The request's time is over before its answer was ready."""


class NotReadyError(ServingError):
    """The model is still loading, or the agent is stopping."""


class InferenceError(ServingError):
    """The runtime failed on a well-formed request."""


class ProviderLostError(InferenceError):
    """An execution provider failed while it served (out of memory, device lost): the next one may answer."""


def first_line(error: BaseException, limit: int = 400) -> str:
    """The first line of a foreign exception's text, for `found`: other libraries print pages."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip()[:limit] if lines else type(error).__name__


def printable(text: object) -> str:
    """Text from a file, fit for a terminal: what is not printable (escape sequences, for one) becomes an escape."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in shown)
