"""Which variant a device runs, and why not the others. Pure: the device is described, never asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgeonnx.spec.manifest import Variant


@dataclass(frozen=True, kw_only=True)
class DeviceProfile:
    """What a machine has.

    Attributes:
        providers: Execution providers that can really be used, the preferred one first.
        instruction_sets: CPU features, in the spelling of /proc/cpuinfo.
        memory_bytes: Memory that a model may take, or None if unknown.
    """

    providers: tuple[str, ...]
    instruction_sets: frozenset[str] = frozenset()
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The chosen variant, and each other variant's name with the reason against it."""

    chosen: Variant
    rejected: tuple[tuple[str, str], ...]


def select_variant(variants: Iterable[Variant], profile: DeviceProfile, *, wanted: str | None = None) -> Selection:
    """Choose the variant for a device.

    Among the variants whose requirements the device meets, the one with the most preferred provider wins; between
    variants for one provider, the order of the bundle decides (the packager lists the preferred one first).

    Args:
        variants: The variants of a component, in the bundle's order.
        profile: The device.
        wanted: Name of the only variant to consider, where the operator decided.

    Raises:
        SelectionError: No variant fits, with the reason for each.
    """
    variants = tuple(variants)
    if wanted is not None and all(variant.name != wanted for variant in variants):
        raise SelectionError(
            f"the bundle has no variant {wanted}",
            expected=" or ".join(variant.name for variant in variants),
            found=wanted,
        )
    rejected: list[tuple[str, str]] = []
    fitting: list[Variant] = []
    for variant in variants:
        reason = _unmet(variant, profile)
        if reason is None and wanted not in (None, variant.name):
            reason = f"the operator asked for {wanted}"
        if reason is None:
            fitting.append(variant)
        else:
            rejected.append((variant.name, reason))
    if not fitting:
        raise SelectionError(
            "no variant of the bundle fits this device" if wanted is None else f"the variant {wanted} cannot be used",
            details=tuple(f"{name}: {reason}" for name, reason in rejected),
            hint="package the model for this kind of device",
        )
    chosen = min(fitting, key=lambda variant: profile.providers.index(variant.requirements.provider))
    rejected.extend((other.name, f"{chosen.name} is preferred") for other in fitting if other is not chosen)
    return Selection(chosen=chosen, rejected=tuple(rejected))


def _unmet(variant: Variant, profile: DeviceProfile) -> str | None:
    needs = variant.requirements
    if needs.provider not in profile.providers:
        return f"needs {needs.provider}; this device has {', '.join(profile.providers) or 'none'}"
    missing = [name for name in needs.instruction_sets if name not in profile.instruction_sets]
    if missing:
        return f"needs the instruction sets {', '.join(missing)}"
    if profile.memory_bytes is not None and needs.memory_bytes > profile.memory_bytes:
        return f"needs {needs.memory_bytes:,} bytes of memory; {profile.memory_bytes:,} are available"
    return None
