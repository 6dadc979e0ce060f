"""From a bundle to a session: the best variant whose provider works here, and why not each other one."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from device_agent.config import usable_cpus
from device_agent.inference.devices.contract import check_decoder
from device_agent.inference.devices.providers import (
    BY_NAME,
    CPU_PROVIDER,
    OptionSettings,
    ProviderStatus,
    check_policy,
    device_profile,
    label_of,
    order_of,
    plan_of,
    without,
)
from device_agent.inference.session import Session
from edgeonnx.errors import ManifestError, RuntimeUnavailableError, SelectionError
from edgeonnx.spec.selection import select_variant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from device_agent.config import AgentConfig
    from edgeonnx.bundle import Bundle
    from edgeonnx.spec.manifest import Variant
    from edgeonnx.spec.selection import DeviceProfile

    OpenSession = Callable[..., Session]
    Folder = Callable[[Variant], Path | None]

logger = logging.getLogger("edgeonnx.agent")

NOT_LOADED = "the session does not have it after loading; the library's own message is on stderr"


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A session on a variant, and why the others are not used.

    Attributes:
        variant: The variant.
        session: The session on it.
        not_used: Each other variant with the reason.
    """

    variant: Variant
    session: Session
    not_used: Mapping[str, str]


def usable_here(config: AgentConfig, needed: Iterable[str] | None = None) -> tuple[ProviderStatus, ...]:
    """Try the providers that the operator allows, in the operator's order. The first call may take seconds on a GPU.

    Args:
        config: The agent's settings.
        needed: Try only these, and those that take the nodes that they leave; None tries all.

    Raises:
        UsageError: `runtime.providers` names one that the agent does not know.
    """
    from device_agent.inference.devices.probing import probe_once

    runtime = config.runtime
    order = order_of(runtime.providers)
    if needed is not None:
        wanted = {CPU_PROVIDER}
        for name in needed:
            wanted |= {name, *(BY_NAME[name].next if name in BY_NAME else ())}
        order = tuple(name for name in order if name in wanted)
    settings = OptionSettings(gpu=runtime.gpu, gpu_memory_bytes=runtime.gpu_memory_bytes, threads=runtime.threads or 1)
    return probe_once(order, settings)


