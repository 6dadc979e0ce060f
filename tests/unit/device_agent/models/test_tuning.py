from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.inference.devices.cache import Cache
from device_agent.inference.devices.providers import CPU_PROVIDER, CUDA_PROVIDER
from device_agent.inference.queue.plan import Measurement
from device_agent.models import tuning
from device_agent.models.tuning import first_threads, tuned, usual_row
from edgeonnx.bundle import Bundle, open_bundle
from tests.support import bundles


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(bundles.make_bundle(tmp_path_factory.mktemp("tuning")))


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "usable_cpus", lambda: 4)


class Opened:
    """Opens fake engines, and remembers with how many threads."""

    def __init__(self, provider: str = CPU_PROVIDER) -> None:
        self.threads: list[int] = []
        self._provider = provider

    def __call__(self, threads: int) -> SimpleNamespace:
        self.threads.append(threads)
        return SimpleNamespace(
            provider=self._provider, variant=SimpleNamespace(name="v"), threads=threads, inputs=bundles.INPUTS
        )


def config(**runtime: object) -> AgentConfig:
    return AgentConfig(runtime=RuntimeConfig(**runtime))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "provider", "runners", "threads"),
    [
        ({"runners": 2}, CPU_PROVIDER, 2, 2),
        ({"threads": 4}, CPU_PROVIDER, 1, 4),
        ({}, CUDA_PROVIDER, 1, 1),
        ({}, CPU_PROVIDER, 4, 1),  # nothing is measured where nothing is kept
    ],
)
def test_what_needs_no_measurement_opens_the_model_once(
    bundle: Bundle, settings: dict[str, int], provider: str, runners: int, threads: int
) -> None:
    opened = Opened(provider)
    engine, plan = tuned(bundle, config(**settings), Cache(None), opened)  # type: ignore[arg-type]
    assert (plan.runners, plan.threads) == (runners, threads)
    assert opened.threads == [engine.threads] == [first_threads(config(**settings))]  # type: ignore[attr-defined]


def test_a_measurement_is_made_once_and_kept(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def measure(open_once, row, *, cpus: int, budget: int) -> list[Measurement]:
        calls.append((cpus, budget, {name: value.shape for name, value in row.items()}))
        speeds = {(4, 1): 100.0, (2, 2): 300.0, (1, 4): 90.0}
        assert [open_once(threads).threads for _, threads in speeds] == [1, 2, 4]
        return [
            Measurement(runners=runners, threads=threads, tokens_per_second=speed, solo_seconds=0.01)
            for (runners, threads), speed in speeds.items()
        ]

    monkeypatch.setattr(tuning, "measure", measure)
    for opens in ([1, 2, 4], [1, 2]):
        opened = Opened()
        engine, plan = tuned(bundle, config(), Cache(tmp_path / "cache"), opened)  # type: ignore[arg-type]
        assert (plan.runners, plan.threads, engine.threads) == (2, 2, 2)  # type: ignore[attr-defined]
        assert "measured" in plan.reason
        assert opened.threads == opens
    assert len(calls) == 1
    assert calls[0][:2] == (4, AgentConfig().queue.batch_tokens)


def test_the_usual_row_is_a_golden_one_of_middle_length_without_padding(bundle: Bundle) -> None:
    golden = bundle.golden()
    lengths = sorted(golden.inputs["attention_mask"].sum(axis=1).tolist())
    row = usual_row(bundle, bundles.INPUTS)
    assert {name: value.shape for name, value in row.items()} == dict.fromkeys(bundles.INPUTS, (1, lengths[2]))
    assert row["attention_mask"].all()
