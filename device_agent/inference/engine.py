"""A loaded graph that goes on when its execution provider does not.

The session of the preferred provider runs batches until it says that its device is lost. Then one thread opens a
session on the next provider, on the variant that the selection takes there; the threads whose runs failed meanwhile
wait for it, and each runs its batch once more on the new session. No run is tried a third time.

A decoder's session is run by one thread, which fills its caches anew on the next session (`DecoderEngine`).

A batch whose inputs turn out to be wrong on the next provider has not proven that the first one is lost, so the first
one stays: a client must not be able to take a GPU out of service.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from device_agent.inference.devices.providers import label_of
from device_agent.inference.session import OPTIMIZATION, DeviceMemoryError
from edgeonnx.errors import EdgeOnnxError, InvalidRequestError, ProviderLostError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from device_agent.inference.devices.assignment import Assignment
    from device_agent.inference.devices.opening import Opened
    from device_agent.inference.rows import Array
    from device_agent.inference.session import Session
    from edgeonnx.spec.manifest import Variant

    Reopen = Callable[[Mapping[str, str]], Opened]

logger = logging.getLogger("edgeonnx.agent")

_ABANDONED: list[Session] = []
"""Sessions on devices that do not answer. Closing one calls the device, which ends the process; so they stay."""


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """A provider that failed while it served, and what took its place.

    Attributes:
        at: When, in seconds since 1970 by this machine's clock.
        lost: The provider that failed.
        lost_variant: The variant that it served.
        provider: The provider that serves since then.
        variant: The variant that serves since then.
        cause: What the provider said.
        seconds: How long requests waited for it.
    """

    at: float
    lost: str
    lost_variant: str
    provider: str
    variant: str
    cause: str
    seconds: float

    def as_dict(self) -> dict[str, object]:
        """The replacement as plain data."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class _Live:
    """What serves now; replaced as a whole, so that a thread that has read it sees one state."""

    variant: Variant
    session: Session
    not_used: Mapping[str, str]


class ServingGraph:
    """The graph of one bundle's entry component that serves, whatever runs it.

    Args:
        variant: The variant that serves.
        session: The session on it.
        not_used: Each other variant, or provider, with the reason why it is not used.
        reopen: Opens a session without the providers that were lost (each with the reason), or raises an
            EdgeOnnxError if none is left. It runs in the thread of a failed run. None: a lost provider is not replaced,
            because the operator's policy is to refuse.
    """

    def __init__(
        self, variant: Variant, session: Session, not_used: Mapping[str, str], *, reopen: Reopen | None = None
    ) -> None:
        self._live = _Live(variant, session, dict(not_used))
        self._reopen = reopen
        self._lost: dict[str, str] = {}
        self._exhausted: EdgeOnnxError | None = None
        self.replacements: tuple[Replacement, ...] = ()
        """Providers that failed while they served, the first one first."""

    @property
    def variant(self) -> Variant:
        """The variant that serves now."""
        return self._live.variant

    @property
    def not_used(self) -> dict[str, str]:
        """Each other variant with the reason why it is not used."""
        return dict(self._live.not_used)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the graph's inputs."""
        return self._live.session.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the graph's outputs."""
        return self._live.session.outputs

    @property
    def providers(self) -> tuple[str, ...]:
        """Execution providers that the session really has, the preferred one first."""
        return self._live.session.providers

    @property
    def provider(self) -> str:
        """The execution provider that runs now."""
        return self.providers[0]

    @property
    def assignment(self) -> Assignment:
        """Which nodes run on which provider, by ONNX Runtime's own record."""
        return self._live.session.assignment

    @property
    def fallbacks(self) -> int:
        """How often a provider was replaced while it served."""
        return len(self.replacements)

    def as_dict(self) -> dict[str, object]:
        """What an operator wants to know of the graph, as plain data."""
        live = self._live
        return {
            "variant": live.variant.name,
            "provider": live.session.providers[0],
            "providers": list(live.session.providers),
            "assignment": live.session.assignment.as_dict(),
            "optimization": OPTIMIZATION,
            "io_binding": live.session.bound,
            "not_used": dict(live.not_used),
            "replacements": [each.as_dict() for each in self.replacements],
        }

    def _open_next(self, reopen: Reopen, error: ProviderLostError) -> tuple[Opened, dict[str, str]]:
        """Open a session on the next provider; it does not serve before `_commit`.

        Returns:
            The session, and the reason against each provider that was lost.

        Raises:
            ProviderLostError: None is left.
        """
        if self._exhausted is not None:
            raise _no_successor(error, self._exhausted) from None
        lost = self.provider
        reasons = {**self._lost, lost: f"lost while it served: {error.found or error.message}"}
        try:
            return reopen(reasons), reasons
        except EdgeOnnxError as failure:
            self._exhausted = failure
            logger.error("%s failed, and nothing takes its place: %s", label_of(lost), failure)  # noqa: TRY400
            raise _no_successor(error, failure) from None

    def _commit(
        self, lost: _Live, opened: Opened, error: ProviderLostError, reasons: dict[str, str], seconds: float
    ) -> None:
        """Let `opened` serve from now on."""
        replacement = Replacement(
            at=time.time(),
            lost=lost.session.providers[0],
            lost_variant=lost.variant.name,
            provider=opened.session.providers[0],
            variant=opened.variant.name,
            cause=error.found or error.message,
            seconds=seconds,
        )
        if not isinstance(error, DeviceMemoryError):
            _ABANDONED.append(lost.session)
        self._lost = reasons
        self.replacements = (*self.replacements, replacement)
        self._live = _Live(opened.variant, opened.session, dict(opened.not_used))
        logger.warning(
            "%s was lost while serving variant %s, %s serves variant %s after %.2f s: %s",
            label_of(replacement.lost),
            replacement.lost_variant,
            label_of(replacement.provider),
            replacement.variant,
            seconds,
            printable(replacement.cause),
        )


