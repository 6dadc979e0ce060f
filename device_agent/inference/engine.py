"""A loaded graph: the session that runs it, and what is known about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from device_agent.inference.rows import Array
    from device_agent.inference.session import Session
    from edgeonnx.spec.manifest import Variant


class Engine:
    """Runs batches of one bundle's entry component; safe in several threads.

    Args:
        variant: The variant that serves.
        session: The session on it.
        not_used: Each other variant, or provider, with the reason why it is not used.
    """

    def __init__(self, variant: Variant, session: Session, not_used: Mapping[str, str]) -> None:
        self.variant = variant
        self.not_used = dict(not_used)
        self._session = session

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the graph's inputs."""
        return self._session.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the graph's outputs."""
        return self._session.outputs

    @property
    def providers(self) -> tuple[str, ...]:
        """Execution providers that the session really has, the preferred one first."""
        return self._session.providers

    @property
    def provider(self) -> str:
        """The execution provider that runs now."""
        return self.providers[0]

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Run a batch; see `Session.run`."""
        return self._session.run(inputs, outputs)
