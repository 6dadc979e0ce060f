from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from edgeonnx.bundle import Verifier, open_bundle
from edgeonnx.bundle.needs import common_files
from edgeonnx.errors import IntegrityError
from edgeonnx.spec.manifest import Task
from tests.support import bundles

TENSOR = re.compile(r"[0-9a-f]{64}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three variants over one folder of tensors; the second one's graph names a tensor that the others do not."""
    return bundles.make_bundle(tmp_path, variants=bundles.CPU_VARIANTS)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def tensors_of(external: tuple[str, ...]) -> set[str]:
    return set(bundles.graph(Task.EMBEDDING, external=external)[1])


def test_common_files_are_all_but_the_variants(path: Path) -> None:
    bundle = open_bundle(path)
    names = {entry.path.rpartition("/")[2] for entry in common_files(bundle)}
    assert {"manifest.json", "component.json", "evidence.json", "tokenizer.json", "golden.json"} <= names
    assert "model.onnx" not in names
    assert not [name for name in names if TENSOR.fullmatch(name)]


def test_a_variant_is_its_graph_and_the_tensors_that_the_graph_names(path: Path) -> None:
    bundle = open_bundle(path)
    for index, external in ((0, ("words",)), (1, ("words", "types"))):
        verifier = Verifier(bundle)
        variant = bundle.manifest.entry_component.variants[index]
        verifier.verify_variant("encoder", variant)
        graphs = {name for name in verifier.verified if name.startswith("encoder/")}
        assert graphs == {f"encoder/{variant.name}/model.onnx"}
        assert {name.rpartition("/")[2] for name in verifier.verified - graphs} == tensors_of(external)


def test_everything_together_is_every_file(path: Path) -> None:
    bundle = open_bundle(path)
    verifier = Verifier(bundle)
    verifier.verify_common()
    for variant in bundle.manifest.entry_component.variants:
        verifier.verify_variant("encoder", variant)
    assert verifier.verified == {entry.path for entry in bundle.contents.files}


def test_damage_is_found_where_it_is_used_and_only_there(path: Path) -> None:
    flip(path / "encoder/cpu-fp32/model.onnx")
    bundle = open_bundle(path)
    int8, seven, fp32 = bundle.manifest.entry_component.variants
    verifier = Verifier(bundle)
    verifier.verify_common()
    verifier.verify_variant("encoder", int8)
    for _ in range(2):  # what did not pass is not taken for verified
        with pytest.raises(IntegrityError, match=r"encoder/cpu-fp32/model\.onnx"):
            verifier.verify_variant("encoder", fp32)
    extra = next(iter(tensors_of(("types",))))
    flip(next(path.glob(f"shared_assets/*/{extra}")))
    with pytest.raises(IntegrityError, match=extra):
        verifier.verify_variant("encoder", seven)


def test_a_damaged_common_file(path: Path) -> None:
    flip(path / "evidence.json")
    bundle = open_bundle(path)
    with pytest.raises(IntegrityError, match=r"evidence\.json: sha256"):
        Verifier(bundle).verify_common()


def test_a_file_that_is_gone_or_a_link(path: Path) -> None:
    bundle = open_bundle(path)
    (variant, *_) = bundle.manifest.entry_component.variants
    graph = path / "encoder/cpu-int8/model.onnx"
    target = path.parent / "elsewhere.onnx"
    graph.rename(target)
    with pytest.raises(IntegrityError, match="cannot be read"):
        Verifier(bundle).verify_variant("encoder", variant)
    graph.symlink_to(target)
    with pytest.raises(IntegrityError, match="cannot be read"):
        Verifier(bundle).verify_variant("encoder", variant)


def test_names_are_found_at_any_place_of_a_graph(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of a read: also a name that two reads share."""
    bundle = open_bundle(path)
    variant = bundle.manifest.entry_component.variants[1]
    for size in (64, 65, 100, 127):
        monkeypatch.setattr("edgeonnx.bundle.verifier.CHUNK_BYTES", size)
        verifier = Verifier(bundle)
        verifier.verify_variant("encoder", variant)
        assert len(verifier.verified) == 3


def test_a_file_is_hashed_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = open_bundle(path)
    verifier = Verifier(bundle)
    verifier.verify_common()
    monkeypatch.setattr(verifier, "_hash", lambda *args, **kwargs: pytest.fail("hashed again"))
    verifier.verify_common()


def test_changes_after_the_hashing_are_seen(path: Path) -> None:
    bundle = open_bundle(path)
    verifier = Verifier(bundle)
    verifier.verify_common()
    assert verifier.changed() == ()
    flip(path / "encoder/cpu-fp32/model.onnx")  # not verified, so nobody relies on it
    assert verifier.changed() == ()
    evidence = path / "evidence.json"
    evidence.write_bytes(evidence.read_bytes())  # the same bytes, but somebody wrote
    assert verifier.changed() == ("evidence.json",)
    (path / "manifest.json").unlink()
    assert set(verifier.changed()) == {"evidence.json", "manifest.json"}


def test_a_further_name_for_a_file_changes_nothing_and_a_write_with_the_time_set_back_does(path: Path) -> None:
    verifier = Verifier(open_bundle(path))
    verifier.verify_common()
    evidence = path / "evidence.json"
    (path.parent / "shared").hardlink_to(evidence)
    assert verifier.changed() == ()
    before = evidence.stat()
    data = bytearray(evidence.read_bytes())
    data[10] ^= 1
    evidence.write_bytes(data)
    os.utime(evidence, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert verifier.changed() == ("evidence.json",)
