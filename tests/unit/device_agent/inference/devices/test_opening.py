from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.inference.devices import opening, probing
from device_agent.inference.devices.assignment import Assignment
from device_agent.inference.devices.cache import Cache
from device_agent.inference.devices.compiled import Compiled
from device_agent.inference.devices.opening import NOT_LOADED, Opener, usable_here
from device_agent.inference.devices.providers import OptionSettings, ProviderStatus
from device_agent.inference.engine import Engine
from device_agent.inference.session import Session
from edgeonnx.bundle import Bundle, open_bundle
from edgeonnx.errors import (
    ManifestError,
    ProviderLostError,
    RuntimeUnavailableError,
    SelectionError,
    UsageError,
)
from tests.support import bundles

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
CONFIG = AgentConfig()
INPUTS = {name: np.ones((1, 2), dtype=np.int64) for name in bundles.INPUTS}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("opening")
    return open_bundle(bundles.make_bundle(folder, providers=(TENSORRT, CUDA, CPU)))


def config(**runtime: object) -> AgentConfig:
    return dataclasses.replace(CONFIG, runtime=RuntimeConfig(**runtime))  # type: ignore[arg-type]


def statuses(**usable: str) -> tuple[ProviderStatus, ...]:
    """`TENSORRT`, `CUDA` and `CPU`; those named cannot be used, for the reason given."""
    names = {"tensorrt": TENSORRT, "cuda": CUDA, "cpu": CPU}
    return tuple(
        ProviderStatus(name=name, usable=label not in usable, reason=usable.get(label, ""), hint="do this")
        for label, name in names.items()
    )


class Fakes:
    """Opens fake sessions that load as `loads` says, and run as `fails` says; the CPU's are real."""

    def __init__(self, loads: Mapping[str, str | Exception] | None = None, fails: Sequence[str] = ()) -> None:
        self.loads, self.fails = loads or {}, fails
        self.plans: list[list[str]] = []
        self.options: list[dict[str, Mapping[str, str]]] = []

    def __call__(
        self, model: Path, tensors: Path | None, *, provider: str, threads: int, plan: list, spinning: bool
    ) -> object:
        self.plans.append([name for name, _ in plan])
        self.spinning = spinning
        self.options.append(dict(plan))
        outcome = self.loads.get(provider, provider)
        if isinstance(outcome, Exception):
            raise outcome
        if provider == CPU:
            return Session(model, tensors, provider=CPU, threads=threads)
        return FakeSession(outcome, provider in self.fails)


class FakeSession:
    inputs, outputs, bound, threads = bundles.INPUTS, ("sentence_embedding",), False, 1
    assignment = Assignment()

    def __init__(self, provider: str, fails: bool) -> None:
        self.providers = (provider, CPU)
        self.fails = fails

    def run(self, inputs: object, outputs: object = None) -> dict[str, np.ndarray]:
        if self.fails:
            raise ProviderLostError("the execution provider failed", where=self.providers[0], found="it is gone")
        return {"sentence_embedding": np.zeros((1, bundles.DIM), np.float32)}


def test_the_preferred_usable_provider_serves_its_own_variant(bundle: Bundle) -> None:
    fakes = Fakes()
    found = Opener(bundle, CONFIG, statuses(tensorrt="no TensorRT here"), open_session=fakes)()  # type: ignore[arg-type]
    assert found.variant.name == "cuda-fp32"
    assert found.not_used == {
        "tensorrt-fp32": "needs TensorRT: no TensorRT here",
        "cpu-fp32": "cuda-fp32 is preferred",
    }
    assert fakes.plans == [[CUDA, CPU]]
    assert fakes.options[0][CUDA]["use_tf32"] == "0"


def test_tensorrt_leaves_nodes_to_cuda_where_that_works(bundle: Bundle) -> None:
    fakes = Fakes()
    Opener(bundle, CONFIG, statuses(), open_session=fakes)()  # type: ignore[arg-type]
    Opener(bundle, CONFIG, statuses(cuda="broken"), open_session=fakes)()  # type: ignore[arg-type]
    assert fakes.plans == [[TENSORRT, CUDA, CPU], [TENSORRT, CPU]]


def test_the_operators_order_decides(bundle: Bundle) -> None:
    order = tuple(reversed(statuses()))
    assert Opener(bundle, CONFIG, order, open_session=Fakes())().variant.name == "cpu-fp32"  # type: ignore[arg-type]


