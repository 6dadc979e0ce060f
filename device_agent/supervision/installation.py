"""What is installed in the state directory, as the serving process reads and changes it. Blocking.

The state file is the one truth, and commands and the update process change it too. So a change reads it, makes the
next state and writes that under a short lock; and where the disk does not take it, what serves does not depend on it:
the fault is told, and the bundle in question is left alone in this process (`unfit`).
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from device_agent.settings_text import to_toml
from device_agent.slots.journal import change_state
from device_agent.slots.states import AttemptState
from device_agent.slots.store import SERVE_LOCK, SETTINGS_FILE, Store
from device_agent.supervision.boot import after_failed_load, at_start, next_choice, on_probation
from device_agent.update.reports import STATUS_FILE, Status, read_status
from device_agent.update.trust.clock import Clock
from edgeonnx.bundle import identify
from edgeonnx.errors import BundleError, EdgeOnnxError, UpdateError, printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_agent.config import AgentConfig
    from device_agent.slots.state import SlotState

    Change = Callable[[SlotState, float], SlotState]


logger = logging.getLogger("edgeonnx.supervision")


class Installation:
    """The models of a state directory.

    Args:
        store: The state directory.
        factory: Bundles of the settings by name: what serves where nothing that is installed can.

    Attributes:
        unfit: For each model the digests that did not load in this process, with the reason.
        problems: For each model what was wrong with its state at the start, in words.
        damaged: For each model the digest of the bundle whose files were found damaged last, with the fault.
        first: The bundle that is loaded first; None if nothing is installed.
        settings_file: The settings of this process, for those that prove what it will serve; None: the defaults.
        last_run: How the last update ended, whoever began it, as it was read last.
    """

    def __init__(self, store: Store, factory: dict[str, Path] | None = None) -> None:
        self.store = store
        self.factory = factory or {}
        self.unfit: dict[str, dict[str, str]] = {}
        self.problems: dict[str, str] = {}
        self.damaged: dict[str, tuple[str, str]] = {}
        self.first: Path | None = None
        self.settings_file: Path | None = None
        self.last_run = Status()
        self._last_run_stamp: tuple[int, ...] = ()
        self._known: dict[str, tuple[tuple[int, ...], SlotState]] = {}
        self._locks = ExitStack()

    @classmethod
    def open(cls, config: AgentConfig, folder: Path) -> Installation:
        """Take the state directory for this process, and write down what the start will load.

        Args:
            config: The agent's settings.
            folder: The state directory.

        Raises:
            StateError: Another serving process uses it.
        """
        store = Store(folder.resolve())
        found = cls(store, _by_name(config))
        try:
            store.prepare()
        except UpdateError as error:
            logger.error("updates cannot be written: %s", error)  # noqa: TRY400 - the disk's fault, not ours
        found._lock()
        found._write_settings(config)
        for name in store.models():
            found._begin(name)
        choices = [found.choice(name, found.read(name)) for name in found.names()]
        found.first = next((choice[0] for choice in choices if choice is not None), None)
        return found

    def _lock(self) -> None:
        try:
            self._locks.enter_context(self.store.locked(SERVE_LOCK, "another serving agent"))
        except UpdateError as error:
            if self.store.is_locked(SERVE_LOCK):
                raise
            # A disk that takes no write has no lock either; what is installed serves all the same.
            logger.error("the state directory cannot be locked: %s", error)  # noqa: TRY400

    def _write_settings(self, config: AgentConfig) -> None:
        """Write down the settings of this process: its file, its options and its environment put together.

        A candidate must be proven with the providers and limits with which it will serve.
        """
        data = to_toml(config).encode()
        path = self.store.root / SETTINGS_FILE
        try:
            with self.store.writing("the settings"):
                if self.store.settings_file is None or path.read_bytes() != data:
                    self.store.disk.replace(path, data)
        except UpdateError as error:
            logger.warning("%s", error)
        self.settings_file = self.store.settings_file

    def close(self) -> None:
        """Give the state directory back."""
        self._locks.close()

    def now(self) -> float:
        """The effective time, in seconds since 1970."""
        return Clock(self.store.root / "clock.json", self.store.disk).effective()

    def _begin(self, name: str) -> None:
        """Write down what the start will load of a model, so that a start that does not end uses up a try."""
        damage = self.store.damage(name)
        if damage is not None:
            self.problems[name] = damage
            logger.error("%s: %s", name, damage)
        before = self.store.read_state(name)
        # A copy that could be read makes the file whole again. What only the link says may be less than what is there.
        heal = damage is not None and self.store.read_files(name) is not None
        try:
            state = self.change(name, partial(_start_of, heal=heal))
        except UpdateError as error:
            logger.error("%s: %s", name, error)  # noqa: TRY400
            release = on_probation(before)
            if release is not None and before.previous is not None:
                # A release that takes the machine down would do so for ever.
                self.unfit[name] = {release.contents: "its tries cannot be written down"}
            return
        attempt = state.attempt
        if attempt is not None and attempt != before.attempt:
            told = attempt.reason or f"{attempt.tries_left} tries are left after this one"
            begins = before.attempt is not None and before.attempt.state is AttemptState.PROVEN
            level = logging.INFO if begins else logging.WARNING  # a further start on probation is no good sign
            logger.log(level, "%s %s: %s: %s", name, attempt.release.version, attempt.state.value, told)

    def names(self) -> list[str]:
        """The models that are, or are being, installed."""
        return self.store.models()

    def read(self, name: str) -> SlotState:
        """The state of a model, read again if its file changed."""
        stamp = _stamp(self.store.model(name) / "state.json")
        known = self._known.get(name)
        if known is not None and stamp and known[0] == stamp:
            return known[1]
        state = self.store.read_state(name)
        self._known[name] = (stamp, state)
        return state

    def read_all(self) -> dict[str, SlotState]:
        """The states of all models; how the last update ended is read too."""
        stamp = _stamp(self.store.root / STATUS_FILE)
        if stamp != self._last_run_stamp:
            self._last_run_stamp, self.last_run = stamp, read_status(self.store)
        return {name: self.read(name) for name in self.names()}

    def change(self, name: str, change: Change) -> SlotState:
        """Change the state of a model; the same one from `change` writes nothing.

        Raises:
            StateError, NoSpaceError: It could not be written.
        """
        now = self.now()
        return change_state(self.store, name, lambda state: change(state, now))

    def choice(self, name: str, state: SlotState) -> tuple[Path, str | None] | None:
        """The folder and the digest of what shall serve under a name; the digest is None for a bundle of the settings.

        Returns:
            None if there is nothing.
        """
        unfit = self.unfit.get(name, {})
        installed = next_choice(state, unfit)
        if installed is not None:
            return self.store.slot(name, installed.contents), installed.contents
        return (self.factory[name], None) if name in self.factory and "" not in unfit else None

    def contents_of(self, name: str, root: Path) -> str | None:
        """The digest of a loaded bundle by the slot that it lies in; None if it lies elsewhere."""
        return root.name if root.parent == self.store.slots(name) else None

    def failed(self, name: str, contents: str | None, error: BaseException) -> None:
        """Take notice of a bundle that did not load: another one shall serve.

        Args:
            name: The model.
            contents: Its digest; None: it is the bundle of the settings.
            error: Why.
        """
        reason = reason_of(error)
        self.unfit.setdefault(name, {})[contents or ""] = reason
        if contents is None:
            return
        damaged = isinstance(error, BundleError)
        if damaged:
            self.damaged[name] = (contents, reason)
        failure = partial(after_failed_load, contents=contents, reason=reason, damaged=damaged)
        try:
            self.change(name, lambda state, now: failure(state, now=now))
        except UpdateError as refusal:
            logger.error("%s: %s", name, refusal)  # noqa: TRY400
        logger.error("%s %s does not load: %s", name, contents[:16], reason)

    def written_anew(self, state: SlotState) -> None:
        """Somebody wrote a model's state: what did not load may do so now (an update mends what is damaged).

        But for what is on probation: it was judged.
        """
        release = on_probation(state)
        kept = self.unfit.get(state.model, {})
        self.unfit[state.model] = {
            key: reason for key, reason in kept.items() if release is not None and key == release.contents
        }

    def loaded(self, name: str, contents: str | None) -> None:
        """Take notice of a bundle that serves."""
        self.unfit.get(name, {}).pop(contents or "", None)
        if contents is not None and self.damaged.get(name, ("", ""))[0] == contents:
            del self.damaged[name]

    def faults(self, name: str) -> str:
        """What is, or was at the start, wrong with the files of a model, in words; empty if nothing is."""
        damaged = self.damaged.get(name)
        found = (self.problems.get(name, ""), "" if damaged is None else f"a bundle is damaged: {damaged[1]}")
        return "; ".join(filter(None, found))


def reason_of(error: BaseException) -> str:
    """Why something did not load, for a state: without what a person at the build host may do about it."""
    text = str(error) or type(error).__name__
    hint = error.hint if isinstance(error, EdgeOnnxError) else None
    return printable(text if hint is None else text.removesuffix(f"; {hint}"))


def _start_of(state: SlotState, now: float, *, heal: bool) -> SlotState:
    """The state that a start writes; an equal one, to be written all the same, where its file is damaged."""
    after = at_start(state, now=now)
    return replace(state) if heal and after is state else after


def _by_name(config: AgentConfig) -> dict[str, Path]:
    """The bundles of the settings by their names; those that cannot be read are told of where they are loaded."""
    found: dict[str, Path] = {}
    for path in config.bundles:
        try:
            found.setdefault(identify(path.resolve())[0], path)
        except EdgeOnnxError:
            continue
    return found


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes when a file gets a new content; empty if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    return (status.st_ino, status.st_size, status.st_mtime_ns)
