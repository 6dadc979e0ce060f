"""A bundle of which a device has only the variants that it needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.inference.devices.opening import Opener
from device_agent.inference.devices.providers import CPU_PROVIDER, ProviderStatus
from device_agent.models.engines import likely_variant, open_best
from device_agent.models.loading import load_model
from device_agent.models.memory import NOTHING_TAKEN, room_of
from edgeonnx.bundle import Bundle, Verifier, open_bundle, verify_files
from edgeonnx.errors import (
    IntegrityError,
    ManifestError,
    MemoryBudgetError,
    SchemaVersionError,
    SelectionError,
    UnsafePathError,
)
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.partial import PARTIAL_FILE, Partial
from edgeonnx.spec.selection import NOT_HERE, DeviceProfile, select_variant
from tests.support import bundles
from tests.support.tamper import edit_json, leave_out, relist

CUDA = "CUDAExecutionProvider"
CONFIG = AgentConfig(runtime=RuntimeConfig(threads=1, runners=1))
BOTH = (ProviderStatus(name=CUDA, usable=True), ProviderStatus(name=CPU_PROVIDER, usable=True))
SEVEN, FP32 = "encoder/cpu-int8-7bit", "encoder/cpu-fp32"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three variants over one folder of tensors; `types` is a tensor of the second one's graph alone."""
    return bundles.make_bundle(tmp_path, variants=bundles.CPU_VARIANTS)


def tensor(path: Path, name: str) -> Path:
    """The file of an external tensor."""
    (digest,) = bundles.graph(Task.EMBEDDING, external=(name,))[1]
    return next(path.glob(f"shared_assets/*/{digest}"))


def variants_of(bundle: Bundle) -> list[str]:
    return [variant.name for variant in bundle.manifest.entry_component.variants]


def test_absent_variants_may_lack_their_graphs_and_tensors(path: Path) -> None:
    whole = open_bundle(path)
    assert whole.absent == frozenset()
    leave_out(path, SEVEN)
    tensor(path, "types").unlink()
    bundle = open_bundle(path)
    assert bundle.absent == {SEVEN}
    assert bundle.absent_variants("encoder") == {"cpu-int8-7bit"}
    assert bundle.digest == whole.digest
    assert bundle.manifest == whole.manifest
    assert verify_files(bundle) == len(whole.contents.files) - 2
    verifier = Verifier(bundle)
    verifier.verify_common()
    verifier.verify_variant("encoder", bundle.manifest.entry_component.variants[0])


def test_their_files_may_also_be_here(path: Path) -> None:
    files = len(open_bundle(path).contents.files)
    (path / PARTIAL_FILE).write_bytes(Partial(absent=frozenset({FP32})).to_bytes())
    seen: list[str] = []
    assert verify_files(open_bundle(path), lambda entry: seen.append(entry.path)) == files
    assert len(seen) == files


def test_without_the_file_nothing_may_be_missing(path: Path) -> None:
    leave_out(path, SEVEN)
    (path / PARTIAL_FILE).unlink()
    with pytest.raises(IntegrityError, match=r"cpu-int8-7bit/model\.onnx: missing"):
        open_bundle(path)


@pytest.mark.parametrize(
    "file", ["encoder/cpu-fp32/model.onnx", "evidence.json", "encoder/component.json", "tokenizer.json", "golden.json"]
)
def test_everything_else_must_be_here(path: Path, file: str) -> None:
    leave_out(path, SEVEN)
    found = path / file if (path / file).exists() else next(path.glob(f"shared_assets/*/{file}"))
    found.unlink()
    with pytest.raises(IntegrityError, match=f"{file}(: missing|.*cannot be read)"):
        open_bundle(path)


def test_what_is_here_is_listed_and_has_its_size(path: Path) -> None:
    leave_out(path, SEVEN)
    folder = tensor(path, "types").parent
    tensor(path, "types").write_bytes(b"short")
    (folder / ("0" * 64)).write_bytes(b"extra")
    (path / SEVEN).mkdir()
    (path / SEVEN / "more.onnx").write_bytes(b"extra")
    with pytest.raises(IntegrityError) as caught:
        open_bundle(path)
    assert len(caught.value.details) == 3
    assert any("5 bytes on disk" in line for line in caught.value.details)
    assert sum("not listed" in line for line in caught.value.details) == 2


