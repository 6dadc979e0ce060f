"""`edgeonnx-agent doctor`: what this machine can run, and why not the rest."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_agent.cli.options import Config, settings_from, with_options
from edgeonnx.errors import EdgeOnnxError, RuntimeUnavailableError, printable

if TYPE_CHECKING:
    from device_agent.config import AgentConfig
    from device_agent.inference.devices.machine import Machine
    from device_agent.inference.devices.providers import ProviderStatus

NOTHING_USABLE = 7


@dataclass(frozen=True, kw_only=True)
class BundleReport:
    """What came of loading a bundle.

    Attributes:
        path: Its folder.
        found: What serves and how, None if nothing does: see `examine_bundle`.
        error: Why it cannot be served, None if it can.
    """

    path: Path
    found: dict[str, Any] | None = None
    error: EdgeOnnxError | None = None

    def as_dict(self) -> dict[str, object]:
        """The report as plain data."""
        error = None if self.error is None else self.error.to_dict()
        return {"path": str(self.path), "ok": error is None, **(self.found or {}), "error": error}


@dataclass(frozen=True, kw_only=True)
class Report:
    """What doctor found.

    Attributes:
        machine: The machine.
        runtime: ONNX Runtime: `version`, `package`, `cuda`, `build`.
        providers: What became of each provider, in the operator's order.
        policy: The operator's policy.
        cache: `folder`, `state` and `bytes` of the cache.
        bundles: What came of loading each bundle.
    """

    machine: Machine
    runtime: dict[str, str]
    providers: tuple[ProviderStatus, ...]
    policy: str
    cache: dict[str, Any]
    bundles: tuple[BundleReport, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if everything that was asked for can be served; else that of the first error, or 7 without any provider."""
        for bundle in self.bundles:
            if bundle.error is not None:
                return bundle.error.exit_code
        return 0 if any(status.usable for status in self.providers) else NOTHING_USABLE

    def as_dict(self) -> dict[str, object]:
        """The report as plain data, for `--json`."""
        return {
            "ok": self.exit_code == 0,
            "machine": self.machine.as_dict(),
            "runtime": self.runtime,
            "providers": [status.as_dict() for status in self.providers],
            "policy": self.policy,
            "cache": self.cache,
            "bundles": [bundle.as_dict() for bundle in self.bundles],
        }


@with_options
def doctor(
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    **options: object,
) -> None:
    """Say what this machine can run and, with --bundle, what would serve it; for whatever cannot be used, why not."""
    try:
        settings = settings_from(config, options)
        report = examine(settings)
    except EdgeOnnxError as error:
        if as_json:
            _print(json.dumps({"ok": False, "error": error.to_dict()}, indent=2))
        else:
            typer.echo(f"error: {printable(error)}", err=True)
        raise typer.Exit(error.exit_code) from None
    if as_json:
        _print(json.dumps(report.as_dict(), indent=2))
    else:
        from device_agent.cli.diagnosis import render

        render(report)
    raise typer.Exit(report.exit_code)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def examine(config: AgentConfig) -> Report:
    """Look at this machine, try its providers, and load the bundles.

    Raises:
        RuntimeUnavailableError: ONNX Runtime is not installed.
        UsageError: A setting is wrong.
    """
    try:
        from device_agent.inference.devices.cache import Cache
        from device_agent.inference.devices.machine import describe_machine
        from device_agent.inference.devices.opening import usable_here
        from device_agent.inference.session import runtime_build
    except ImportError as error:
        raise RuntimeUnavailableError(
            "ONNX Runtime cannot be imported",
            found=str(error),
            hint="install the agent's libraries: pip install 'edgeonnx[agent]'",
        ) from None
    cache = Cache(config.runtime.cache_dir)
    bundles = tuple(_report_on(path, config) for path in config.bundles)
    folder = config.runtime.cache_dir
    return Report(
        machine=describe_machine(),
        runtime=runtime_build(),
        providers=usable_here(config),
        policy=config.runtime.policy,
        cache={
            "folder": None if folder is None else str(folder),
            "state": cache.problem or ("on" if cache.enabled else "off"),
            "bytes": cache.size(),
        },
        bundles=bundles,
    )


def _report_on(path: Path, config: AgentConfig) -> BundleReport:
    try:
        return BundleReport(path=path, found=examine_bundle(path, config))
    except EdgeOnnxError as error:
        return BundleReport(path=path, error=error)


def examine_bundle(path: Path, config: AgentConfig) -> dict[str, Any]:
    """Load a bundle exactly as `serve` would, golden set included, and say what came of it.

    Raises:
        EdgeOnnxError: Whatever keeps it from being served.
    """
    from device_agent.models.loading import load_model

    loaded = load_model(path, config)
    try:
        return {
            "name": loaded.name,
            "version": loaded.version,
            "digest": loaded.bundle.digest,
            "variants": [
                {"name": name, "precision": precision, "not_used": reason}
                for name, precision, reason in loaded.variants()
            ],
            **loaded.engine.as_dict(),
            "plan": asdict(loaded.plan),
            **loaded.details(),
            "memory_bytes": loaded.memory_bytes,
            "seconds": loaded.seconds,
        }
    finally:
        loaded.close(5.0)
