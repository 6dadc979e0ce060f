"""What a report shows: ratios, the front, changes of operators, where the bytes are."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest

from edgeonnx.report import figures, words
from edgeonnx.spec.contents import Contents
from edgeonnx.spec.manifest import Requirements
from edgeonnx.spec.numerics import IntegerRange
from edgeonnx.spec.report import Threshold, Verdict
from tests.unit.report import sample


def test_rows_come_in_the_order_of_preference_with_their_ratio() -> None:
    rows = figures.variant_rows(sample.full())
    assert [row.variant.name for row in rows] == ["cpu-int8", "cpu-fp32"]
    assert rows[0].ratio == pytest.approx(352.4 / 148.1)
    assert rows[1].ratio == 1.0


@pytest.mark.parametrize("change", [{"threads": 2}, {"texts_per_second": 0.0}])
def test_speeds_that_do_not_compare_have_no_ratio(change: dict[str, float]) -> None:
    base = sample.full()
    graphs = {**base.timings.graphs, "cpu-fp32": replace(base.timings.graphs["cpu-fp32"], **change)}
    rows = figures.variant_rows(replace(base, timings=replace(base.timings, graphs=graphs)))
    assert rows[0].ratio is None


def test_a_variant_without_a_speed_of_its_own_has_that_of_its_candidate() -> None:
    base = sample.full()
    graphs = {"rowwise, alpha 0.65, 2 kept": sample.timing(321.0)}
    rows = figures.variant_rows(replace(base, timings=replace(base.timings, graphs=graphs)))
    assert rows[0].timing is not None
    assert rows[0].timing.texts_per_second == 321.0
    assert rows[1].timing is None


def test_the_state_and_the_sentence_follow_the_gate() -> None:
    rows = figures.variant_rows(sample.full())
    assert [row.state for row in rows] == ["passed", "passed"]
    nothing = sample.replaced(sample.full(), "cpu-int8", gate=Verdict(judged=()))
    assert figures.variant_rows(nothing)[0].state == "not judged"
    bounds = ((Threshold(metric="a", at_most=1.0), 2.0), (Threshold(metric="b", at_most=1.0), math.nan))
    failing = figures.variant_rows(sample.replaced(sample.full(), "cpu-int8", gate=Verdict(judged=bounds)))[0]
    assert failing.state == "failed"
    assert failing.verdict.startswith(
        "does not keep 2 of 2 thresholds: a is 2.000000 and must be at most 1; b is not a"
    )


def test_the_main_metric_is_the_first_that_was_measured() -> None:
    assert figures.main_metric(sample.full()) == "cosine_mean"
    assert figures.main_metric(sample.bare()) is None
    base = sample.replaced(sample.full(), "cpu-fp32", fidelity={})
    for fidelity, expected in (({"score_diff_max": 0.1, "agreement": 1.0}, "agreement"), ({"odd": 1.0}, "odd")):
        assert figures.main_metric(sample.replaced(base, "cpu-int8", fidelity=fidelity)) == expected


def test_the_picture_has_variants_and_candidates_once_each() -> None:
    points = figures.pareto(sample.full())
    assert [point.name for point in points if point.kind == "variant"] == ["cpu-int8", "cpu-fp32"]
    assert [point.x for point in points] == sorted((point.x for point in points), reverse=True)
    assert {point.name for point in points if point.front} == {
        "rowwise",
        "rowwise, alpha 0.65",
        "cpu-int8",
        "rowwise, alpha 0.65, 4 kept",
        "rowwise, alpha 0.65, 8 kept",
        "cpu-fp32",
    }
    assert figures.pareto(replace(sample.full(), timings=None)) == ()


def test_the_candidate_that_was_chosen_is_the_variant_and_no_point_of_its_own() -> None:
    base = sample.full()
    graphs = {**base.timings.graphs, "rowwise, alpha 0.65, 2 kept": sample.timing(350.0)}
    points = figures.pareto(replace(base, timings=replace(base.timings, graphs=graphs)))
    assert points == figures.pareto(base)


def test_without_figures_there_is_no_picture() -> None:
    assert figures.pareto(sample.bare()) == ()


def test_the_front_is_what_no_other_point_beats() -> None:
    rng = random.Random(3)
    base = sample.full()
    for _ in range(20):
        names = [f"c{index}" for index in range(30)]
        search = tuple(
            replace(sample.search()[0], name=name, metrics={"cosine_mean": rng.randint(0, 9) / 10}) for name in names
        )
        graphs = {name: sample.timing(float(rng.randint(1, 9))) for name in names}
        report = replace(sample.replaced(base, "cpu-int8", search=search), timings=replace(base.timings, graphs=graphs))
        points = figures.pareto(report)
        assert len(points) == 30
        for point in points:
            better = [o for o in points if o.x >= point.x and o.y >= point.y and (o.x, o.y) != (point.x, point.y)]
            assert point.front == (not better)


def test_points_without_finite_figures_are_left_out() -> None:
    report = sample.replaced(sample.full(), "cpu-int8", fidelity={"cosine_mean": math.nan})
    assert "cpu-int8" not in [point.name for point in figures.pareto(report)]


def test_operators_change_by_their_counts() -> None:
    found = replace(
        sample.int8_evidence(), operators={"a": 3, "b": 2, "c": 1, "d": 9}, loaded={"a": 3, "b": 1, "c": 4, "x.F": 2}
    )
    rows = figures.operator_rows(found)
    assert [(row.name, row.written, row.loaded, row.change) for row in rows] == [
        ("d", 9, 0, "gone"),
        ("a", 3, 3, "as written"),
        ("b", 2, 1, "fewer"),
        ("c", 1, 4, "more"),
        ("x.F", 0, 2, "new"),
    ]
    assert [row.name for row in figures.fusions(found)] == ["x.F"]


def test_sizes_say_where_the_bytes_are() -> None:
    report = sample.full()
    found = figures.sizes(report)
    assert found is not None
    int8, fp32 = found.variants
    assert (int8.graph, int8.tensors, int8.shared) == (164_377, 26_412_032, 786_432)
    assert (fp32.graph, fp32.tensors, fp32.shared) == (81_204, 90_265_600, 786_432)
    assert sum(total for _, total in found.parts.values()) == found.total == report.contents.total_size
    assert sum(count for count, _ in found.parts.values()) == found.files == len(report.contents.files)
    assert found.total - found.distinct == 786_432
    assert found.parts["golden set"] == (1, 46_512)
    assert figures.sizes(sample.bare()) is None


def test_variants_with_one_folder_of_tensors_do_not_say_what_they_share() -> None:
    report = sample.full()
    component = report.manifest.entry_component
    same = tuple(replace(variant, tensors=sample.asset("cpu-fp32")) for variant in component.variants)
    manifest = replace(report.manifest, components={"encoder": replace(component, variants=same)})
    found = figures.sizes(replace(report, manifest=manifest))
    assert found is not None
    assert [item.shared for item in found.variants] == [None, None]
    assert [item.tensors for item in found.variants] == [26_412_032, 90_265_600]


def test_a_graph_with_inline_tensors_has_no_folder() -> None:
    report = sample.bare()
    component = report.manifest.entry_component
    inline = tuple(replace(variant, tensors=None) for variant in component.variants)
    manifest = replace(report.manifest, components={"encoder": replace(component, variants=inline)})
    found = figures.sizes(replace(report, manifest=manifest, contents=Contents.of(sample.contents().files)))
    assert found is not None
    assert [(item.tensors, item.shared) for item in found.variants] == [(0, 0), (0, 0)]


def test_plain_data_is_json_and_null_where_a_figure_is_none() -> None:
    report = sample.replaced(sample.full(), "cpu-int8", fidelity={"cosine_mean": math.nan, "odd": math.inf})
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert data["evidence"]["variants"]["cpu-int8"]["fidelity"] == {"cosine_mean": None, "odd": None}
    assert data["evidence"]["variants"]["cpu-fp32"]["fidelity"]["cosine_mean"] == 1.0
    assert data["timings"]["graphs"]["cpu-int8"]["texts_per_second"] == 352.4
    assert (data["digest"], data["bytes"]) == (report.digest, report.contents.total_size)
    assert sample.bare().to_dict()["timings"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "not a number"),
        (math.inf, "infinite"),
        (-math.inf, "-infinite"),
        (0.0, "0"),
        (1.0, "1.000000"),
        (0.9999998, "0.99999980"),
        (1.0000002, "1.00000020"),
        (0.998996, "0.998996"),
        (0.00042, "0.000420"),
        (2.8e-7, "2.80e-07"),
        (-0.5, "-0.500000"),
        (1234.5, "1,234.50"),
    ],
)
def test_figures_in_words(value: float | None, text: str) -> None:
    assert words.figure(value) == text


def test_other_words() -> None:
    assert [words.rate(value) for value in (None, math.nan, 352.44, 8.125, 12_345.6)] == [
        "–",
        "–",
        "352",
        "8.1",
        "12,346",
    ]
    assert [words.milliseconds(value) for value in (None, 3.4337)] == ["–", "3.43"]
    assert [words.ratio(value) for value in (None, 2.379)] == ["–", "2.38×"]
    assert [words.size(value) for value in (None, 0, 46_512, 26_412_032)] == ["–", "0 B", "46.5 kB", "26.4 MB"]
    assert words.bound(Threshold(metric="m", at_least=0.999)) == "at least 0.999"
    assert words.bound(Threshold(metric="m", at_most=0.3)) == "at most 0.3"
    assert words.provider("CUDAExecutionProvider") == "CUDA"
    assert words.provider("ExecutionProvider") == "ExecutionProvider"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), ("", "–"), ([], "–"), (True, "yes"), (False, "no"), (0, "0"), (12_345, "12,345"), (0.0, "0"),
        (2.8e-7, "2.8e-07"), ([1, "a"], "1, a"), ({"a_b": {"c": 1}}, "a b: c: 1"), ("\x1b", "\\x1b"),
    ],
)  # fmt: skip
def test_values_of_the_evidence_in_words(value: object, text: str) -> None:
    assert words.value_of(value) == text


def test_requirements_in_words() -> None:
    needs = Requirements(
        provider="CPUExecutionProvider",
        instruction_sets=("avx2",),
        memory_bytes=26_412_032,
        integer=IntegerRange(activation_max=255, weight_max=127),
        unknown=("npu",),
    )
    assert words.requirements(needs) == (
        "26.4 MB of memory, the instruction set avx2, exact 8-bit products up to 255 × 127, "
        "npu (unknown to this release)"
    )


def test_a_decoder_s_speed_counts_tokens() -> None:
    report = sample.decoder()
    assert (figures.counted(report), figures.counted(sample.full())) == ("tokens", "texts")
    assert figures.main_metric(report) == "top1"
    assert [(point.name, point.x, point.y) for point in figures.pareto(report)] == [
        ("cpu-int4", 180.5, 0.913),
        ("cpu-fp32", 35.25, 1.0),
    ]
