"""Every fuzz target by name."""

from __future__ import annotations

from tests.fuzz import document_targets, image_targets, number_targets, sampling_targets, text_targets
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for group in (text_targets, document_targets, number_targets, sampling_targets, image_targets)
    for target in group.TARGETS
}
