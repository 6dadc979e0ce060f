"""What the serving process does about updates while it runs: it takes what was proven, watches it, and goes back.

One task looks at the state files twice a second and does what they say (`boot.next_turn`): a proven release is swapped
in, a version that an operator's command made active too, and a version on probation is judged. Another one begins the
update process. Everything that blocks happens in threads.

A version serves under its name until the next one does: nothing here takes a model away before its successor was
loaded, proven and turned to, but where nothing that is installed may serve any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from functools import partial
from typing import TYPE_CHECKING

from device_agent.slots.state import step
from device_agent.slots.states import AttemptState
from device_agent.supervision.boot import enter_probation, give_try_back, next_turn, on_probation, wait_for_start
from device_agent.supervision.probation import Baseline, Outcome, Verdict, judge
from device_agent.supervision.rounds import Rounds
from device_agent.supervision.watch import Progress, Watch
from edgeonnx.errors import MemoryBudgetError, ModelNotFoundError, NotReadyError, UpdateError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_agent.config import UpdateConfig
    from device_agent.models.loaded import LoadedModel
    from device_agent.models.registry import Models
    from device_agent.slots.state import Installed, SlotState
    from device_agent.supervision.installation import Installation
    from device_agent.supervision.runs import UpdateRuns

    Loading = asyncio.Future[list[LoadedModel]]

REPORTED = (AttemptState.PROBATION, AttemptState.COMMITTED, AttemptState.ROLLED_BACK)
"""States that the serving process writes and a collector wants to hear of at once."""
LOOK_SECONDS = 0.5
"""How often the states are looked at: a few system calls for each model."""
RETRY_SECONDS = 30.0
"""After which a state that could not be written is tried again."""

logger = logging.getLogger("edgeonnx.supervision")


class Probation:
    """A probation that goes on in this process. After a restart it begins anew.

    Attributes:
        contents: Digest of the bundle.
        before: What the version before did.
        began: When, by `time.monotonic`.
        progress: Whether the model finishes what it begins.
    """

    def __init__(self, contents: str, before: Baseline, now: float) -> None:
        self.contents = contents
        self.before = before
        self.began = now
        self.progress = Progress(now)


class Supervisor:
    """Supervises the models of a state directory. It belongs to the event loop's thread.

    Args:
        installation: The state directory.
        models: The models that serve.
        config: `[update]`.
        runs: Begins updates.
        clock: Seconds of a clock that never jumps.
        chance: Random numbers from 0.0 to 1.0.

    Attributes:
        watch: Is to be told of each request.
        states: The models' states, as they were looked at last.
        rollbacks: For each model, the versions that were rolled back by this process.
        rounds: Begins updates, again and again.
    """

    def __init__(
        self,
        installation: Installation,
        models: Models,
        config: UpdateConfig,
        runs: UpdateRuns,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.installation = installation
        self.runs = runs
        self.watch = Watch()
        self.states: dict[str, SlotState] = {}
        self.rollbacks: dict[str, int] = {}
        self.rounds = Rounds(runs, config.interval_seconds, clock=clock, chance=chance)
        self.clock = clock
        self._models = models
        self._config = config
        self._probations: dict[str, Probation] = {}
        self._waiting: dict[str, str] = {}
        self._not_before: dict[str, float] = {}
        self._owed: dict[str, Installed] = {}

    async def start(self, first: Loading | None = None) -> None:
        """Load what is installed, and then the other bundles of the settings.

        A model of which nothing loads does not end the start: the next update may repair it.

        Args:
            first: Gives the model of `installation.first` if that is loading already; where nothing is installed, that
                of the first bundle of the settings.

        Raises:
            UsageError: Two bundles of the settings have one name.
        """
        for name, state in (await asyncio.to_thread(self.installation.read_all)).items():
            self._note(state)
            await self._start(name, first)
        await self._models.start(first if self.installation.first is None else None, may_be_empty=True)

    async def _start(self, name: str, first: Loading | None) -> None:
        """Load what shall serve under a name, or what may serve in its place."""
        self._models.managed.add(name)
        while True:
            state = await asyncio.to_thread(self.installation.read, name)
            self._note(state)
            choice = self.installation.choice(name, state)
            if choice is None:
                if state.active is not None or self.installation.unfit.get(name):
                    logger.error("%s: nothing that is installed can serve", name)
                return
            path, contents = choice
            if await self._load(name, path, contents, loading=first if path == self.installation.first else None):
                return

    async def run(self) -> None:
        """Look after the models, and begin updates, until this is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_for_ever())
            group.create_task(self.rounds.run(lacking=self._lacks()))

    async def stop(self, *, in_order: bool) -> None:
        """The agent ends.

        Args:
            in_order: Every request was answered: nothing speaks against what is on probation.
        """
        if not in_order:
            return
        for name, probation in self._probations.items():
            change = partial(_give_back, contents=probation.contents, tries=self._config.tries)
            with contextlib.suppress(UpdateError):  # then the try is used up
                await self._change(name, change)

    def serving(self, name: str) -> LoadedModel | None:
        """What serves under a name."""
        return next((live.loaded for live in self._models.all() if live.loaded.name == name), None)

    def installed(self, name: str) -> str | None:
        """Digest of what serves under a name, if it is installed in the state directory."""
        loaded = self.serving(name)
        return None if loaded is None else self.installation.contents_of(name, loaded.bundle.root)

    def probation_left(self, name: str) -> float | None:
        """Seconds of a model's probation that are left; None: it is on none."""
        probation = self._probations.get(name)
        return None if probation is None else probation.began + self._config.probation_seconds - self.clock()

    # Looking at the states

    async def _look_for_ever(self) -> None:
        while True:
            try:
                await self.look()
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.exception("looking at the installed models failed; it is tried again")
                await asyncio.sleep(RETRY_SECONDS)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Do what the states say, once."""
        for name, state in (await asyncio.to_thread(self.installation.read_all)).items():
            if name in self.states and state.sequence != self.states[name].sequence:
                self.installation.written_anew(state)
            self._note(state)
            self._models.managed.add(name)
            if self.clock() < self._not_before.get(name, 0.0):
                continue
            try:
                await self._follow(name, state)
                await self._settle(name)
                await self._judge(name)
            except UpdateError as error:
                logger.error("%s: %s; tried again in %g s", name, error, RETRY_SECONDS)  # noqa: TRY400
                self._not_before[name] = self.clock() + RETRY_SECONDS
        self._forget()

    async def _follow(self, name: str, state: SlotState) -> None:
        """Let serve what the state says."""
        attempt = state.attempt
        waits = attempt is not None and self._waiting.get(name) == attempt.release.contents
        turn = next_turn(state, self.installed(name), self.installation.unfit.get(name, {}), waits=waits)
        if turn.take is not None:
            await self._take(name, turn.take)
        elif turn.serve is not None:
            await self._load(name, self.installation.store.slot(name, turn.serve.contents), turn.serve.contents)
        elif turn.stop:
            await self._stop_serving(name)

    async def _take(self, name: str, release: Installed) -> None:
        """Begin the probation of a proven release: it is written down, then the release is swapped in.

        Raises:
            UpdateError: It could not be written down; what serves goes on serving.
        """
        serving = self.serving(name)
        least = self._config.probation_requests
        before = Baseline() if serving is None else self.watch.of(serving.bundle.digest).baseline(least)
        state = await self._change(name, partial(_take_proven, release=release))
        if on_probation(state) != release:
            return  # somebody changed it meanwhile: the next look sees what
        path = self.installation.store.slot(name, release.contents)
        logger.info("%s %s begins its probation", name, release.version)
        if await self._load(name, path, release.contents):
            self._begin_probation(name, release.contents, before)

    def _begin_probation(self, name: str, contents: str, before: Baseline) -> None:
        self.watch.begin(contents)
        self._probations[name] = Probation(contents, before, self.clock())

    async def _load(self, name: str, path: Path, contents: str | None, *, loading: Loading | None = None) -> bool:
        """Load a bundle and let it serve; False if it does not: what served still does.

        Args:
            name: The model.
            path: The bundle's folder.
            contents: Its digest; None: it is a bundle of the settings.
            loading: Gives its model if it is loading already.
        """
        try:
            await self._models.swap_to(path, name=name, digest=contents, loading=loading)
        except NotReadyError:
            return True  # the agent stops: that says nothing about the bundle
        except MemoryBudgetError as error:
            return await self._load_without_room(name, path, contents, error)
        except Exception as error:  # noqa: BLE001 - whatever a bundle does to the loader is the bundle's fault
            await asyncio.to_thread(self.installation.failed, name, contents, error)
            return False
        self.installation.loaded(name, contents)
        return True

    async def _load_without_room(self, name: str, path: Path, contents: str | None, error: MemoryBudgetError) -> bool:
        """The memory does not hold a second version beside the one that serves. As `_load`."""
        serving = self.installed(name)
        unwanted = serving is not None and (
            serving in self.installation.unfit.get(name, {}) or self.states[name].is_blocked(serving)
        )
        if unwanted:
            # A version that was judged makes room before the other one is there: better no answer than its answers.
            logger.warning("%s: what serves is unloaded first: %s", name, error)
            await self._models.withdraw(name)
            return await self._load(name, path, contents)
        if contents is None or self.serving(name) is None:
            await asyncio.to_thread(self.installation.failed, name, contents, error)
        else:
            await self._wait_for_start(name, contents, error)
        return False

    async def _stop_serving(self, name: str) -> None:
        """Nothing that is installed may serve under a name: the settings' bundle does, or nothing."""
        choice = self.installation.choice(name, self.states[name])
        if choice is not None:
            await self._load(name, *choice)
            return
        logger.error("%s: nothing that is installed may serve any more", name)
        with contextlib.suppress(ModelNotFoundError):
            await self._models.withdraw(name)

    async def _wait_for_start(self, name: str, contents: str, error: MemoryBudgetError) -> None:
        """The memory does not hold a second version beside the one that serves: what was proven waits."""
        logger.error("%s waits for the next start of the agent: %s", name, error)
        self._waiting[name] = contents
        reason = f"it waits for the next start of the agent: {error}"
        state = await self._change(name, partial(_proven_again, contents=contents, reason=reason))
        if state.active is not None and state.active.contents == contents:
            # It was an operator's wish: the version that serves goes on until then.
            self.installation.unfit.setdefault(name, {})[contents] = reason

    # Probation

    async def _judge(self, name: str) -> None:
        """Commit or roll back what is on probation, if it is time."""
        release = on_probation(self.states[name])
        loaded = self.serving(name)
        if release is None or loaded is None or self.installed(name) != release.contents:
            self._probations.pop(name, None)
            return
        probation = self._probations.get(name)
        if probation is None or probation.contents != release.contents:
            # After a restart nothing is known of the version before.
            self._begin_probation(name, release.contents, Baseline())
            return
        now = self.clock()
        seen = self.watch.of(release.contents).seen(
            seconds=now - probation.began,
            last=self._config.probation_requests,
            idle_seconds=probation.progress.look(loaded, now),
        )
        await self._decide(name, release, judge(self._config, probation.before, seen))

    async def _decide(self, name: str, release: Installed, verdict: Verdict) -> None:
        if verdict.outcome is Outcome.COMMIT:
            logger.info("%s %s served well through its probation and stays", name, release.version)
            await self._change(name, partial(_end, release=release, to=AttemptState.COMMITTED, reason=""))
            del self._probations[name]
        if verdict.outcome is not Outcome.ROLL_BACK:
            return
        logger.error("%s %s is rolled back: %s", name, release.version, verdict.reason)
        del self._probations[name]
        try:
            await self._change(name, partial(_end, release=release, to=AttemptState.ROLLED_BACK, reason=verdict.reason))
        except UpdateError as error:
            # What cannot be written down is done all the same, and written when the disk takes it.
            logger.error("%s: %s", name, error)  # noqa: TRY400
            self.installation.unfit.setdefault(name, {})[release.contents] = verdict.reason
            self._owed[name] = release
            self._not_before[name] = self.clock() + RETRY_SECONDS
        await self._follow(name, self.states[name])

    async def _settle(self, name: str) -> None:
        """Write down a rollback that could not be written when it was done.

        Raises:
            UpdateError: It still cannot be.
        """
        release = self._owed.get(name)
        if release is None:
            return
        reason = self.installation.unfit.get(name, {}).get(release.contents, "it was rolled back")
        await self._change(name, partial(_end, release=release, to=AttemptState.ROLLED_BACK, reason=reason))
        del self._owed[name]

    # States

    async def _change(self, name: str, change: Callable[[SlotState, float], SlotState]) -> SlotState:
        state = await asyncio.to_thread(self.installation.change, name, change)
        self._note(state)
        return state

    def _note(self, state: SlotState) -> None:
        """Remember a state, and count what it tells."""
        name, attempt = state.model, state.attempt
        before = self.states.get(name)
        self.states[name] = state
        if attempt is None or before is None or before.attempt == attempt:
            return
        if attempt.state is AttemptState.ROLLED_BACK:
            self.rollbacks[name] = self.rollbacks.get(name, 0) + 1
        if attempt.state in REPORTED and self._config.report_url is not None:
            self.rounds.hurry()  # the update process is what reports

    def _forget(self) -> None:
        """Drop what is known of versions that are gone."""
        kept = {contents for state in self.states.values() for contents in state.in_use()}
        self.watch.keep(kept | {live.loaded.bundle.digest for live in self._models.all()})

    def _lacks(self) -> bool:
        """Whether there is something to be fetched at once: a model that does not serve as its state says."""
        return not self.states or any(
            state.active is None or self.installed(name) != state.active.contents for name, state in self.states.items()
        )


def _take_proven(state: SlotState, now: float, *, release: Installed) -> SlotState:
    attempt = state.running
    proven = attempt is not None and attempt.state is AttemptState.PROVEN and attempt.release == release
    return enter_probation(state, now=now) if proven else state


def _proven_again(state: SlotState, now: float, *, contents: str, reason: str) -> SlotState:
    return wait_for_start(state, contents, reason, now=now)


def _end(state: SlotState, now: float, *, release: Installed, to: AttemptState, reason: str) -> SlotState:
    return step(state, to, now=now, reason=reason) if on_probation(state) == release else state


def _give_back(state: SlotState, now: float, *, contents: str, tries: int) -> SlotState:
    return give_try_back(state, contents=contents, tries=tries, now=now)