def test_a_tensor_that_a_present_graph_names_must_be_here(path: Path) -> None:
    leave_out(path, FP32)
    tensor(path, "words").unlink()
    bundle = open_bundle(path)  # which graph needs it is known when a graph is read
    variant = bundle.manifest.entry_component.variants[0]
    with pytest.raises(IntegrityError, match="cannot be read"):
        Verifier(bundle).verify_variant("encoder", variant)
    with pytest.raises(IntegrityError, match="cannot be read"):
        verify_files(bundle)
    with pytest.raises(IntegrityError, match="cannot be read"):
        load_model(path, CONFIG)


def test_what_is_here_is_hashed(path: Path) -> None:
    leave_out(path, SEVEN)
    data = bytearray(tensor(path, "types").read_bytes())
    data[0] ^= 1
    tensor(path, "types").write_bytes(data)
    with pytest.raises(IntegrityError, match="sha256"):
        verify_files(open_bundle(path))


BROKEN: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "not JSON": (lambda file: file.write_bytes(b"{"), ManifestError, "is not JSON"),
    "no bytes": (lambda file: file.write_bytes(b""), ManifestError, "is not JSON"),
    "another major version": (
        lambda file: file.write_text('{"schema_version": "2.0", "absent": []}'),
        SchemaVersionError,
        "another version",
    ),
    "an unknown field": (
        lambda file: file.write_text('{"schema_version": "1.0", "absent": [], "present": []}'),
        ManifestError,
        "not a known field",
    ),
    "no list": (lambda file: file.write_text('{"schema_version": "1.0"}'), ManifestError, "'absent'"),
    "an empty list": (lambda file: file.write_text(partial_json()), ManifestError, "names no variant"),
    "no such variant": (lambda file: file.write_text(partial_json("encoder/cpu-x")), ManifestError, "cpu-x"),
    "a component": (lambda file: file.write_text(partial_json("encoder")), ManifestError, "does not have"),
    "an asset": (lambda file: file.write_text(partial_json("shared_assets/x")), ManifestError, "does not have"),
    "a way out": (lambda file: file.write_text(partial_json("../cpu-fp32")), UnsafePathError, "not a path"),
    "one twice": (lambda file: file.write_text(partial_json(FP32, FP32)), ManifestError, "twice"),
    "all": (
        lambda file: file.write_text(partial_json(FP32, SEVEN, "encoder/cpu-int8")),
        ManifestError,
        "leaves no variant",
    ),
    "too large": (lambda file: file.write_bytes(b" " * (1 << 17)), ManifestError, "too large"),
    "a link": (lambda file: file.symlink_to("manifest.json"), UnsafePathError, "symbolic link"),
    "a folder": (lambda file: file.mkdir(), IntegrityError, "a folder, not a file"),
}


def partial_json(*absent: str) -> str:
    return json.dumps({"schema_version": "1.0", "absent": list(absent)})


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_makes_no_sense_is_refused(path: Path, case: str) -> None:
    write, kind, message = BROKEN[case]
    write(path / PARTIAL_FILE)
    with pytest.raises(kind, match=message):
        open_bundle(path)


@pytest.mark.parametrize("name", [PARTIAL_FILE, "Partial.JSON"])
def test_the_list_must_not_name_it(path: Path, name: str) -> None:
    leave_out(path, FP32)
    (path / PARTIAL_FILE).rename(path / name)
    relist(path)
    with pytest.raises(ManifestError, match=r"must not list partial\.json"):
        open_bundle(path)


def test_it_is_read_as_it_was_written() -> None:
    partial = Partial(absent=frozenset({SEVEN, FP32}))
    assert Partial.from_bytes(partial.to_bytes()) == partial
    assert json.loads(partial.to_bytes())["absent"] == [FP32, SEVEN]


# Which variant serves.


def test_an_absent_variant_is_not_selected(path: Path) -> None:
    variants = open_bundle(path).manifest.entry_component.variants
    profile = DeviceProfile(providers=(CPU_PROVIDER,), instruction_sets=frozenset({"avx2", "avx_vnni"}))
    found = select_variant(variants, profile, absent={"cpu-int8", "cpu-int8-7bit"})
    assert found.chosen.name == "cpu-fp32"
    assert ("cpu-int8-7bit", NOT_HERE) in found.rejected
    with pytest.raises(SelectionError) as caught:
        select_variant(variants, profile, wanted="cpu-fp32", absent={"cpu-fp32"})
    assert f"cpu-fp32: {NOT_HERE}" in caught.value.details


