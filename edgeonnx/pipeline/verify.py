"""`verify`: is a bundle whole, is it what it says, and does it answer right on this machine?"""

from __future__ import annotations

import itertools
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeonnx.bundle import open_bundle, verify_files
from edgeonnx.errors import GoldenSetError, RuntimeUnavailableError
from edgeonnx.pipeline.progress import Silent, StageTimer
from edgeonnx.spec.profile import parse_instruction_sets
from edgeonnx.spec.selection import NOT_HERE, DeviceProfile, unmet_requirement

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeonnx.bundle import Bundle
    from edgeonnx.bundle.golden import Comparison, GoldenSet
    from edgeonnx.model.ports import FloatTensors, IntTensors
    from edgeonnx.pipeline.progress import Progress
    from edgeonnx.spec.contents import FileEntry
    from edgeonnx.spec.manifest import Variant

CPU_PROVIDER = "CPUExecutionProvider"
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The replay of the golden set through one variant."""

    component: str
    variant: str
    comparison: Comparison


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What `verify` found; it raises if anything is wrong.

    Attributes:
        bundle: The opened bundle.
        files: Number of files whose every byte was hashed.
        texts: Number of golden texts.
        text_path: The text path that gave the golden ids.
        replays: One for each variant that this machine can run.
        skipped: Variants that it cannot run, or not with the right numbers, each with the reason.
        unsealed: Files of the bundle that its digest does not cover; nothing was checked about them.
        seconds: How long each stage took.
    """

    bundle: Bundle
    files: int
    texts: int
    text_path: str
    replays: tuple[Replay, ...]
    skipped: tuple[tuple[str, str], ...]
    unsealed: tuple[str, ...]
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "name": self.bundle.manifest.name,
            "version": self.bundle.manifest.version,
            "digest": self.bundle.digest,
            "files": self.files,
            "not_covered_by_digest": list(self.unsealed),
            "golden_texts": self.texts,
            "text_path": self.text_path,
            "replays": [
                {"component": item.component, "variant": item.variant, **item.comparison.metrics()}
                for item in self.replays
            ],
            "skipped": [{"variant": name, "reason": reason} for name, reason in self.skipped],
            "seconds": {stage: round(value, 3) for stage, value in self.seconds.items()},
        }


def verify(path: Path, progress: Progress | None = None, *, profile: DeviceProfile | None = None) -> VerifyReport:
    """Verify a bundle.

    Args:
        path: The bundle's folder.
        progress: Receives the stages as they run.
        profile: What this machine has; None looks.

    Raises:
        BundleError: It is damaged, or breaks the schema.
        GoldenSetError: Text path or graph do not give the golden set's numbers.
        ValidationError: ONNX Runtime does not load a graph, or a graph refers to files outside the bundle.
    """
    timer = StageTimer(progress=progress or Silent())
    with timer.stage("structure", "compare the files with contents.json, read the metadata") as stage:
        bundle = open_bundle(path)
        bundle.chat_template()
        parts = f", without {', '.join(bundle.absent)}" if bundle.absent else ""
        stage.result = f"{len(bundle.contents.files)} files, {bundle.contents.total_size / 1e6:.1f} MB, no links{parts}"
    with timer.stage("bytes", "hash every file") as stage:
        files = verify_files(bundle, on_file=_counter(timer.progress, len(bundle.contents.files)))
        unsealed = bundle.unsealed()
        outside = f"; not covered by it: {', '.join(unsealed)}" if unsealed else ""
        stage.result = f"bundle sha256 {bundle.digest[:16]}...{outside}"
    with timer.stage("tokens", "turn the golden texts into ids") as stage:
        golden = bundle.golden()
        text_path = _check_tokens(bundle, golden)
        stage.result = f"{len(golden.texts)} texts, {text_path}"
    with timer.stage("golden", "replay the golden set through ONNX Runtime") as stage:
        replays, skipped = _replay(bundle, golden, profile or host_profile())
        shown = [f"{item.variant} within {item.comparison.scaled_diff:.1e}" for item in replays]
        stage.result = ", ".join(shown + [f"{name} skipped" for name, _ in skipped])
    return VerifyReport(
        bundle=bundle,
        files=files,
        texts=len(golden.texts),
        text_path=text_path,
        replays=replays,
        skipped=skipped,
        unsealed=unsealed,
        seconds=timer.seconds,
    )