class Opener:
    """Opens sessions on a bundle's entry component, again where a provider is lost.

    Args:
        bundle: An opened bundle.
        config: The agent's settings.
        statuses: What became of each provider that the operator allows, in order of preference; see `usable_here`.
        profile: What this machine has; None looks.
        cache: The folder in which a variant's provider may keep what it compiles; None keeps nothing.
        open_session: Opens a session; tests put a fake here.

    Raises:
        RuntimeUnavailableError: The preferred provider cannot be used, and the policy is to refuse.
    """

    def __init__(
        self,
        bundle: Bundle,
        config: AgentConfig,
        statuses: Sequence[ProviderStatus],
        *,
        profile: DeviceProfile | None = None,
        cache: Folder | None = None,
        open_session: OpenSession = Session,
    ) -> None:
        self._bundle = bundle
        self._config = config
        self._statuses = tuple(statuses)
        self._cache = cache
        self._open_session = open_session
        usable = tuple(status.name for status in self._statuses if status.usable)
        profile = device_profile(usable) if profile is None else profile
        # A profile that a caller made says what it has; the operator's order, and what was found out, stand above it.
        self._profile = replace(profile, providers=tuple(name for name in usable if name in profile.providers))
        order = [status.name for status in self._statuses]
        check_policy(config.runtime.policy, order, self._needed(), self._statuses)

    def _needed(self) -> list[str]:
        """The providers that variants were made for, those that the operator excluded left out."""
        wanted = self._config.runtime.variant
        variants = self._bundle.manifest.entry_component.variants
        return [variant.requirements.provider for variant in variants if wanted in (None, variant.name)]

    def __call__(self, lost: Mapping[str, str] | None = None) -> Opened:
        """Open a session on the best variant whose provider works.

        What a provider is worth for a graph shows only when a session is opened. If that fails, the selection is made
        again without the provider, so that a variant made for the CPU runs there rather than one made for a GPU.

        Args:
            lost: Providers that failed while they served, each with the reason.

        Raises:
            SelectionError: No variant is left; its details have the reason for each.
            RuntimeUnavailableError: ONNX Runtime does not load the variant on the CPU.
            ManifestError: The graph has other inputs or outputs than the manifest says.
        """
        unusable = {status.name: status.reason for status in self._statuses if not status.usable} | dict(lost or {})
        profile = self._profile
        for name in unusable:
            profile = without(profile, name)
        failed: dict[str, str] = {}
        while True:
            chosen, rejected = self._select(profile, unusable)
            provider = chosen.requirements.provider
            session, reason = self._try(chosen, profile, reopened=bool(lost))
            if session is not None:
                self._check_signature(chosen, session)
                return Opened(variant=chosen, session=session, not_used={**rejected, **failed})
            logger.warning("variant %s is not used, %s does not load it: %s", chosen.name, label_of(provider), reason)
            failed[chosen.name] = f"{provider} does not load: {reason}"
            check_policy(
                self._config.runtime.policy,
                [status.name for status in self._statuses],
                self._needed(),
                [ProviderStatus(name=provider, usable=False, reason=reason)],
            )
            unusable[provider] = reason
            profile = without(profile, provider)

    def _select(self, profile: DeviceProfile, unusable: Mapping[str, str]) -> tuple[Variant, dict[str, str]]:
        """Choose a variant; the reasons against the others name what is wrong with their providers."""
        variants = self._bundle.manifest.entry_component.variants
        needs = {variant.name: variant.requirements.provider for variant in variants}

        def say(name: str, reason: str) -> str:
            provider = needs[name]
            if provider in unusable:
                return f"needs {label_of(provider)}: {unusable[provider]}"
            if provider in BY_NAME and provider not in [status.name for status in self._statuses]:
                return f"needs {label_of(provider)}, which runtime.providers leaves out"
            return reason

        try:
            selection = select_variant(
                variants,
                profile,
                wanted=self._config.runtime.variant,
                absent=self._bundle.absent_variants(self._bundle.manifest.entry),
            )
        except SelectionError as error:
            details = dict(line.split(": ", 1) for line in error.details)
            error.details = tuple(f"{name}: {say(name, reason)}" for name, reason in details.items())
            raise
        return selection.chosen, {name: say(name, reason) for name, reason in selection.rejected}

    def _try(self, variant: Variant, profile: DeviceProfile, *, reopened: bool) -> tuple[Session | None, str]:
        """Open a session on a variant: the session, or None and why its provider does not load it."""
        bundle, provider = self._bundle, variant.requirements.provider
        settings = self._settings(variant, reopened=reopened)
        try:
            session = self._open_session(
                bundle.model_path(bundle.manifest.entry, variant),
                bundle.tensors_path(variant),
                provider=provider,
                threads=settings.threads,
                plan=plan_of(provider, profile.providers, settings),
                spinning=self._config.runtime.spinning,
            )
        except RuntimeUnavailableError as error:
            if provider == CPU_PROVIDER:
                raise
            return None, error.found or str(error)
        return (session, "") if provider in session.providers else (None, NOT_LOADED)

    def _settings(self, variant: Variant, *, reopened: bool) -> OptionSettings:
        """What the options of a variant's provider depend on."""
        runtime = self._config.runtime
        threads = runtime.threads or 1
        if reopened and variant.requirements.provider == CPU_PROVIDER:
            # The runners were made for the lost device, usually one: on the CPU it must not leave cores idle.
            threads = max(threads, usable_cpus() // (runtime.runners or 1))
        return OptionSettings(
            gpu=runtime.gpu,
            gpu_memory_bytes=runtime.gpu_memory_bytes,
            threads=threads,
            cache=None if self._cache is None else self._cache(variant),
        )

    def _check_signature(self, variant: Variant, session: Session) -> None:
        manifest = self._bundle.manifest
        if manifest.generation is not None:
            where = f"{manifest.entry}/{variant.name}"
            check_decoder(manifest.generation, session.described_inputs, session.described_outputs, where=where)
            return
        signature = manifest.entry_component.signature
        for kind, specs, names in (
            ("inputs", signature.inputs, session.inputs),
            ("outputs", signature.outputs, session.outputs),
        ):
            listed = [spec.name for spec in specs]
            if sorted(listed) != sorted(names):
                raise ManifestError(
                    f"the graph has other {kind} than its component.json says",
                    where=f"{manifest.entry}/{variant.name}",
                    expected=str(listed),
                    found=str(list(names)),
                )