class Engine(ServingGraph):
    """Runs batches; safe in several threads. Its arguments are those of `ServingGraph`."""

    def __init__(
        self, variant: Variant, session: Session, not_used: Mapping[str, str], *, reopen: Reopen | None = None
    ) -> None:
        super().__init__(variant, session, not_used, reopen=reopen)
        self._replacing = threading.Lock()
        self._standby: tuple[Opened, dict[str, str]] | None = None

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Run a batch; see `Session.run`.

        Raises:
            InvalidRequestError: The inputs do not fit the graph.
            ProviderLostError: The provider failed, and none that is left ran the batch.
            InferenceError: ONNX Runtime failed.
        """
        live = self._live
        try:
            return live.session.run(inputs, outputs)
        except ProviderLostError as error:
            if self._reopen is None:
                raise
            with self._replacing:
                # Where another thread was first, its session is the one to try.
                if self._live is live:
                    return self._replace(self._reopen, error, inputs, outputs)
        return self._live.session.run(inputs, outputs)

    def _replace(
        self, reopen: Reopen, error: ProviderLostError, inputs: Mapping[str, Array], outputs: Sequence[str] | None
    ) -> dict[str, Array]:
        """Open the next session and run the batch on it; whether it serves from now on is decided by that run."""
        begun = time.perf_counter()
        lost = self._live
        opened, reasons = self._standby = self._standby or self._open_next(reopen, error)
        try:
            values = opened.session.run(inputs, outputs)
        except InvalidRequestError:
            # The inputs are wrong for every provider: this failure says nothing about the first one.
            raise
        except Exception:
            self._standby = None
            self._commit(lost, opened, error, reasons, time.perf_counter() - begun)
            raise
        self._standby = None
        self._commit(lost, opened, error, reasons, time.perf_counter() - begun)
        return values


class DecoderEngine(ServingGraph):
    """The graph of a decoder; one thread runs its session, bound to caches of that thread's own.

    Its arguments are those of `ServingGraph`.
    """

    @property
    def session(self) -> Session:
        """The session that serves now."""
        return self._live.session

    def replace(self, error: ProviderLostError) -> Session:
        """The session that takes a lost provider's place, and serves from now on; its caches are empty.

        Args:
            error: What the session raised that served.

        Raises:
            ProviderLostError: Nothing takes its place.
        """
        if self._reopen is None:
            raise error
        begun = time.perf_counter()
        opened, reasons = self._open_next(self._reopen, error)
        self._commit(self._live, opened, error, reasons, time.perf_counter() - begun)
        return opened.session


def _no_successor(error: ProviderLostError, failure: EdgeOnnxError) -> ProviderLostError:
    return ProviderLostError(
        error.message,
        where=error.where,
        found=error.found,
        details=(f"nothing takes its place: {failure}",),
        hint="restart the agent once the device works again",
    )