def test_what_a_device_lacks_is_the_better_reason(path: Path) -> None:
    variants = open_bundle(path).manifest.entry_component.variants
    with pytest.raises(SelectionError) as caught:
        select_variant(variants, DeviceProfile(providers=()), absent={"cpu-fp32"})
    assert all("needs CPUExecutionProvider" in line for line in caught.value.details)


def test_the_agent_serves_what_is_here_and_says_what_is_not(path: Path) -> None:
    leave_out(path, "encoder/cpu-int8", SEVEN)
    tensor(path, "types").unlink()
    loaded = load_model(path, CONFIG)
    assert loaded.close(timeout=5)
    assert loaded.engine.variant.name == "cpu-fp32"
    assert NOT_HERE in loaded.engine.not_used["cpu-int8-7bit"]


def test_the_operators_choice_may_be_absent(path: Path) -> None:
    leave_out(path, FP32)
    config = AgentConfig(runtime=RuntimeConfig(threads=1, runners=1, variant="cpu-fp32"))
    with pytest.raises(SelectionError, match="cannot be used") as caught:
        load_model(path, config)
    assert f"cpu-fp32: {NOT_HERE}" in caught.value.details


def test_what_is_likely_is_here(tmp_path: Path) -> None:
    manifest = open_bundle(bundles.make_bundle(tmp_path, variants=bundles.CPU_VARIANTS)).manifest
    assert likely_variant(manifest, None, absent={"cpu-int8", "cpu-int8-7bit"}) is manifest.entry_component.variants[2]
    assert likely_variant(manifest, None, absent=variants_of(open_bundle(tmp_path / "tiny-1.0.0"))) is None
    gpu = open_bundle(bundles.make_bundle(tmp_path, name="gpu", providers=(CUDA, CPU_PROVIDER))).manifest
    assert likely_variant(gpu, None, absent={"cuda-fp32"}) is gpu.entry_component.variants[1]


def test_a_lost_provider_is_not_replaced_by_what_is_absent(tmp_path: Path) -> None:
    path = bundles.make_bundle(tmp_path, providers=(CUDA, CPU_PROVIDER))
    bundle = open_bundle(leave_out(path, FP32))
    opener = Opener(bundle, CONFIG, BOTH, profile=DeviceProfile(providers=(CUDA, CPU_PROVIDER)), open_session=Loaded)  # type: ignore[arg-type]
    assert opener().variant.name == "cuda-fp32"
    with pytest.raises(SelectionError) as caught:
        opener({CUDA: "it is gone"})
    assert caught.value.details == ("cuda-fp32: needs CUDA: it is gone", f"cpu-fp32: {NOT_HERE}")


class Loaded:
    """A session on whatever it is asked for."""

    inputs, outputs = bundles.INPUTS, ("sentence_embedding",)

    def __init__(self, model: Path, tensors: Path | None, *, provider: str, **how: object) -> None:
        assert model.is_file()
        self.providers = (provider,)


def test_memory_for_what_is_absent_is_not_asked_for(path: Path) -> None:
    """Of the variants that no memory is enough for, the message names one that is here."""
    edit_json(path, "encoder/component.json", need_much_memory)
    relist(path)
    bundle = open_bundle(leave_out(path, "encoder/cpu-int8", SEVEN))
    config = AgentConfig(runtime=RuntimeConfig(memory_bytes=1 << 20))
    with pytest.raises(MemoryBudgetError, match="cpu-fp32"):
        open_best(
            bundle,
            config,
            BOTH[1:],
            profile=DeviceProfile(providers=(CPU_PROVIDER,)),
            room=room_of(1 << 20, NOTHING_TAKEN, None),
        )


def need_much_memory(component: dict[str, dict[str, dict[str, dict[str, dict[str, dict[str, int]]]]]]) -> None:
    for variant in component["variants"].values():
        variant["executor_info"]["edgeonnx"]["requirements"]["memory_bytes"] = 1 << 40