def test_a_provider_that_the_operator_left_out_is_never_opened(bundle: Bundle) -> None:
    fakes = Fakes()
    found = Opener(bundle, CONFIG, statuses()[2:], open_session=fakes)()  # type: ignore[arg-type]
    assert found.not_used["cuda-fp32"] == "needs CUDA, which runtime.providers leaves out"
    assert fakes.plans == [[CPU]]


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(RuntimeUnavailableError("no", found="bad engine"), "bad engine"), (CPU, NOT_LOADED)],
)
def test_a_provider_that_does_not_load_this_graph_is_left_for_the_next_one(
    bundle: Bundle, outcome: str | Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    fakes = Fakes({CUDA: outcome})
    found = Opener(bundle, CONFIG, statuses(tensorrt="x"), open_session=fakes)()  # type: ignore[arg-type]
    assert found.variant.name == "cpu-fp32"
    assert found.not_used["cuda-fp32"] == f"{CUDA} does not load: {reason}"
    assert fakes.plans == [[CUDA, CPU], [CPU]]
    assert len(caplog.records) == 1
    assert reason in caplog.text


def test_the_cpu_that_does_not_load_it_is_the_end(bundle: Bundle) -> None:
    fakes = Fakes({CPU: RuntimeUnavailableError("broken graph")})
    with pytest.raises(RuntimeUnavailableError, match="broken graph"):
        Opener(bundle, CONFIG, statuses(tensorrt="x", cuda="x"), open_session=fakes)()  # type: ignore[arg-type]


def test_no_variant_left_gives_the_reason_for_each(bundle: Bundle) -> None:
    unusable = statuses(tensorrt="no TensorRT", cuda="no driver")[:2]
    with pytest.raises(SelectionError) as caught:
        Opener(bundle, CONFIG, unusable, open_session=Fakes())()  # type: ignore[arg-type]
    assert caught.value.details == (
        "tensorrt-fp32: needs TensorRT: no TensorRT",
        "cuda-fp32: needs CUDA: no driver",
        "cpu-fp32: needs CPU, which runtime.providers leaves out",
    )


def test_refuse_means_refuse_before_and_at_the_load(bundle: Bundle) -> None:
    strict = config(policy="refuse")
    with pytest.raises(
        RuntimeUnavailableError, match=r"runtime\.policy is refuse.*TensorRT cannot be used: no TensorRT"
    ):
        Opener(bundle, strict, statuses(tensorrt="no TensorRT"), open_session=Fakes())  # type: ignore[arg-type]
    fakes = Fakes({TENSORRT: RuntimeUnavailableError("no", found="bad engine")})
    with pytest.raises(RuntimeUnavailableError, match="TensorRT cannot be used: bad engine"):
        Opener(bundle, strict, statuses(), open_session=fakes)()  # type: ignore[arg-type]
    # The variant that the operator asked for does not need TensorRT.
    wanted = config(policy="refuse", variant="cuda-fp32")
    assert Opener(bundle, wanted, statuses(tensorrt="x"), open_session=Fakes())().variant.name == "cuda-fp32"  # type: ignore[arg-type]


def test_a_graph_with_other_inputs_than_it_states(bundle: Bundle) -> None:
    class Other(FakeSession):
        inputs = ("pixels",)

    with pytest.raises(ManifestError, match="other inputs"):
        Opener(bundle, CONFIG, statuses(tensorrt="x"), open_session=lambda *_, **__: Other(CUDA, False))()  # type: ignore[arg-type]


def test_an_engine_falls_back_to_the_variant_made_for_the_next_provider(bundle: Bundle) -> None:
    opener = Opener(bundle, CONFIG, statuses(cuda="no driver"), open_session=Fakes(fails=[TENSORRT]))  # type: ignore[arg-type]
    opened = opener()
    engine = Engine(opened.variant, opened.session, opened.not_used, reopen=opener)
    assert engine.variant.name == "tensorrt-fp32"
    found = engine.run(INPUTS)["sentence_embedding"]
    assert engine.variant.name == "cpu-fp32"
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)
    assert engine.not_used == {
        "tensorrt-fp32": "needs TensorRT: lost while it served: it is gone",
        "cuda-fp32": "needs CUDA: no driver",
    }


def test_the_cpu_that_takes_over_uses_the_cores_that_one_runner_would_leave_idle(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "usable_cpus", lambda: 6)
    lost = {TENSORRT: "x", CUDA: "x"}
    for runtime, first, reopened in (({}, 1, 6), ({"runners": 2}, 1, 3), ({"runners": 8, "threads": 2}, 2, 2)):
        order = statuses()[2:]
        opener = Opener(bundle, config(**runtime), order, open_session=Fakes())  # type: ignore[arg-type]
        assert (opener().session.threads, opener(lost).session.threads) == (first, reopened)


def test_only_what_a_bundle_needs_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def probe(names: tuple[str, ...], settings: OptionSettings) -> tuple[ProviderStatus, ...]:
        asked.append(names)
        return ()

    monkeypatch.setattr(probing, "probe_once", probe)
    usable_here(CONFIG, [CPU])
    usable_here(CONFIG, [TENSORRT])
    usable_here(config(providers=("CPU", "CUDA")), [TENSORRT, CUDA])
    usable_here(CONFIG)
    assert asked == [(CPU,), (TENSORRT, CUDA, CPU), (CPU, CUDA), (TENSORRT, CUDA, "OpenVINOExecutionProvider", CPU)]


def test_a_provider_that_does_not_exist_is_wrong_usage() -> None:
    with pytest.raises(UsageError):
        usable_here(config(providers=("Vulkan",)))


@pytest.mark.parametrize("spinning", [False, True])
def test_threads_spin_only_where_the_operator_said_so(bundle: Bundle, spinning: bool) -> None:
    fakes = Fakes()
    settings = config(spinning=True) if spinning else CONFIG
    Opener(bundle, settings, statuses(), open_session=fakes)()  # type: ignore[arg-type]
    assert fakes.spinning is spinning


def test_this_machine_really_serves(bundle: Bundle) -> None:
    opened = Opener(bundle, CONFIG, usable_here(CONFIG))()
    assert opened.variant.name == "cpu-fp32"
    assert opened.session.assignment.share(CPU) == 1.0


def test_the_folder_reaches_the_options_of_the_provider(bundle: Bundle, tmp_path: Path) -> None:
    fakes = Fakes()
    compiled = Compiled(Cache(tmp_path), bundle.digest, "1.32.0")
    Opener(bundle, CONFIG, statuses(), cache=compiled, open_session=fakes)()  # type: ignore[arg-type]
    assert Path(fakes.options[0][TENSORRT]["trt_engine_cache_path"]).parent == tmp_path
    compiled.close()
