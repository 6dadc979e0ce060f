from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from device_agent.api.monitoring.metrics import Metrics
from device_agent.api.monitoring.status import (
    LatencyView,
    MemoryView,
    ModelView,
    OtherModel,
    ProviderView,
    QueueView,
    Status,
    earlier_variant,
    fallback_of,
    latency_view,
    read_status,
)
from device_agent.api.monitoring.status_page import HEADERS, SCRIPT, STYLE, duration, rate, render_page, seconds, size
from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.models.states import ModelEntry, ModelState

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
EVIL = "<img src=x onerror=alert(1)>\"'&"


def model(**changes: Any) -> ModelView:
    base = ModelView(
        name="minilm",
        version="1.0.0",
        variant="cpu-int8",
        precision="int8",
        tokenizer="wordpiece-native",
        provider=ProviderView(name="CPU", fallback=None, shares={"CUDA": 0.855, "CPU": 0.145}, replaced=0),
        not_used={"cpu-fp32": "cpu-int8 is preferred"},
        queue=QueueView(
            requests=2, rows=41, tokens=1234, running_tokens=512, tokens_per_second=5000.0, wait_seconds=0.25, runners=2
        ),
        requests_per_second=12.34,
        rows_per_second=123.4,
        tokens_per_second=2345.6,
        history=[0] * 57 + [3, 6, 1],
        latency=LatencyView(bounds=(0.01, 0.1), counts=(10, 5, 0), p50=0.0075, p95=0.08, p99=None),
        answered=1000,
        failed=7,
        rows=4200,
        runs=600,
        memory_bytes=50 << 20,
        loaded_at=1_700_000_000.0,
    )
    return dataclasses.replace(base, **changes)


def status(*models: ModelView, **changes: Any) -> Status:
    base = Status(
        version="0.1.0",
        state="ready",
        live=True,
        ready=True,
        uptime_seconds=3725.0,
        time=1_700_000_000.0,
        requests_in_flight=3,
        models=models,
        others=(),
        responses={"200": 1000, "429": 12},
        refusals={"client_gone": 4},
        memory=MemoryView(resident=157 << 20, mapped=20 << 20, models=50 << 20, budget=None, available=3 << 30),
    )
    return dataclasses.replace(base, **changes)


