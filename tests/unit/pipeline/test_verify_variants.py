"""`verify` on bundles with several variants, on hosts that differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeonnx.errors import GoldenSetError
from edgeonnx.pipeline.verify import host_profile, verify
from tests.support.bundles import CPU_VARIANTS, TinyVariant, make_bundle
from tests.support.cpus import profile_of


def test_every_variant_that_is_right_here_is_replayed_over_the_shared_tensors(tmp_path: Path) -> None:
    report = verify(make_bundle(tmp_path, variants=CPU_VARIANTS), profile=profile_of("Ice Lake"))
    assert [item.variant for item in report.replays] == ["cpu-int8", "cpu-int8-7bit", "cpu-fp32"]
    assert report.skipped == ()


def test_a_variant_that_would_saturate_here_is_skipped_with_that_reason(tmp_path: Path) -> None:
    report = verify(make_bundle(tmp_path, variants=CPU_VARIANTS), profile=profile_of("Core i5-4300U"))
    assert [item.variant for item in report.replays] == ["cpu-int8-7bit", "cpu-fp32"]
    reason = "int8 weights up to 127 would saturate on this CPU: x86-64 without VNNI adds pairs of products in 16 bits"
    assert report.skipped == (("cpu-int8", reason),)
    assert {"variant": "cpu-int8", "reason": reason} in report.to_dict()["skipped"]  # type: ignore[operator]


def test_a_variant_for_other_instructions_is_skipped(tmp_path: Path) -> None:
    variants = (TinyVariant(precision="bf16", instruction_sets=("avx512_bf16",)), TinyVariant())
    report = verify(make_bundle(tmp_path, variants=variants), profile=profile_of("Ice Lake"))
    assert report.skipped == (("cpu-bf16", "needs the instruction sets avx512_bf16"),)


def test_each_variant_that_runs_must_give_the_golden_answers(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, variants=CPU_VARIANTS, bias=0.5)
    with pytest.raises(GoldenSetError) as caught:
        verify(bundle, profile=profile_of("Core i5-4300U"))
    assert caught.value.where == "encoder/cpu-int8-7bit"


@pytest.mark.parametrize("present", [(), ("report.html",), ("report.html", "timings.json")])
def test_files_that_the_digest_does_not_cover_are_named(tmp_path: Path, present: tuple[str, ...]) -> None:
    bundle = make_bundle(tmp_path)
    for name in present:
        (bundle / name).write_text("x")
    report = verify(bundle)
    assert report.unsealed == present
    assert report.to_dict()["not_covered_by_digest"] == list(present)


def test_this_host_has_a_cpu_and_says_which() -> None:
    profile = host_profile()
    assert profile.providers == ("CPUExecutionProvider",)
    assert profile.architecture
    assert profile.memory_bytes is None
