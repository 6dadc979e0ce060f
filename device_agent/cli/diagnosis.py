"""How doctor's report looks in a terminal: readable at 80 columns, plain text when piped."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from edgeonnx.errors import printable
from edgeonnx.spec.numerics import integer_kernel, why

if TYPE_CHECKING:
    from collections.abc import Iterable

    from device_agent.cli.doctor import Report
    from device_agent.inference.devices.providers import ProviderStatus
    from edgeonnx.errors import EdgeOnnxError

WIDTH = 80
"""Columns where the output is no terminal: what people paste into a report stays readable."""
MAX_OPERATORS = 6


def render(report: Report, console: Console | None = None) -> None:
    """Print a report."""
    if console is None:
        console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)
    with console.capture() as captured:
        _print(report, console)
    # Rich fills cells up with blanks, which only matter where a report is pasted.
    console.file.write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")


def _print(report: Report, console: Console) -> None:
    _section(console, "Machine", _facts(_machine(report)))
    _section(console, "Execution providers, the preferred one first", _providers(report.providers))
    for bundle in report.bundles:
        if bundle.found is not None:
            _section(console, f"Bundle {bundle.found['name']} {bundle.found['version']}", _variants(bundle.found))
            console.print(Padding(_facts(_loaded(bundle.found)), (0, 0, 1, 2), expand=False))
        if bundle.error is not None:
            _section(console, f"Bundle {bundle.path} does not serve", _facts(_failure(bundle.error)))
    console.print(_verdict(report))


def _section(console: Console, title: str, body: Table) -> None:
    console.print(Text(printable(title), style="bold"))
    console.print(Padding(body, (0, 0, 0, 2), expand=False))
    console.print()


def _facts(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for key, value in rows:
        table.add_row(Text(key), Text("\n".join(printable(line) for line in value.splitlines())))
    return table


def _machine(report: Report) -> list[tuple[str, str]]:
    machine, runtime = report.machine, report.runtime
    kernel = integer_kernel(machine.architecture, frozenset(machine.instruction_sets))
    rows = [
        ("processor", f"{machine.cpu}, {machine.architecture}, {machine.cpus} cores to use"),
        ("instructions", " ".join(machine.instruction_sets) or "unknown"),
        ("8-bit products", why(kernel)),
        ("memory", f"{_gib(machine.memory_bytes)}, {_gib(machine.available_bytes)} available"),
    ]
    rows += [
        (f"GPU {gpu.index}", f"{gpu.name}, {_gib(gpu.memory_bytes)}, compute capability {gpu.compute_capability}")
        for gpu in machine.gpus
    ]
    if not machine.gpus:
        rows.append(("GPU", machine.problem or "none that NVIDIA's driver shows to this process"))
    built = f", built for CUDA {runtime['cuda']}" if runtime["cuda"] else ""
    cache = report.cache
    rows += [
        ("NVIDIA driver", machine.driver or "none"),
        ("ONNX Runtime", f"{runtime['version']} ({runtime['package'] or 'onnxruntime'}{built})"),
        ("policy", report.policy),
        ("cache", f"{cache['state']}" + (f", {cache['folder']}, {_mib(cache['bytes'])}" if cache["folder"] else "")),
    ]
    return rows


def _providers(statuses: Iterable[ProviderStatus]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for status in statuses:
        state = Text("usable", style="green") if status.usable else Text("not usable", style="red")
        table.add_row(Text(status.label), state, _provider_text(status))
    return table


def _provider_text(status: ProviderStatus) -> Text:
    if status.usable:
        return Text("" if not status.seconds else f"tried in {status.seconds:.1f} s", style="dim")
    text = Text(printable(status.reason))
    if status.hint:
        text.append("\nto do: ", style="bold").append(printable(status.hint))
    if status.needs:
        text.append(f"\nneeds {printable(status.needs)}", style="dim")
    return text


def _variants(bundle: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("variant", "precision", ""):
        table.add_column(column, overflow="fold")
    for variant in bundle["variants"]:
        reason = variant["not_used"]
        said = Text("serves", style="green") if reason is None else Text(f"not used: {printable(reason)}")
        if reason is None:
            said.append(f" on {_short(bundle['provider'])}")
        table.add_row(Text(printable(variant["name"])), Text(printable(variant["precision"])), said)
    return table


def _loaded(bundle: dict[str, Any]) -> list[tuple[str, str]]:
    seconds, plan = bundle["seconds"], bundle["plan"]
    steps = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())
    rows = [(f"nodes on {_short(name)}", _nodes(found)) for name, found in bundle["assignment"].items()]
    return [
        *(rows or [("nodes", "this ONNX Runtime keeps no record of where they run")]),
        ("optimization", f"level {bundle['optimization']} when the session is opened; the graph is not stored"),
        ("runners", f"{plan['runners']}, each run on {plan['threads']} threads: {plan['reason']}"),
        ("memory", _mib(bundle["memory_bytes"])),
        *_caches(bundle.get("caches")),
        ("I/O binding", "yes" if bundle["io_binding"] or "caches" in bundle else "no (on a GPU only)"),
        ("time to load", f"{sum(seconds.values()):.2f} s: {steps}"),
    ]


def _caches(caches: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What the caches of a model that generates text may hold; nothing of another one."""
    if caches is None:
        return []
    text = f"at most {_mib(caches['limit'])}; sequences of at most {caches['context_length']:,} tokens"
    return [("caches", f"{text} ({caches['reason']})" if caches["reason"] else text)]


def _nodes(found: dict[str, Any]) -> str:
    operators = list(found["operators"].items())
    shown = ", ".join(f"{count} {name}" for name, count in operators[:MAX_OPERATORS])
    more = f", {len(operators) - MAX_OPERATORS} other types" if len(operators) > MAX_OPERATORS else ""
    return f"{found['nodes']} ({100 * found['share']:.1f} %): {shown}{more}"


def _failure(error: EdgeOnnxError) -> list[tuple[str, str]]:
    parts = (
        ("what", error.message),
        ("where", error.where),
        ("expected", error.expected),
        ("found", error.found),
        ("details", "\n".join(error.details)),
        ("to do", error.hint),
    )
    return [(name, value) for name, value in parts if value]


def _verdict(report: Report) -> Text:
    if report.exit_code != 0:
        what = "not every bundle can be served here" if report.bundles else "nothing can serve here"
        return Text(f"{what} (exit code {report.exit_code})", style="bold red")
    served = [bundle.found for bundle in report.bundles if bundle.found is not None]
    if served:
        lines = (f"{_short(each['provider'])} serves {each['name']}, variant {each['variant']}" for each in served)
        return Text(printable("; ".join(lines)), style="bold green")
    usable = ", ".join(status.label for status in report.providers if status.usable)
    return Text(f"models can be served on {usable}", style="bold green")


def _short(name: str) -> str:
    from device_agent.inference.devices.providers import label_of

    return label_of(name)


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / (1 << 30):.1f} GiB"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