class Tags(HTMLParser):
    """The tags of a page, checked for being closed in order."""

    VOID = frozenset({"meta", "link", "rect"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("style", "script"):
            self.text.append(data)


def text_of(page: str) -> str:
    return " ".join(" ".join(Tags(page).text).split())


def test_the_page_says_what_an_operator_looks_for() -> None:
    text = text_of(render_page(status(model())))
    for part in (
        "edgeonnx-agent 0.1.0",
        "ready: requests are taken",
        "up 1 h 2 min",
        "minilm 1.0.0",
        "Variant cpu-int8 (int8) on CPU",
        "requests/s 12.3",
        "texts/s 123",
        "tokens/s 2,346",
        "median 7.5 ms",
        "99 % –",
        "texts waiting 41",
        "tokens waiting 1,234",
        "predicted wait 250 ms",
        "up to 10 ms 10",
        "CUDA 85.5 %",
        "CPU 14.5 %",
        "at most 6",
        "failed requests 7",
        "texts a run 7.0",
        "cpu-fp32 cpu-int8 is preferred",
        "3 requests in flight; live: yes; ready: yes",
        "this process 157 MiB",
        "budget of the models what is available",
        "available 3.0 GiB",
        "429 12",
        "client gone 4",
    ):
        assert part in text, part
    assert "Fallback" not in text


def test_a_fallback_is_told_in_words() -> None:
    provider = ProviderView(name="CPU", fallback="CUDA was lost while serving: out of memory", shares={}, replaced=1)
    text = text_of(render_page(status(model(provider=provider))))
    assert "Fallback to CPU. CUDA was lost while serving: out of memory" in text
    assert "providers replaced 1" in text
    assert "not recorded" in text


def test_an_agent_that_is_not_ready() -> None:
    loading = text_of(render_page(status(state="loading", ready=False)))
    assert "loading: no requests are taken" in loading
    assert "ready: no" in loading
    assert "stopping: no new requests are taken" in text_of(render_page(status(state="draining", ready=False)))


def test_models_that_do_not_serve_have_their_reason() -> None:
    others = (
        OtherModel(name="big", version="2", state="failed", reason="no room"),
        OtherModel(name="old", version="", state="unloaded", reason=""),
    )
    text = text_of(render_page(status(others=others)))
    assert "big 2 failed: no room" in text
    assert "old unloaded" in text


def test_everything_from_outside_is_escaped() -> None:
    provider = ProviderView(name=EVIL, fallback=EVIL, shares={EVIL: 1.0}, replaced=0)
    evil = model(name=EVIL, version=EVIL, variant=EVIL, precision=EVIL, tokenizer=EVIL, provider=provider)
    evil = dataclasses.replace(evil, not_used={EVIL: EVIL})
    other = OtherModel(name=EVIL, version=EVIL, state=EVIL, reason=EVIL)
    page = render_page(status(evil, state=EVIL, version=EVIL, others=[other], responses={EVIL: 1}, refusals={EVIL: 1}))
    tags = Tags(page)
    assert "img" not in {tag for tag, _ in tags.found}
    assert EVIL in " ".join(tags.text)
    assert not [attributes for _, attributes in tags.found if any(name.startswith("on") for name in attributes)]


def test_nothing_comes_from_outside() -> None:
    tags = Tags(render_page(status(model())))
    links = [value for _, attributes in tags.found for name, value in attributes.items() if name in ("href", "src")]
    assert links == ["data:,"]
    assert "http" not in STYLE
    assert "url(" not in STYLE
    assert "http" not in SCRIPT
    # The policy allows no style in an attribute, so one would silently not work.
    assert not [attributes for _, attributes in tags.found if "style" in attributes]


def test_the_policy_names_exactly_the_pages_style_and_script() -> None:
    page = render_page(status(model()))
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_bars_are_as_long_as_their_numbers() -> None:
    page = render_page(status(model()))
    assert re.findall(r'<rect width="([\d.]+)%"', page) == ["100.0", "50.0", "85.5", "14.5"]
    heights = re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="0.8" height="([\d.]+)"/>', page)
    assert heights == ["12.00", "24.00", "4.00"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "&ndash;"),
        (0.0, "0 ms"),
        (0.00042, "0.42 ms"),
        (0.0099, "9.9 ms"),
        (0.0999, "100 ms"),
        (1.25, "1.2 s"),
        (90.0, "90 s"),
    ],
)
def test_short_times(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_numbers_for_people() -> None:
    assert [duration(value) for value in (7.9, 72, 7500, 273600)] == ["7 s", "1 min 12 s", "2 h 5 min", "3 d 4 h"]
    assert [rate(value) for value in (0.0, 0.25, 99.96, 1234.5)] == ["0", "0.2", "100.0", "1,234"]
    sizes = (None, 1000, 5 << 20, 157 << 20, 3 << 29)
    assert [size(value) for value in sizes] == ["unknown", "1 KiB", "5.0 MiB", "157 MiB", "1.5 GiB"]


def engine(provider: str, not_used: dict[str, str], *replacements: object) -> Any:
    return SimpleNamespace(provider=provider, not_used=not_used, replacements=replacements)


@pytest.mark.parametrize(
    ("provider", "not_used", "providers", "expected"),
    [
        (CPU, {}, (), None),
        (CPU, {"cpu-fp32": "less fast"}, (), None),
        (CPU, {"cuda": "needs CUDA: libcublas.so.13 is missing"}, (), "cuda: needs CUDA: libcublas.so.13 is missing"),
        (CPU, {"cuda": "left out"}, ("CPU",), None),
        (CUDA, {"cpu-fp32": "less fast"}, (), None),
        (CUDA, {"trt": "needs TensorRT"}, (), "trt: needs TensorRT"),
        (CUDA, {"trt": "needs TensorRT"}, ("CUDA", "TensorRT"), None),
    ],
)
def test_a_fallback_is_a_provider_that_comes_later_than_one_that_the_bundle_was_made_for(
    provider: str, not_used: dict[str, str], providers: tuple[str, ...], expected: str | None
) -> None:
    needs = {"cpu-fp32": CPU, "cpu-int8": CPU, "cuda": CUDA, "trt": TENSORRT}
    config = AgentConfig(runtime=RuntimeConfig(providers=providers))
    assert earlier_variant(engine(provider, not_used), needs, config) == expected


def test_a_provider_that_was_lost_and_a_variant_that_was_chosen() -> None:
    lost = SimpleNamespace(lost=CUDA, cause="out of memory")
    loaded: Any = SimpleNamespace(engine=engine(CPU, {"cuda": "x"}, lost))
    assert fallback_of(loaded, AgentConfig()) == "CUDA was lost while serving: out of memory"
    loaded = SimpleNamespace(engine=engine(CPU, {"cuda": "x"}))
    assert fallback_of(loaded, AgentConfig(runtime=RuntimeConfig(variant="cpu-int8"))) is None


def test_latency_of_nothing() -> None:
    counters = Metrics().of(SimpleNamespace(name="a", version="1"))  # type: ignore[arg-type]
    view = latency_view(counters, 0.0)
    assert (view.p50, view.p95, view.p99) == (None, None, None)
    assert sum(view.counts) == 0


def test_the_status_of_a_model_that_serves(connect) -> None:
    client = connect()
    for _ in range(3):
        client.post("/v1/embeddings", json={"model": "tiny", "input": ["the cat", "hello"]})
    client.post("/v1/embeddings", content=b"nonsense")
    context = client.app.state.context
    entry = ModelEntry(name="old", version="1", state=ModelState.FAILED, reason="damaged")
    found = orjson.loads(orjson.dumps(read_status(context, [entry])))
    assert found["state"] == "ready"
    assert found["responses"] == {"200": 3, "400": 1}
    assert found["refusals"] == {"invalid": 1}
    assert found["others"] == [{"name": "old", "version": "1", "state": "failed", "reason": "damaged"}]
    assert found["memory"]["resident"] > found["memory"]["mapped"] > 0
    (tiny,) = found["models"]
    assert (tiny["name"], tiny["answered"], tiny["rows"]) == ("tiny", 3, 6)
    assert tiny["provider"] == {"name": "CPU", "fallback": None, "shares": {"CPU": 1.0}, "replaced": 0}
    assert sum(tiny["latency"]["counts"]) == 3
    assert 0 < tiny["latency"]["p50"] <= tiny["latency"]["p99"]


def test_the_routes(connect) -> None:
    client = connect()
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name, value in HEADERS.items():
        assert page.headers[name] == value
    assert "tiny 1.0.0" in text_of(page.text)
    data = client.get("/status.json")
    assert data.headers["cache-control"] == "no-store"
    assert data.json()["models"][0]["name"] == "tiny"


def test_a_loading_agent_has_a_page_too(connect) -> None:
    assert "loading: no requests are taken" in text_of(connect(ready=False).get("/").text)
