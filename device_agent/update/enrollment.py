"""Which repository a device belongs to: written once by `edgeonnx-agent enroll`, read by every update."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.errors import EdgeOnnxError, NotEnrolledError, StateError
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.paths import check_bundle_name

if TYPE_CHECKING:
    from device_agent.slots.store import Store

ENROLLMENT_FILE = "enrollment.json"
ENROLLMENT_SCHEMA = "1.0"
MAX_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Enrollment:
    """What `enrollment.json` says.

    Attributes:
        url: The repository: http, https or file.
        channel: Whose offers it follows.
        device: This device's id, which decides its cohorts. It is made up at enrolment and says nothing of the box.
        models: Models that it installs; empty: every model of the channel.
    """

    url: str
    channel: str
    device: str
    models: tuple[str, ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes) -> Enrollment:
        """Read the file.

        Raises:
            ManifestError, SchemaVersionError: It is damaged, or of another version.
        """
        node = parse_document(data, ENROLLMENT_FILE).version("schema_version", known=ENROLLMENT_SCHEMA)
        node.only(("schema_version", "url", "channel", "device", "models"))
        return cls(
            url=node.text("url"),
            channel=check_bundle_name(node.text("channel")),
            device=node.text("device"),
            models=tuple(check_bundle_name(item.typed(str)) for item in node.required("models").items()),
        )

    def to_bytes(self) -> bytes:
        """The file."""
        return canonical_json(
            {
                "schema_version": ENROLLMENT_SCHEMA,
                "url": self.url,
                "channel": self.channel,
                "device": self.device,
                "models": list(self.models),
            }
        )


def new_device_id() -> str:
    """A random device id of 128 bits."""
    return secrets.token_hex(16)


def read_enrollment(store: Store) -> Enrollment:
    """What this device is enrolled to.

    Raises:
        NotEnrolledError: It is not enrolled.
        StateError: The file cannot be read.
    """
    path = store.root / ENROLLMENT_FILE
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return Enrollment.from_bytes(file.read(MAX_BYTES))
    except FileNotFoundError:
        raise NotEnrolledError(
            "this device is not enrolled",
            where=str(store.root),
            hint="edgeonnx-agent enroll --repo URL --root root.json --state-dir DIR",
        ) from None
    except (OSError, EdgeOnnxError) as error:
        raise StateError(
            "the enrolment cannot be read",
            where=str(path),
            found=str(error),
            hint="enrol again; what is installed stays",
        ) from None


def write_enrollment(store: Store, enrollment: Enrollment) -> None:
    """Write it durably."""
    with store.writing("the enrolment"):
        store.disk.replace(store.root / ENROLLMENT_FILE, enrollment.to_bytes())