def _counter(progress: Progress, total: int) -> Callable[[FileEntry], None]:
    """A callback that counts files."""
    done = itertools.count(1)

    def count(_entry: FileEntry) -> None:
        progress.advanced(next(done), total)

    return count


def _check_tokens(bundle: Bundle, golden: GoldenSet) -> str:
    from edgeonnx_ext import open_text_encoder

    processing = bundle.manifest.processing
    try:
        encoder = open_text_encoder(
            bundle.tokenizer_json(),
            max_length=processing.max_length,
            pad_id=processing.pad_id,
            pad_type_id=processing.pad_type_id,
            prefix=processing.prefix,
            backend=processing.backend,
        )
        batch = encoder.encode(golden.texts, golden.pairs)
    except ValueError as error:
        raise GoldenSetError(
            "the golden texts cannot be tokenized", where=processing.tokenizer, found=str(error)
        ) from None
    except ImportError as error:
        raise RuntimeUnavailableError("tokenizers cannot be imported", found=str(error)) from None
    golden.check_tokens(batch.tensors(), where=encoder.backend)
    return encoder.backend


def host_profile() -> DeviceProfile:
    """This machine as a device with a CPU only. Its memory is left open: a build host has enough, or fails loudly."""
    try:
        cpuinfo = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    return DeviceProfile(
        providers=(CPU_PROVIDER,),
        instruction_sets=parse_instruction_sets(cpuinfo),
        architecture=platform.machine(),
    )


def _reason_to_skip(variant: Variant, profile: DeviceProfile) -> str | None:
    """Why a variant cannot be judged here: its answers would say nothing about a device that it is made for."""
    if variant.requirements.provider not in profile.providers:
        return f"needs {variant.requirements.provider}"
    return unmet_requirement(variant, profile)


def _open(bundle: Bundle, model: Path, tensors: Path | None) -> Callable[[IntTensors], FloatTensors]:
    """A graph as a function of the golden inputs: a run of an encoder, or the runs of a decoder over its caches."""
    from edgeonnx.model.decoder import open_decoder
    from edgeonnx.model.runtime import open_graph

    generation = bundle.manifest.generation
    if generation is None:
        return open_graph(model, tensors)
    return open_decoder(model, tensors, generation.cache).replay


def _replay(
    bundle: Bundle, golden: GoldenSet, profile: DeviceProfile
) -> tuple[tuple[Replay, ...], tuple[tuple[str, str], ...]]:
    from edgeonnx.validate.checker import check_locations, check_signature

    component, generation = bundle.manifest.entry_component, bundle.manifest.generation
    absent = bundle.absent_variants(component.name)
    replays: list[Replay] = []
    skipped: list[tuple[str, str]] = []
    for variant in component.variants:
        reason = NOT_HERE if variant.name in absent else _reason_to_skip(variant, profile)
        if reason is not None:
            skipped.append((variant.name, reason))
            continue
        model, tensors = bundle.model_path(component.name, variant), bundle.tensors_path(variant)
        check_locations(model, tensors)
        check_signature(model, component.signature, None if generation is None else generation.cache)
        comparison = golden.replay(_open(bundle, model, tensors))
        golden.check_replay(comparison, variant.golden, where=f"{component.name}/{variant.name}")
        replays.append(Replay(component=component.name, variant=variant.name, comparison=comparison))
    return tuple(replays), tuple(skipped)
