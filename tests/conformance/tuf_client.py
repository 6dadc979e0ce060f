#!/usr/bin/env python3
"""The client under test for the public tuf-conformance suite: the device's own metadata, clock and downloader.

    tuf_client.py --metadata-dir D init ROOT
    tuf_client.py --metadata-dir D --metadata-url U refresh
    tuf_client.py --metadata-dir D --metadata-url U --target-name T --target-base-url V --target-dir E download

It exits with 0 or 1, as the suite's CLIENT-CLI.md asks. Only what the suite fixes is done here: where the metadata
lies, that metadata and targets have two addresses, and that targets are written to a folder. How to run the suite
against it is told in `docs/security.md`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import quote

from device_agent.config import UpdateConfig
from device_agent.slots.disk import Disk
from device_agent.update.transfer.downloader import Downloader
from device_agent.update.transfer.sources import Body, Source
from device_agent.update.transfer.sources.factory import open_source
from device_agent.update.trust.clock import Clock
from device_agent.update.trust.metadata import TrustedMetadata
from edgeonnx.errors import EdgeOnnxError

SETTINGS = UpdateConfig(retries=0, proxy="none")
"""The suite counts requests, and its answers do not get better by waiting."""


class TwoAddresses:
    """Metadata from one address, targets from another, as one repository."""

    def __init__(self, metadata: str, targets: str | None) -> None:
        self._sources: dict[str, Source] = {"metadata": open_source(metadata, SETTINGS)}
        if targets is not None:
            self._sources["targets"] = open_source(targets, SETTINGS)

    def open(self, path: str, *, offset: int = 0, validator: str | None = None) -> AbstractContextManager[Body]:
        kind, _, rest = path.partition("/")
        return self._sources[kind].open(rest, offset=offset, validator=validator)


def trusted(arguments: argparse.Namespace) -> TrustedMetadata:
    """The device's metadata, in the suite's folder. Nothing is fetched by `init`, which names no address."""
    folder, disk = Path(arguments.metadata_dir), Disk()
    source = TwoAddresses(arguments.metadata_url or "http://127.0.0.1:9/", arguments.target_base_url)
    downloader = Downloader(source, SETTINGS, disk)
    disk.make_folder(folder)
    return TrustedMetadata(folder, downloader, Clock(folder / "clock", disk), disk)


def download(metadata: TrustedMetadata, names: list[str], folder: Path) -> None:
    """Write the verified targets, in order; the first that cannot be had ends it."""
    metadata.refresh()
    for name in names:
        data = metadata.target(name)
        if data is None:
            raise SystemExit(f"{name}: no role that may sign it has it")
        path = folder / quote(name, "")
        if not path.is_file() or path.read_bytes() != data:
            Disk().replace(path, data)


def main() -> int:
    parser = argparse.ArgumentParser(description="edgeonnx-agent's TUF client, for tuf-conformance")
    parser.add_argument("--metadata-dir", required=True)
    parser.add_argument("--metadata-url")
    parser.add_argument("--target-name", action="append", default=[])
    parser.add_argument("--target-base-url")
    parser.add_argument("--target-dir")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("init").add_argument("trusted_root")
    commands.add_parser("refresh")
    commands.add_parser("download")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        metadata = trusted(arguments)
        if arguments.command == "init":
            metadata.bootstrap(Path(arguments.trusted_root).read_bytes())
        elif arguments.command == "refresh":
            metadata.refresh()
        else:
            download(metadata, arguments.target_name, Path(arguments.target_dir))
    except (EdgeOnnxError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
