"""The page `/`: the status as HTML, made here as a whole, so that it is there without a script too.

Everything is in the one answer: style, script and pictures. The Content-Security-Policy allows exactly these two texts
by their hashes, and requests to nobody but the agent itself. The script fetches the page again and puts the new body in
place of the old one. Whatever comes from outside (names, reasons) goes through `escape`.
"""

from __future__ import annotations

import base64
import hashlib
import time
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from device_agent.api.monitoring.status_updates import updates_section

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from device_agent.api.monitoring.status import (
        LatencyView,
        MemoryView,
        ModelView,
        OtherModel,
        QueueView,
        Status,
    )
    from device_agent.api.monitoring.status_generation import GenerationView


def _read(name: str) -> str:
    return files("device_agent").joinpath("data", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


PAGE = Template(_read("status.html"))
STYLE = _read("status.css")
SCRIPT = _read("status.js")
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_hash(STYLE)}; script-src {_hash(SCRIPT)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_STATES = {"ready": ("good", "ready: requests are taken"), "draining": ("warn", "stopping: no new requests are taken")}


def render_page(status: Status) -> str:
    """The whole page."""
    title = f"{status.state}: {', '.join(model.name for model in status.models) or 'no model'} - edgeonnx-agent"
    body = "\n".join(
        [
            _header(status),
            *(_model(model) for model in status.models),
            "" if status.updates is None else updates_section(status.updates),
            _others(status.others),
            _agent(status),
        ]
    )
    return PAGE.substitute(title=escape(title), style=STYLE, script=SCRIPT, body=body)


def _header(status: Status) -> str:
    kind, text = _STATES.get(status.state, ("bad", f"{status.state}: no requests are taken"))
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(status.time))
    return (
        f"<header><h1>edgeonnx-agent {escape(status.version)}</h1>"
        f'<span class="state {kind}">{escape(text)}</span>'
        f'<span class="soft">up {duration(status.uptime_seconds)}</span>'
        f'<span class="soft"><time>{now}</time></span></header>'
    )


def _model(model: ModelView) -> str:
    latency = model.latency
    tiles = {
        "requests/s": rate(model.requests_per_second),
        f"{_rows_are(model)}/s": rate(model.rows_per_second),
        "tokens/s": rate(model.tokens_per_second),
        "median": seconds(latency.p50),
        "95 %": seconds(latency.p95),
        "99 %": seconds(latency.p99),
        **({} if model.queue is None else _queue(model.queue)),
        **({} if model.generation is None else _generation(model.generation)),
    }
    return (
        f"<section><h2>{escape(model.name)} {escape(model.version)}</h2>"
        f"<p>Variant <strong>{escape(model.variant)}</strong> ({escape(model.precision)}) on "
        f"<strong>{escape(model.provider.name)}</strong></p>{_fallback(model)}{_tiles(tiles)}"
        f'<div class="columns"><div>{_latency(latency)}{_history(model.history)}</div>'
        f"<div>{_assignment(model)}{_totals(model)}</div></div>{_not_used(model)}</section>"
    )


def _rows_are(model: ModelView) -> str:
    return "texts" if model.generation is None else "answers"


def _queue(queue: QueueView) -> dict[str, str]:
    return {
        "texts waiting": number(queue.rows),
        "tokens waiting": number(queue.tokens),
        "tokens running": number(queue.running_tokens),
        "predicted wait": seconds(queue.wait_seconds),
    }


def _generation(found: GenerationView) -> dict[str, str]:
    return {
        "first token, median": seconds(found.first_p50),
        "first token, 95 %": seconds(found.first_p95),
        "each next token": seconds(found.token_p50),
        "running": f"{number(found.active)} of {number(found.most)}",
        "waiting": number(found.waiting),
        "caches": f"{size(found.cache_bytes)} of {size(found.cache_limit_bytes)}",
    }


def _fallback(model: ModelView) -> str:
    if model.provider.fallback is None:
        return ""
    return (
        f'<p class="alert"><strong class="warn">Fallback to {escape(model.provider.name)}.</strong> '
        f"{escape(model.provider.fallback)}</p>"
    )


def _tiles(values: Mapping[str, str]) -> str:
    tiles = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in values.items())
    return f'<dl class="tiles">{tiles}</dl>'


def _latency(latency: LatencyView) -> str:
    """The histogram as a table with bars, from the first to the last place that holds something."""
    head = "<h3>Time in the agent, requests of the last minute</h3>"
    used = [place for place, count in enumerate(latency.counts) if count]
    if not used:
        return f'{head}<p class="soft">no request</p>'
    most = max(latency.counts)
    rows = []
    for place in range(used[0], used[-1] + 1):
        count = latency.counts[place]
        last = place == len(latency.bounds)
        label = f"above {seconds(latency.bounds[-1])}" if last else f"up to {seconds(latency.bounds[place])}"
        rows.append((label, bar(count / most), number(count)))
    return f'{head}<table class="bars">{_rows(rows)}</table>'


def _history(history: Iterable[int]) -> str:
    counts = list(history)
    most = max(counts, default=0)
    height = [24 * count / most if most else 0 for count in counts]
    bars = "".join(
        f'<rect x="{place + 0.1:.1f}" y="{24 - tall:.2f}" width="0.8" height="{tall:.2f}"/>'
        for place, tall in enumerate(height)
        if tall
    )
    text = f"Requests in each second of the last minute, at most {number(most)}"
    return (
        f'<h3>{text}</h3><svg class="history" viewBox="0 0 {len(counts)} 24" preserveAspectRatio="none" role="img" '
        f'aria-label="{text}">{bars}</svg>'
    )


