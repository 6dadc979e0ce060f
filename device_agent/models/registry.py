"""The models that requests meet: loaded, swapped, drained and unloaded while the agent serves.

The registry belongs to the event loop's thread; loading and freeing happen in threads of their own. The rules:

- Each name has at most one version that serves. A swap loads the new version beside the old one and proves it, then
  turns new requests to it in one step; the old one is closed when its last request is answered. No request fails.
- A load that fails changes nothing: what served still serves, and the index has the reason.
- Loads and unloads happen one after the other, in the order in which they were asked for: the memory that a load takes
  is measured, and an unload behind a load of the same name means the model that is being loaded. Only the wait for
  requests in flight, and the freeing, hold up nobody. Whoever asked may leave; what was asked for is done all the same.
- A load of exactly the bundle that serves already, unchanged on disk, does nothing.
- If the agent begins to stop while a model loads, the model never serves.
- A bundle that is removed while it serves still serves, because its mapped files live on. If its files are written
  to, it may not: the index says so. Bundles are immutable; a new one gets a new folder.
- Models that are installed from a repository of releases are `managed`: which version serves is decided by signed
  releases and the device's own state, and not by whoever may load and unload models by name.

At start, the bundles of the settings are loaded in their order. If one of several fails, the others serve, and the log
and the index have the reason; if none is left, the agent stops with the first error.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from device_agent.models import memory
from device_agent.models.background import Background
from device_agent.models.index import index_of
from device_agent.models.repository import candidates, choose, expect, look
from device_agent.models.requests import Requests, came_in_time
from device_agent.models.states import LiveModel, ModelEntry, ModelState, Record
from edgeonnx.errors import (
    BundleError,
    EdgeOnnxError,
    ForbiddenError,
    ModelNotFoundError,
    NotReadyError,
    UsageError,
    printable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from device_agent.config import AgentConfig
    from device_agent.models.loaded import LoadedModel
    from device_agent.models.memory import Taken
    from device_agent.models.repository import Found

__all__ = ["LiveModel", "ModelEntry", "ModelState", "Models"]

logger = logging.getLogger("edgeonnx.agent")

SETTLE_SECONDS = 1.0
"""After which the memory of a model that was unloaded is given back once more."""


class Load(Protocol):
    """Loads a bundle: `device_agent.models.loading.load_model`, or a fake in tests."""

    def __call__(
        self,
        path: Path,
        config: AgentConfig,
        *,
        taken: Taken = memory.NOTHING_TAKEN,
        beside: str | None = None,
        gently: bool = False,
    ) -> LoadedModel:
        """Load; blocking."""
        ...


class Models:
    """All models of the agent.

    Args:
        config: The agent's settings.
        load: Loads a bundle; None takes `device_agent.models.loading.load_model`.
    """

    def __init__(self, config: AgentConfig, load: Load | None = None) -> None:
        self._config = config
        self._loader = load
        self._records: list[Record] = []
        self._live: dict[str, Record] = {}
        self._default: str | None = None
        self._turn = asyncio.Lock()
        self._background = Background()
        self._requests = Requests()
        self.started = False
        self.draining = False
        self.managed: set[str] = set()
        """Names of the models that `swap_to` and `withdraw` alone may change."""
        self.swaps = 0
        """Versions that were replaced by another one while the agent served."""
        self.loads = 0
        """Models that were loaded and served."""
        self.failed_loads = 0
        """Loads that failed."""

    @property
    def ready(self) -> bool:
        """Whether the start is over and the agent is not stopping. Each model has a readiness of its own."""
        return self.started and not self.draining

    @property
    def state(self) -> str:
        """Where the agent as a whole stands, in a word."""
        if self.draining:
            return ModelState.DRAINING.value
        return ModelState.READY.value if self.started else ModelState.LOADING.value

    @property
    def in_flight(self) -> int:
        """Requests that are being received or answered."""
        in_models = sum(record.live.in_flight for record in self._records if record.live is not None)
        return max(self._requests.count, in_models)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request for the length of it, from its head on.

        One that came before the agent began to stop is answered all the same: its task finds the models, and `drained`
        waits for it.
        """
        if self.draining:
            yield
            return
        with self._requests.counted():
            yield

    @property
    def memory_bytes(self) -> int:
        """Memory that all loaded models take, or may take."""
        return sum(record.live.loaded.reserved_bytes for record in self._records if record.live is not None)

    def all(self) -> list[LiveModel]:
        """The models that serve, in the order in which they were loaded first."""
        return [record.live for record in self._live.values() if record.live is not None]

    @property
    def working(self) -> bool:
        """Whether a model is being loaded or freed."""
        return not self._background.idle

    def check_ready(self) -> None:
        """Refuse early what cannot be answered.

        Raises:
            NotReadyError: No model serves yet, or the agent is stopping.
        """
        if self.draining and not came_in_time():
            raise NotReadyError("the agent is not ready", found="draining")
        if not (self.started or self._live):
            raise NotReadyError(
                "the agent is not ready", found="loading", hint="ask /v2/health/ready until it answers 200"
            )

    def find(self, name: str | None = None, version: str | None = None) -> LiveModel:
        """The model that serves under a name.

        Args:
            name: Name in the request; None takes the default: the first bundle of the settings, or without any the
                model that was loaded first. It stays the default when it is unloaded, because another model's answer
                would be a wrong one.
            version: Version in the request; None takes whatever serves.

        Raises:
            NotReadyError: It is loading or failed to, or the agent is stopping.
            ModelNotFoundError: There is none of that name or version.
        """
        self.check_ready()
        wanted = self._default if name is None else name
        record = self._live.get(wanted or "")
        if record is None or record.live is None:
            raise self._absent(wanted)
        if version not in (None, "", record.version):
            raise ModelNotFoundError(
                "no such version of the model",
                where="version",
                expected=repr(record.version),
                found=repr((version or "")[:80]),
            )
        return record.live

    def _absent(self, name: str | None) -> EdgeOnnxError:
        """Why a name is not served."""
        record = next((record for record in reversed(self._records) if record.name == name), None)
        if record is not None and record.state in (ModelState.LOADING, ModelState.FAILED):
            return NotReadyError(
                "the model is not ready", where=record.name, found=f"{record.state.value} {record.reason}".strip()
            )
        return ModelNotFoundError(
            "no such model",
            where="model",
            expected=" or ".join(map(repr, self._live)) or "a model that is loaded",
            found="no name, and no default" if name is None else repr(name[:80]),
        )

    def index(self) -> list[ModelEntry]:
        """Every model that serves, or could: the repository index.

        It reads metadata on disk, which takes milliseconds, and may be called in another thread.
        """
        return index_of(list(self._records), candidates(self._config.bundles, self._config.repository))

    def serve(self, loaded: LoadedModel) -> None:
        """Turn new requests for its name to a loaded model; a version that served before is retired. For tests."""
        self.started = True
        record = Record(loaded.name, loaded.version)
        self._records.append(record)
        self._turn_to(record, loaded)

    def _turn_to(self, record: Record, loaded: LoadedModel) -> None:
        """The one step of a swap: from here on, `find` gives the new model."""
        if self._default is None:
            self._default = loaded.name
        record.live = LiveModel(loaded)
        record.go(ModelState.READY)
        before = self._live.get(loaded.name)
        self._live[loaded.name] = record
        self.loads += 1
        if before is not None:
            self.swaps += 1
            self._background.spawn(self._retire(before))

    async def start(
        self, first: asyncio.Future[list[LoadedModel]] | None = None, *, may_be_empty: bool = False
    ) -> None:
        """Load the bundles of the settings in their order, but for those of names that serve already.

        Args:
            first: Gives the first bundle's model if that is loading already, in a list from which it is taken.
            may_be_empty: Start also if none could be loaded: an update may bring one that can.

        Raises:
            EdgeOnnxError: Two bundles have one name, or none could be loaded: the first one's error.
        """
        found = [look(path) for path in self._config.bundles]
        names = [each.name for each in found]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(
                "two bundles have one name; a name has one version that serves",
                where="bundles",
                found=", ".join(str(each.path) for each in found if each.name == twice),
                hint="put both into a repository and load the version that shall serve",
            )
        if found:
            self._default = found[0].name
        errors: list[EdgeOnnxError] = []
        for index, each in enumerate(found):
            if each.name in self._live:
                continue
            try:
                async with self._turn:
                    await self._load(each, first if index == 0 else None)
            except EdgeOnnxError as error:
                errors.append(error)
        if self.draining:
            return
        if errors and not self._live and not may_be_empty:
            raise errors[0]
        self.started = True

    async def load(self, name: str, version: str | None = None, *, force: bool = False) -> None:
        """Load a model, or swap it for another version; returns when it serves.

        Args:
            name: The name in its manifest.
            version: The version; None takes the newest (`edgeonnx.spec.versions.version_order`).
            force: Load it again even if exactly this bundle serves already.

        Raises:
            ModelNotFoundError: No folder of the repository, and no bundle of the settings, is that model.
            NotReadyError: The agent is stopping.
            ForbiddenError: The model is managed.
            MemoryBudgetError: It does not fit into the memory, perhaps not beside the version that serves.
            EdgeOnnxError: It did not pass its checks; see `device_agent.models.loading.load_model`.
        """
        self._check_not_managed(name)
        await self._background.finish(self._load_in_turn(name, version, force=force))

    async def unload(self, name: str) -> None:
        """Stop serving a model, and free its memory when its last request is answered; returns when that is done.

        A model that does not serve stays so; a failure of it is forgotten.

        Raises:
            ForbiddenError: The model is managed.
            ModelNotFoundError: There is no model of that name.
        """
        self._check_not_managed(name)
        await self._background.finish(self._unload_in_turn(name))

    async def swap_to(
        self,
        path: Path,
        *,
        name: str,
        digest: str | None = None,
        loading: asyncio.Future[list[LoadedModel]] | None = None,
    ) -> None:
        """Let the bundle in a folder serve under its name, in place of what serves; returns when it does.

        If that bundle serves already, unchanged on disk, nothing is done.

        Args:
            path: The folder.
            name: The model that it must be.
            digest: The digest that it must have; None: any.
            loading: Gives its model if it is loading already, in a list from which it is taken.

        Raises:
            BundleError: It is no bundle, another one, or damaged.
            NotReadyError: The agent is stopping.
            EdgeOnnxError: As for `load`. What served still serves.
        """
        await self._background.finish(self._swap_in_turn(path, name, digest, loading))

    async def withdraw(self, name: str) -> None:
        """Stop serving a managed model; as `unload`."""
        await self._background.finish(self._unload_in_turn(name))

    def drain(self) -> None:
        """Take no new request; those in flight are finished."""
        self.draining = True

    async def drained(self, timeout: float) -> bool:
        """Wait until no request is in flight; False if some still are after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._requests.none_left()
                for record in list(self._records):
                    if record.live is not None:
                        await record.live.idle()
        except TimeoutError:
            return False
        return True

    async def interrupt(self, timeout: float) -> bool:
        """After `drain`: end answers that take long with an error; False if some requests still are in flight then.

        Args:
            timeout: Seconds to wait for them.
        """
        live = [record.live for record in self._records if record.live is not None]
        await asyncio.gather(*(self._background.in_thread(each.loaded.interrupt) for each in live))
        return await self.drained(timeout)

    def close(self, timeout: float) -> bool:
        """End all runner threads; False if one still runs, or a model is still being loaded."""
        live = [record.live for record in self._records if record.live is not None]
        ended = [each.loaded.close(timeout) for each in live]
        return all(ended) and not self._background.threads

    async def _load_in_turn(self, name: str, version: str | None, *, force: bool) -> None:
        async with self._turn:
            self._check_not_stopping()
            found = await self._background.in_thread(self._choose, name, version)
            if force or not await self._serves_already(found):
                await self._load(found)

    async def _swap_in_turn(
        self, path: Path, name: str, digest: str | None, loading: asyncio.Future[list[LoadedModel]] | None
    ) -> None:
        async with self._turn:
            self._check_not_stopping()
            found = expect(await self._background.in_thread(look, path), name, digest)
            if not await self._serves_already(found):
                await self._load(found, loading, strict=True)

    async def _serves_already(self, found: Found) -> bool:
        """Whether exactly this bundle serves, unchanged on disk."""
        serving = self._live.get(found.name)
        if serving is None or serving.live is None:
            return False
        loaded = serving.live.loaded
        same = loaded.bundle.digest == found.digest and loaded.bundle.root == found.path
        return same and not await self._background.in_thread(loaded.changed_files)

    def _choose(self, name: str, version: str | None) -> Found:
        return choose(candidates(self._config.bundles, self._config.repository), name, version)

    async def _load(
        self, found: Found, loading: asyncio.Future[list[LoadedModel]] | None = None, *, strict: bool = False
    ) -> None:
        """Load one bundle and let it serve. Call it in the name's turn, and with no other load.

        Args:
            found: The bundle.
            loading: Gives its model if it is loading already.
            strict: What was loaded does not serve if the folder could not be read, or held another bundle.
        """
        record = self._begin(found)
        try:
            if loading is None:
                serving = self._live.get(found.name)
                beside = None if serving is None else f"{serving.name} {serving.version}"
                gently = bool(self._live)
                loaded = await self._background.in_thread(self._load_now, found, self._taken(serving), beside, gently)
            else:
                loaded = (await loading).pop()
            await self._check_loaded(found, loaded, strict=strict)
        except BaseException as error:
            record.go(ModelState.FAILED, str(error) or type(error).__name__)
            if not isinstance(error, asyncio.CancelledError):
                self.failed_loads += 1
                logger.error("%s %s is not loaded: %s", found.name, found.version, printable(error))  # noqa: TRY400
            raise
        record.name, record.version = loaded.name, loaded.version
        self._turn_to(record, loaded)

    def _taken(self, replaced: Record | None) -> Taken:
        """Memory that a load cannot have.

        Nothing is promised to the version that it replaces any more: all new requests are the new version's.
        """
        loaded = [(record, record.live.loaded) for record in self._records if record.live is not None]
        return memory.Taken(
            now=sum(each.memory_bytes for _, each in loaded),
            promised=sum(each.reserved_bytes - each.memory_bytes for record, each in loaded if record is not replaced),
        )

    def _load_now(self, found: Found, taken: Taken, beside: str | None, gently: bool) -> LoadedModel:
        """Load a bundle in the calling thread."""
        if found.error is not None:
            raise found.error
        load = self._loader or _load_model()
        return load(found.path, self._config, taken=taken, beside=beside, gently=gently)

    async def _check_loaded(self, found: Found, loaded: LoadedModel, *, strict: bool) -> None:
        """Close a model that must not serve, and say why."""
        wrong = loaded.name != found.name if found.error is None else strict
        if self.draining or wrong:
            await self._background.in_thread(loaded.close)
            self._check_not_stopping()
            if found.error is not None:
                raise found.error
            raise BundleError("became another model while it was loaded", where=str(found.path), found=loaded.name)

    def _begin(self, found: Found) -> Record:
        """A new attempt, in place of earlier ones of this name and version that failed."""
        self._records = [
            record
            for record in self._records
            if record.state is not ModelState.FAILED or (record.name, record.version) != (found.name, found.version)
        ]
        record = Record(found.name, found.version)
        self._records.append(record)
        return record

    async def _unload_in_turn(self, name: str) -> None:
        async with self._turn:
            failed = [each for each in self._records if each.name == name and each.state is ModelState.FAILED]
            self._records = [each for each in self._records if each not in failed]
            record = self._live.pop(name, None)
            if record is None and not failed:
                await self._background.in_thread(self._choose, name, None)
        if record is not None:
            await self._retire(record)

    async def _retire(self, record: Record) -> None:
        """Close a model that gets no new requests, when its last one is answered, and give its memory back."""
        live = record.live
        if live is None:
            return
        record.go(ModelState.DRAINING)
        await live.idle()
        last = [live.loaded]
        record.live = live = None
        await self._background.in_thread(_free, last)
        asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._give_back_the_rest)
        record.go(ModelState.UNLOADED)
        self._records.remove(record)
        logger.info("%s %s is unloaded", record.name, record.version)

    def _give_back_the_rest(self) -> None:
        """What the last request still held when its model was closed: its task ends a moment after its answer."""
        self._background.spawn(self._background.in_thread(memory.give_back))

    def _check_not_managed(self, name: str) -> None:
        if name in self.managed:
            raise ForbiddenError(
                "the model is installed from a repository of releases",
                where=name,
                hint="on the device: edgeonnx-agent status, pin, rollback",
            )

    def _check_not_stopping(self) -> None:
        if self.draining:
            raise NotReadyError("the agent is stopping; no model is loaded any more")


def _load_model() -> Load:
    from device_agent.models.loading import load_model  # heavy: ONNX Runtime

    return load_model


def _free(last: list[LoadedModel]) -> None:
    """Close a model and give its memory back; `last` holds the last reference to it, and is emptied."""
    last.pop().close()
    memory.give_back()
