from __future__ import annotations

from pathlib import Path

import pytest

from device_agent.inference.devices.cache import Cache
from device_agent.inference.devices.compiled import Compiled
from edgeonnx.bundle import Bundle, open_bundle
from tests.support import bundles

CPU, TENSORRT, OPENVINO = "CPUExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("compiled")
    return open_bundle(bundles.make_bundle(folder, providers=(TENSORRT, OPENVINO, CPU)))


def test_what_a_provider_compiles_is_there_at_the_next_load(bundle: Bundle, tmp_path: Path) -> None:
    variants = {variant.name: variant for variant in bundle.manifest.entry_component.variants}
    tensorrt, cpu = variants["tensorrt-fp32"], variants["cpu-fp32"]
    first = Compiled(Cache(tmp_path), bundle.digest, "1.32.0")
    assert first(cpu) is None
    folder = first(tensorrt)
    assert folder is not None
    assert folder == first(tensorrt)
    (folder / "graph.engine").write_bytes(b"engine")
    first.close()
    assert not folder.exists()
    again = Compiled(Cache(tmp_path), bundle.digest, "1.32.0")
    found = again(tensorrt)
    assert found is not None
    assert (found / "graph.engine").read_bytes() == b"engine"
    other = Compiled(Cache(tmp_path), bundle.digest, "1.33.0")(tensorrt)
    assert other is not None
    assert list(other.iterdir()) == []


def test_an_entry_is_for_one_provider_and_its_device(bundle: Bundle, tmp_path: Path) -> None:
    tensorrt, openvino, _ = bundle.manifest.entry_component.variants
    compiled = Compiled(Cache(tmp_path), bundle.digest, "1.32.0", gpu=3)
    assert compiled.key(tensorrt).device.startswith("gpu 3 ")
    assert "driver" not in compiled.key(openvino).device
    assert compiled.key(tensorrt).bundle == bundle.digest


def test_without_a_cache_there_is_no_folder(bundle: Bundle) -> None:
    compiled = Compiled(Cache(None), bundle.digest, "1.32.0")
    assert compiled(bundle.manifest.entry_component.variants[0]) is None
    compiled.close()
