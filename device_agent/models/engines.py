"""From a verified bundle to a session: no file is opened that was not hashed, no variant for which there is no room."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from device_agent.models import memory
from edgeonnx.bundle import Verifier
from edgeonnx.errors import GoldenSetError, SelectionError, ServingError, ValidationError
from edgeonnx.spec.selection import select_variant

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from device_agent.config import AgentConfig
    from device_agent.inference.devices.compiled import Compiled
    from device_agent.inference.devices.opening import Opened, Opener
    from device_agent.inference.devices.providers import ProviderStatus
    from device_agent.inference.engine import Reopen, ServingGraph
    from device_agent.inference.rows import Array, Ids
    from device_agent.inference.session import Session
    from device_agent.models.memory import Room
    from edgeonnx.bundle import Bundle
    from edgeonnx.spec.manifest import Manifest, Variant
    from edgeonnx.spec.selection import DeviceProfile

    OpenSession = Callable[..., Session]
    RunGolden = Callable[[dict[str, Ids]], Mapping[str, Array]]
    Answers = Callable[[Session], RunGolden]

    Served = TypeVar("Served", bound=ServingGraph)


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best variant, opened.

    Attributes:
        opened: The session on it.
        reopen: Opens what takes a lost provider's place; None: nothing does.
    """

    opened: Opened
    reopen: Reopen | None

    def engine(self, kind: type[Served]) -> Served:
        """It as what serves."""
        return kind(self.opened.variant, self.opened.session, self.opened.not_used, reopen=self.reopen)


def likely_variant(manifest: Manifest, wanted: str | None, *, absent: Collection[str] = frozenset()) -> Variant | None:
    """The variant that will be chosen, as far as that is known before providers were tried.

    Args:
        manifest: The bundle's manifest.
        wanted: The operator's choice, or None.
        absent: Names of the entry component's variants that are not here; see `Bundle.absent_variants`.

    Returns:
        The variant, or None if that depends on what this machine's GPU can do, or nothing fits.
    """
    from device_agent.inference.devices.providers import CPU_PROVIDER, device_profile

    variants = manifest.entry_component.variants
    if any(each.requirements.provider != CPU_PROVIDER for each in variants if each.name not in absent):
        return None
    try:
        return select_variant(variants, device_profile((CPU_PROVIDER,)), wanted=wanted, absent=absent).chosen
    except SelectionError:
        return None


def open_best(
    bundle: Bundle,
    config: AgentConfig,
    statuses: Sequence[ProviderStatus],
    *,
    profile: DeviceProfile | None = None,
    verifier: Verifier | None = None,
    room: Room | None = None,
    beside: str | None = None,
    compiled: Compiled | None = None,
    open_session: OpenSession | None = None,
    answers: Answers | None = None,
    beside_weights: int = 0,
) -> Best:
    """Open the best variant whose provider really loads, its files hashed before; see `inference.opening.Opener`.

    Args:
        bundle: An opened bundle.
        config: The agent's settings.
        statuses: What became of each provider; see `inference.opening.usable_here`.
        profile: What this machine has; None looks.
        verifier: Hashes the files of a variant before it is opened; None makes one.
        room: The room in the memory; None: no limit is checked.
        beside: The version that it would replace, for messages.
        compiled: What providers compile and keep; None: nothing is kept.
        open_session: Opens a session; tests put a fake here.
        answers: How a session answers the golden set's inputs; None: it is run with them.
        beside_weights: Bytes that the model needs beside each variant's own.

    Raises:
        SelectionError: No variant is left.
        MemoryBudgetError: One would be left if there were more memory.
        RuntimeUnavailableError: ONNX Runtime does not load the variant on the CPU.
        IntegrityError: A file of the variant is damaged.
        ManifestError: The graph has other inputs or outputs than the manifest says.
    """
    from device_agent.inference.devices.opening import Opener
    from device_agent.inference.devices.providers import FALLBACK, device_profile

    verifier = verifier or Verifier(bundle)
    usable = tuple(status.name for status in statuses if status.usable)
    profile = device_profile(usable) if profile is None else profile
    free = None if room is None or room.free is None else max(0, room.free - beside_weights)
    limited = profile if room is None else replace(profile, memory_bytes=free)
    opener = Opener(
        bundle,
        config,
        statuses,
        profile=limited,
        cache=compiled,
        open_session=partial(_open_verified, bundle, verifier, open_session),
    )
    try:
        opened = opener()
    except SelectionError:
        if room is not None:
            _check_room(bundle, config, profile, room, beside, beside_weights)
        raise
    # The first variant is proven by the load, in the way that requests take.
    reopen = partial(_open_proven, bundle, opener, answers) if config.runtime.policy == FALLBACK else None
    return Best(opened=opened, reopen=reopen)


def _open_verified(
    bundle: Bundle,
    verifier: Verifier,
    open_session: OpenSession | None,
    model: Path,
    tensors: Path | None,
    **how: object,
) -> Session:
    """Open a session on a graph whose files are hashed before."""
    from device_agent.inference.session import Session

    component = bundle.manifest.entry_component
    variant = next(each for each in component.variants if bundle.model_path(component.name, each) == model)
    verifier.verify_variant(component.name, variant)
    return (open_session or Session)(model, tensors, **how)  # type: ignore[arg-type]


def _open_proven(bundle: Bundle, opener: Opener, answers: Answers | None, lost: Mapping[str, str]) -> Opened:
    """What takes a lost provider's place: the next variant that reproduces the golden set here.

    Raises:
        EdgeOnnxError: None is left that does.
    """
    lost = dict(lost)
    while True:
        opened = opener(lost)
        golden = bundle.golden()
        try:
            comparison = golden.replay(opened.session.run if answers is None else answers(opened.session))
            golden.check_replay(comparison, opened.variant.golden, where=label(bundle, opened.variant))
        except (GoldenSetError, ServingError, ValidationError) as error:
            provider = opened.session.providers[0]
            if provider in lost:
                raise
            lost[provider] = f"not used: {error}"
        else:
            return opened


def _check_room(
    bundle: Bundle, config: AgentConfig, profile: DeviceProfile, room: Room, beside: str | None, beside_weights: int
) -> None:
    """Raise if it is only the memory that every variant lacks."""
    unlimited = replace(profile, memory_bytes=None)
    component = bundle.manifest.entry_component
    absent = bundle.absent_variants(component.name)
    try:
        chosen = select_variant(component.variants, unlimited, wanted=config.runtime.variant, absent=absent).chosen
    except SelectionError:
        return
    needed = memory.needed_bytes(bundle, chosen) + beside_weights
    memory.check_fits(label(bundle, chosen), needed, room, beside=beside)


def label(bundle: Bundle, variant: Variant) -> str:
    """A variant of a bundle, for messages."""
    return f"{bundle.manifest.name} {bundle.manifest.version}, variant {variant.name}"
