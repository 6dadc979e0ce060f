"""`python -m device_agent.update.candidate`: load a bundle and replay its golden set, in a process of its own.

Whatever a release does (crash, hang, take all memory), it does here, and not in the process that serves. The outcome is
one JSON line on stdout; the parent reads it, and takes anything else for a failure.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edgeonnx.errors import EdgeOnnxError

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Prove one bundle.

    Args:
        arguments: The bundle's folder, and the agent's settings file or nothing.

    Returns:
        0 if it gave its golden answers, else 1.
    """
    from device_agent.models.loading import load_model
    from device_agent.settings import read_settings

    try:
        config = read_settings(Path(arguments[1]) if len(arguments) > 1 else None)
        loaded = load_model(Path(arguments[0]), config)
    except EdgeOnnxError as error:
        print(json.dumps({"ok": False, "error": error.to_dict()}))  # noqa: T201 - the parent reads it
        return 1
    answer = {
        "ok": True,
        "variant": loaded.engine.variant.name,
        "provider": loaded.engine.provider,
        "memory_bytes": loaded.memory_bytes,
        "seconds": loaded.seconds,
    }
    print(json.dumps(answer), flush=True)  # noqa: T201 - the parent reads it
    return 0


if __name__ == "__main__":
    import os

    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
