"""`python -m device_agent.update --state-dir DIR [--config FILE]`: what the serving process begins every hour.

It does what `edgeonnx-agent update --once` does, without the command line's libraries: a check that finds nothing new
costs the machine as little as may be. Everything is told by the log on stderr and by the exit code.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edgeonnx.errors import EdgeOnnxError

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("edgeonnx.update")


def main(arguments: Sequence[str]) -> int:
    """Run one update.

    Returns:
        The exit code: 0, or that of the first error.
    """
    from device_agent.logs import start_logging
    from device_agent.settings import read_settings
    from device_agent.slots.store import Store
    from device_agent.update.run import Run

    parser = argparse.ArgumentParser(prog="python -m device_agent.update", allow_abbrev=False)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--config", type=Path)
    given = parser.parse_args(arguments)
    store = Store(given.state_dir)
    file = given.config or store.settings_file
    try:
        settings = read_settings(file)
        start_logging(settings.log)
        outcomes, _ = Run(settings=settings, config=file, store=store)()
    except EdgeOnnxError as error:
        logger.error("%s", error)  # noqa: TRY400 - a message for people, not a traceback
        return error.exit_code
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    for each in errors:
        logger.error("%s", each)
    return errors[0].exit_code if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
