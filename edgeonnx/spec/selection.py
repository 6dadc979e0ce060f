"""Which variant a device runs, and why not the others. Pure: the device is described, never asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.errors import SelectionError
from edgeonnx.spec.numerics import integer_kernel, saturates, why

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from edgeonnx.spec.manifest import Variant
    from edgeonnx.spec.numerics import IntegerRange


NOT_HERE = "is not on this device"


@dataclass(frozen=True, kw_only=True)
class DeviceProfile:
    """What a machine has.

    Attributes:
        providers: Execution providers that can really be used, the preferred one first.
        instruction_sets: CPU features, in the spelling of /proc/cpuinfo.
        memory_bytes: Memory that a model may take, or None if unknown.
        architecture: As `platform.machine()` says it (`x86_64`, `aarch64`), or empty if unknown.
    """

    providers: tuple[str, ...]
    instruction_sets: frozenset[str] = frozenset()
    memory_bytes: int | None = None
    architecture: str = ""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The chosen variant, and each other variant's name with the reason against it."""

    chosen: Variant
    rejected: tuple[tuple[str, str], ...]


def select_variant(
    variants: Iterable[Variant],
    profile: DeviceProfile,
    *,
    wanted: str | None = None,
    absent: Collection[str] = frozenset(),
) -> Selection:
    """Choose the variant for a device.

    Among the variants that are here and whose requirements the device meets, the one with the most preferred provider
    wins; between variants for one provider, the order of the bundle decides (the packager lists the preferred one
    first).

    Args:
        variants: The variants of a component, in the bundle's order.
        profile: The device.
        wanted: Name of the only variant to consider, where the operator decided.
        absent: Names of the variants whose files are not here; see `edgeonnx.spec.partial`. What such a variant would
            need and the device does not have is the better reason against it, and is said first.

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
        reason = unmet_requirement(variant, profile)
        if reason is None and variant.name in absent:
            reason = NOT_HERE
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


def unmet_requirement(variant: Variant, profile: DeviceProfile) -> str | None:
    """The first requirement of a variant that a device does not meet, in words; None if it meets all."""
    needs = variant.requirements
    if needs.unknown:
        return f"states requirements that this release does not know: {', '.join(needs.unknown)}"
    if needs.provider not in profile.providers:
        return f"needs {needs.provider}; this device has {', '.join(profile.providers) or 'none'}"
    missing = [name for name in needs.instruction_sets if name not in profile.instruction_sets]
    if missing:
        return f"needs the instruction sets {', '.join(missing)}"
    if needs.integer is not None and (reason := _saturation(needs.integer, profile)) is not None:
        return reason
    if profile.memory_bytes is not None and needs.memory_bytes > profile.memory_bytes:
        return f"needs {needs.memory_bytes:,} bytes of memory; {profile.memory_bytes:,} are available"
    return None


def _saturation(numbers: IntegerRange, profile: DeviceProfile) -> str | None:
    """Why the variant's 8-bit products would be wrong on this CPU; None if they are exact."""
    kernel = integer_kernel(profile.architecture, profile.instruction_sets)
    if not saturates(kernel, numbers.activation_max, numbers.weight_max):
        return None
    return f"int8 weights up to {numbers.weight_max} would saturate on this CPU: {why(kernel)}"
