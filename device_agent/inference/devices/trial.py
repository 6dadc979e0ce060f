"""Tries one execution provider: the program of a process of its own, which `probing` starts.

A provider's library may crash the process that loads it, and ONNX Runtime tells the cause only on stderr; so it is
loaded here first, where neither hurts a server. The outcome goes to stdout as one line of JSON, and everything that
libraries print goes to stderr.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import functools
import importlib.util
import io
import json
import os
import sys
from pathlib import Path

# A graph of one node, y = x @ x for float32 (2, 2): 82 bytes of ONNX, opset 13.
GRAPH = base64.b64decode(
    "CAg6QwoUCgF4CgF4EgF5GgFuIgZNYXRNdWwSAWdaEwoBeBIOCgwIARIICgIIAgoCCAJiEwoBeRIOCgwIARIICgIIAgoCCAJCBAoAEA0="
)
_TENSORRT = ("libnvinfer.so", "libnvonnxparser.so")


@functools.cache
def preload(provider: str) -> str:
    """Load the libraries that Python packages bring, so that a provider's library finds them.

    The dynamic linker does not look into Python packages (`nvidia-cublas`, `tensorrt-cu13-libs`); a library that is
    loaded already is found by its name. Once for each provider in the life of a process.

    Returns:
        What ONNX Runtime says about libraries that it did not find.
    """
    import onnxruntime as ort

    said = io.StringIO()
    if provider in ("CUDAExecutionProvider", "TensorrtExecutionProvider") and hasattr(ort, "preload_dlls"):
        # It reports on stdout, which is ours.
        with contextlib.redirect_stdout(said), contextlib.suppress(Exception):
            ort.preload_dlls()
    if provider == "TensorrtExecutionProvider":
        for folder in package_folders("tensorrt_libs"):
            for stem in _TENSORRT:
                for file in sorted(folder.glob(f"{stem}.*")):
                    with contextlib.suppress(OSError):
                        ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    return said.getvalue()


def package_folders(name: str) -> tuple[Path, ...]:
    """Folders of an installed package, without importing it; none if it is not installed."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return ()
    return tuple(Path(folder) for folder in (spec.submodule_search_locations or ())) if spec is not None else ()


def attempt(provider: str, options: dict[str, str]) -> dict[str, object]:
    """Open a session on the provider and run it once.

    Returns:
        `loaded`: the session's providers; `error`: the exception's text, empty if there was none.
    """
    import numpy as np
    import onnxruntime as ort

    sys.stderr.write(preload(provider))
    sys.stderr.flush()
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(GRAPH, settings, providers=[(provider, options)], enable_fallback=0)
        loaded = session.get_providers()
        two = np.full((2, 2), 2, dtype=np.float32)
        (found,) = session.run(None, {"x": two})
        wrong = "" if np.array_equal(found, two @ two) else f"it computes a wrong product: {found.tolist()}"
    except Exception as error:  # noqa: BLE001 - the binding raises a dozen types that share no base of their own
        return {"loaded": [], "error": f"{type(error).__name__}: {error}"}
    return {"loaded": loaded, "error": wrong}


def main(argument: str) -> None:
    """Try the provider named in `argument` (JSON with `provider` and `options`) and print the outcome."""
    outcome = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked = json.loads(argument)
    json.dump(attempt(asked["provider"], asked["options"]), outcome)
    outcome.flush()
    # Libraries of a device that does not work may hang or crash when they are unloaded; nothing is left to do here.
    os._exit(0)
