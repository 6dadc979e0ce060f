"""`edgeonnx-agent update`: ask the repository once, and take what it offers."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_agent.cli.states import Config, StateDir, chosen_store, complain, prepare, settings_file, shown_state
from edgeonnx.errors import EdgeOnnxError, RuntimeUnavailableError, StateError, printable

if TYPE_CHECKING:
    from pathlib import Path

    from device_agent.config import AgentConfig
    from device_agent.slots.state import SlotState
    from device_agent.slots.store import Store
    from device_agent.update.run import Opened, Run
    from device_agent.update.updater import Outcome

POLL_SECONDS = 0.25
EXTRA_SECONDS = 120.0
"""How long is waited for the serving process beyond the time of the probation: it has to load the model."""

Json = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]
Once = Annotated[
    bool, typer.Option("--once", help="End when a release is proven; do not wait for the process that serves.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be taken; take nothing.")]


def update(
    config: Config = None,
    state_dir: StateDir = None,
    once: Once = False,
    dry_run: DryRun = False,
    retry: Annotated[
        bool, typer.Option("--retry-blocked", help="Try releases again that failed on this device before.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take what the repository offers this device: fetch, verify, prove. What serves is not touched.

    Without --once, and if an agent serves from the state directory, it also waits until that has taken the release, or
    has rolled it back, and says what became of it.
    """
    carry_out(config, state_dir, once=once, dry_run=dry_run, as_json=as_json, retry=retry)


def carry_out(
    config: Path | None,
    state_dir: Path | None,
    *,
    once: bool,
    dry_run: bool,
    as_json: bool,
    retry: bool = False,
    source: Opened | None = None,
) -> None:
    """Run an update and tell its outcome; ends the process with an exit code if it is not 0.

    Args:
        config: The settings file; None: that of the process that serves from the state directory, if there is one.
        state_dir: The state directory, if it is not that of the settings.
        once: Do not wait for the process that serves.
        dry_run: Take nothing.
        as_json: Tell it as JSON.
        retry: Forget which releases failed on this device.
        source: Gives the repository's files; None: from where the device is enrolled to.
    """
    try:
        file = settings_file(config, state_dir)
        settings = prepare(file)
        store = chosen_store(settings, state_dir)
        run = _run_class()(settings=settings, config=file, store=store, dry=dry_run, retry=retry, source=source)
        outcomes, received = run()
        if not (once or dry_run):
            outcomes = [_awaited(outcome, store, settings) for outcome in outcomes]
    except EdgeOnnxError as error:
        complain(error, as_json=as_json)
        raise typer.Exit(error.exit_code) from None
    if as_json:
        _print(json.dumps(_as_dict(outcomes, received), indent=2))
    else:
        for outcome in outcomes:
            _tell(outcome, dry_run=dry_run)
        if not outcomes:
            typer.echo("the channel offers no model")
    code = next((outcome.error.exit_code for outcome in outcomes if outcome.error is not None), 0)
    if code:
        raise typer.Exit(code)


def _run_class() -> type[Run]:
    try:
        from device_agent.update.run import Run
    except ModuleNotFoundError as error:
        raise RuntimeUnavailableError(
            f"the library {error.name} is missing", hint="install the agent's libraries: pip install 'edgeonnx[agent]'"
        ) from None
    return Run


def _awaited(outcome: Outcome, store: Store, settings: AgentConfig) -> Outcome:
    """The outcome after the process that serves has decided about a proven release."""
    from device_agent.slots.states import FINAL, AttemptState
    from device_agent.slots.store import SERVE_LOCK
    from edgeonnx.errors import CandidateError

    attempt = outcome.state.attempt
    if outcome.error is not None or attempt is None or attempt.state is not AttemptState.PROVEN:
        return outcome
    if not store.is_locked(SERVE_LOCK):
        return outcome
    typer.echo(f"{outcome.model} {attempt.release.version} is proven", err=True)
    deadline = time.monotonic() + settings.update.probation_seconds + EXTRA_SECONDS
    state: SlotState = outcome.state
    told: AttemptState = attempt.state
    while store.is_locked(SERVE_LOCK):
        state = store.read_state(outcome.model)
        now = state.attempt
        if now is None or now.release != attempt.release or now.state in FINAL:
            break
        if now.state is not told:
            told = now.state
            typer.echo(f"{outcome.model} {now.release.version}: {shown_state(now.state)}", err=True)
        if time.monotonic() > deadline:
            late = StateError(
                "the process that serves has not decided about the release in time",
                where=f"{outcome.model} {attempt.release.version}",
                found=shown_state(now.state),
                hint="edgeonnx-agent status tells how it goes on",
            )
            return replace(outcome, state=state, error=late)
        time.sleep(POLL_SECONDS)
    ended = state.attempt
    if ended is not None and ended.state in (AttemptState.ROLLED_BACK, AttemptState.REJECTED):
        error = CandidateError(
            f"the release {shown_state(ended.state)}",
            where=f"{outcome.model} {ended.release.version}",
            found=ended.reason,
            hint="the version before it serves; this device does not take this release again",
        )
        return replace(outcome, state=state, error=error)
    return replace(outcome, state=state)


def _tell(outcome: Outcome, *, dry_run: bool) -> None:
    """One model's outcome, for people."""
    from device_agent.slots.states import AttemptState

    attempt = outcome.state.attempt
    if outcome.error is not None:
        typer.echo(f"error: {outcome.model}: {printable(outcome.error)}", err=True)
        return
    if dry_run and outcome.fetch_bytes is not None:
        would = "would be taken" if outcome.decision.action.value == "install" else "would be taken later"
        text = f"{outcome.decision.reason}; it {would}, at most {outcome.fetch_bytes:,} bytes to fetch"
    elif attempt is not None and attempt.state is AttemptState.PROVEN:
        text = f"{attempt.release.version} is proven; it serves from the next swap or start on"
    elif attempt is not None and outcome.decision.action.value == "install":
        text = f"{attempt.release.version} {shown_state(attempt.state)}"
    else:
        text = outcome.decision.reason
    typer.echo(f"{outcome.model}: {printable(text)}")


def _as_dict(outcomes: list[Outcome], received: int) -> dict[str, Any]:
    models = []
    for outcome in outcomes:
        attempt, active, offer = outcome.state.attempt, outcome.state.active, outcome.decision.offer
        models.append(
            {
                "model": outcome.model,
                "action": outcome.decision.action.value,
                "reason": outcome.decision.reason,
                "offered": None if offer is None else offer.version,
                "active": None if active is None else active.version,
                "attempt": None
                if attempt is None
                else {
                    "version": attempt.release.version,
                    "state": attempt.state.value,
                    "reason": attempt.reason,
                },
                "fetch_bytes": outcome.fetch_bytes,
                "error": None if outcome.error is None else outcome.error.to_dict(),
            }
        )
    return {"ok": all(outcome.error is None for outcome in outcomes), "received_bytes": received, "models": models}


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
