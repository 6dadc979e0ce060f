from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.update.install import candidate
from edgeonnx.bundle import open_bundle
from edgeonnx.errors import SelectionError
from tests.support.bundles import CPU, CPU_VARIANTS, TinyVariant, make_bundle

CUDA = "CUDAExecutionProvider"
EXACT = TinyVariant(precision="int8-7bit", integer=CPU_VARIANTS[1].integer)
GPU = TinyVariant(precision="fp16", provider=CUDA)


@pytest.mark.parametrize(
    ("providers", "settings", "expected"),
    [
        ((CPU,), {}, ["cpu-int8-7bit"]),
        ((CUDA, CPU), {}, ["cuda-fp16", "cpu-int8-7bit"]),
        ((CPU, CUDA), {}, ["cpu-int8-7bit", "cuda-fp16"]),
        ((CUDA, CPU), {"policy": "refuse"}, ["cuda-fp16"]),
        ((CUDA, CPU), {"variant": "cpu-fp32"}, ["cpu-fp32"]),
    ],
    ids=["a CPU alone", "a GPU and what it falls back to", "the operator's order", "no falling back", "the operator's"],
)
def test_the_variants_that_a_machine_would_run(
    tmp_path: Path, providers: tuple[str, ...], settings: dict[str, str], expected: list[str]
) -> None:
    bundle = open_bundle(make_bundle(tmp_path, variants=(GPU, EXACT, TinyVariant())))
    config = AgentConfig(runtime=RuntimeConfig(**settings))  # type: ignore[arg-type]
    variants = bundle.manifest.entry_component.variants
    assert candidate.usable_variants(variants, providers, config) == expected


def test_a_machine_that_none_fits_says_so(tmp_path: Path) -> None:
    bundle = open_bundle(make_bundle(tmp_path, variants=(GPU,)))
    with pytest.raises(SelectionError):
        candidate.usable_variants(bundle.manifest.entry_component.variants, (CPU,), AgentConfig())


@pytest.mark.parametrize(
    ("settings", "bundle", "device"),
    [("[nonsense]", "tiny-1.0.0", True), ("", "nothing", False)],
    ids=["the machine's fault", "the release's"],
)
def test_whose_fault_it_is_that_nothing_is_proven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str, bundle: str, device: bool
) -> None:
    make_bundle(tmp_path)
    (tmp_path / "agent.toml").write_text(settings)
    assert candidate.main(["prove", str(tmp_path / bundle), str(tmp_path / "agent.toml")]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["device"]) == (False, device)
