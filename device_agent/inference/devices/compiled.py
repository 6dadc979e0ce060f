"""What execution providers compile at a first load (engines, kernel timings), found again at the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_agent.inference.devices.cache import CacheKey
from device_agent.inference.devices.machine import describe_machine
from device_agent.inference.devices.providers import OPENVINO_PROVIDER, TENSORRT_PROVIDER

if TYPE_CHECKING:
    from pathlib import Path

    from device_agent.inference.devices.cache import Cache
    from edgeonnx.spec.manifest import Variant

COMPILING = (TENSORRT_PROVIDER, OPENVINO_PROVIDER)
"""Providers that compile a graph when it is loaded, and can keep the result."""


class Compiled:
    """What providers compile for the variants of a bundle, kept in the cache.

    Args:
        cache: The cache.
        bundle: Digest of the bundle.
        runtime: Version of ONNX Runtime.
        gpu: Number of the GPU.
    """

    def __init__(self, cache: Cache, bundle: str, runtime: str, *, gpu: int = 0) -> None:
        self._cache = cache
        self._bundle = bundle
        self._runtime = runtime
        self._gpu = gpu
        self._folders: dict[CacheKey, Path] = {}

    def __call__(self, variant: Variant) -> Path | None:
        """The folder for a variant's provider, with what was kept there; None if its provider compiles nothing."""
        if variant.requirements.provider not in COMPILING or not self._cache.enabled:
            return None
        key = self.key(variant)
        if key not in self._folders and (folder := self._cache.work_folder(key)) is not None:
            self._folders[key] = folder
        return self._folders.get(key)

    def key(self, variant: Variant) -> CacheKey:
        """What a variant's compiled work depends on."""
        on_gpu = variant.requirements.provider == TENSORRT_PROVIDER
        return CacheKey(
            kind="engines",
            bundle=self._bundle,
            variant=variant.name,
            runtime=self._runtime,
            provider=variant.requirements.provider,
            device=describe_machine(gpus=on_gpu).key(self._gpu if on_gpu else None),
        )

    def keep(self) -> None:
        """Keep what was compiled so far: call it once the model is proven, and again when it is unloaded."""
        for key, folder in self._folders.items():
            self._cache.keep(key, folder)

    def close(self) -> None:
        """Keep what was compiled, and remove the folders. No session may use them any more."""
        self.keep()
        while self._folders:
            self._cache.release(self._folders.popitem()[1])