def _assignment(model: ModelView) -> str:
    head = "<h3>Nodes of the graph by provider</h3>"
    shares = model.provider.shares
    if not shares:
        return f'{head}<p class="soft">not recorded</p>'
    rows = [(escape(name), bar(share), f"{100 * share:.1f} %") for name, share in shares.items()]
    return f'{head}<table class="bars">{_rows(rows)}</table>'


def _totals(model: ModelView) -> str:
    loaded = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(model.loaded_at))
    rows = {
        "answered requests": number(model.answered),
        "failed requests": number(model.failed),
        "answered texts" if model.generation is None else "answers": number(model.rows),
        "runs of the model": number(model.runs),
        **({} if model.queue is None else _batches(model, model.queue)),
        **({} if model.generation is None else _tokens(model.generation)),
        "providers replaced": number(model.provider.replaced),
        "memory": size(model.memory_bytes),
        "tokenizer": escape(model.tokenizer),
        "loaded": loaded,
    }
    return f"<h3>Since it was loaded</h3><table>{_pairs(rows)}</table>"


def _batches(model: ModelView, queue: QueueView) -> dict[str, str]:
    return {
        "texts a run": f"{model.runs and model.rows / model.runs:.1f}",
        "runner threads": number(queue.runners),
    }


def _tokens(found: GenerationView) -> dict[str, str]:
    return {
        "tokens of prompts": number(found.prompt_tokens),
        "of them reused": number(found.cached_tokens),
        "generated tokens": number(found.generated_tokens),
        **{f"ended: {escape(reason)}": number(count) for reason, count in found.finished.items()},
        "longest sequence": f"{number(found.context_length)} tokens",
    }


def _not_used(model: ModelView) -> str:
    if not model.not_used:
        return ""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(reason)}</td></tr>" for name, reason in model.not_used.items()
    )
    return (
        f'<details id="{escape(model.name)}"><summary>Why the other variants are not used</summary>'
        f"<table>{rows}</table></details>"
    )


def _others(others: Iterable[OtherModel]) -> str:
    rows = "".join(
        f"<tr><th>{escape(other.name)} {escape(other.version)}</th>"
        f"<td>{escape(other.state)}{': ' if other.reason else ''}{escape(other.reason)}</td></tr>"
        for other in others
    )
    return f"<section><h2>Models that do not serve</h2><table>{rows}</table></section>" if rows else ""


def _agent(status: Status) -> str:
    responses = {escape(code): number(count) for code, count in status.responses.items()}
    refusals = {escape(reason.replace("_", " ")): number(count) for reason, count in status.refusals.items()}
    none = '<p class="soft">none</p>'
    return (
        "<section><h2>Agent</h2>"
        f"<p>{number(status.requests_in_flight)} requests in flight; live: {'yes' if status.live else 'no'}; "
        f"ready: {'yes' if status.ready else 'no'}</p>"
        f'<div class="columns"><div><h3>Memory</h3><table>{_pairs(_memory(status.memory))}</table></div>'
        f"<div><h3>HTTP responses by status</h3>{f'<table>{_pairs(responses)}</table>' if responses else none}</div>"
        f"<div><h3>Requests without a result</h3>{f'<table>{_pairs(refusals)}</table>' if refusals else none}</div>"
        "</div></section>"
    )


def _memory(memory: MemoryView) -> dict[str, str]:
    return {
        "this process": size(memory.resident),
        "of it mapped files": size(memory.mapped),
        "models, as measured": size(memory.models),
        "budget of the models": "what is available" if memory.budget is None else size(memory.budget),
        "available": size(memory.available),
    }


def _pairs(values: Mapping[str, str]) -> str:
    return "".join(f'<tr><th>{name}</th><td class="number">{value}</td></tr>' for name, value in values.items())


def _rows(rows: Iterable[tuple[str, str, str]]) -> str:
    return "".join(
        f'<tr><th>{name}</th><td>{middle}</td><td class="number">{value}</td></tr>' for name, middle, value in rows
    )


def bar(share: float) -> str:
    """A bar of a share, 0.0 to 1.0; the number stands beside it, so it is hidden from screen readers."""
    width = 100 * min(1.0, max(0.0, share))
    return f'<svg class="bar" aria-hidden="true"><rect width="{width:.1f}%" height="100%"/></svg>'


def number(value: int) -> str:
    """A whole number with separators."""
    return f"{value:,}"


def rate(value: float) -> str:
    """A number per second with as many digits as one can use."""
    return f"{value:,.1f}" if 0 < value < 100 else f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """A short time: `0.42 ms`, `12 ms`, `1.5 s`; a dash for None."""
    if value is None:
        return "&ndash;"
    if value >= 1:
        return f"{value:,.1f} s" if value < 10 else f"{value:,.0f} s"
    return f"{value * 1e3:.2g} ms" if value < 0.01 else f"{value * 1e3:.0f} ms"


def duration(value: float) -> str:
    """A long time: `3 d 4 h`, `2 h 5 min`, `1 min 12 s`, `7 s`."""
    whole = int(value)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def size(value: int | None) -> str:
    """A number of bytes: `512 KiB`, `157 MiB`, `1.5 GiB`."""
    if value is None:
        return "unknown"
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if value >= unit:
            return f"{value / unit:,.{1 if value < 10 * unit else 0}f} {name}"
    return f"{value / 1024:,.0f} KiB"
