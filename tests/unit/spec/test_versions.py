from __future__ import annotations

import random

from edgeonnx.spec.versions import version_order

# From the specification of semantic versions, and what else people write.
ORDERED = (
    "0.9",
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc9",
    "1.0.0-rc10",
    "1.0.0",
    "1.0.0+build.5",
    "1.0.1",
    "1.2.0",
    "v1.10.0",
    "2",
    "2024.06.07",
)


def test_versions_have_an_order() -> None:
    shuffled = list(ORDERED)
    random.Random(7).shuffle(shuffled)
    assert sorted(shuffled, key=version_order) == list(ORDERED)
