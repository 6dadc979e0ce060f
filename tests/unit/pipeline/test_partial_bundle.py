"""Looking at a bundle of which a device holds a part."""

from __future__ import annotations

from pathlib import Path

from edgeonnx.pipeline.inspect import inspect
from edgeonnx.pipeline.verify import verify
from edgeonnx.spec.selection import NOT_HERE
from tests.support import cpus
from tests.support.bundles import CPU_VARIANTS, make_bundle
from tests.support.tamper import leave_out

PROFILE = cpus.profile_of("Ice Lake")


def test_what_is_not_here_is_neither_replayed_nor_inspected(tmp_path: Path) -> None:
    whole = make_bundle(tmp_path, variants=CPU_VARIANTS)
    files = verify(whole, profile=PROFILE).files
    part = leave_out(whole, "encoder/cpu-fp32")
    report = verify(part, profile=PROFILE)
    assert report.files == files - 1
    assert report.skipped == (("cpu-fp32", NOT_HERE),)
    assert [replay.variant for replay in report.replays] == ["cpu-int8", "cpu-int8-7bit"]
    found = inspect(part)
    assert list(found.graphs) == ["encoder/cpu-int8", "encoder/cpu-int8-7bit"]
    assert found.to_dict()["absent_variants"] == ["encoder/cpu-fp32"]
