"""The page: everything escaped, nothing from outside, figures as in the evidence, sentences where something lacks."""

from __future__ import annotations

import builtins
import math
import re
from dataclasses import replace

import pytest

from edgeonnx.errors import RuntimeUnavailableError
from edgeonnx.report.content import Report
from edgeonnx.report.html import MAX_BARS, render
from edgeonnx.spec.evidence import NodeCost
from edgeonnx.spec.report import Threshold, Verdict
from tests.unit.report import sample
from tests.unit.report.page import Page

HOSTILE = "</style><script src=//x.example>\"'&\x1b[31m\x07\n\u202e\ud800{{7*7}}"
SHOWN = "</style><script src=//x.example>\"'&\\x1b[31m\\x07\\n\\u202e\\ud800{{7*7}}"
REPORTS = {
    "full": sample.full(),
    "decoder": sample.decoder(),
    "bare": sample.bare(),
    "hostile": sample.with_text(HOSTILE),
    "no timings": replace(sample.full(), timings=None),
    "no files": replace(sample.full(), contents=None, digest=None),
}


@pytest.fixture(scope="module")
def full() -> Page:
    return Page(render(sample.full()))


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_every_page_is_whole_and_needs_nothing_from_outside(report: Report) -> None:
    data = render(report)
    page = Page(data)
    names = [tag for tag, _ in page.tags]
    assert not {"script", "link", "img", "iframe", "object", "image", "use", "foreignobject"} & set(names)
    for tag, attributes in page.tags:
        assert not any(key.startswith("on") for key in attributes), tag
        assert not {"src", "srcset", "xlink:href", "style"} & set(attributes), tag
        assert attributes.get("href", "#").startswith("#")
    style = "".join(text for tag, text in page.texts if tag == "style")
    assert "url(" not in style
    assert "@import" not in style
    assert "@font-face" not in style
    assert names.count("h1") == 1


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_every_anchor_exists_once_and_every_table_has_headers(report: Report) -> None:
    page = Page(render(report))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {attributes["href"][1:] for tag, attributes in page.tags if tag == "a"}
    assert targets
    assert targets <= set(ids)
    assert {attributes.get("aria-labelledby") for tag, attributes in page.tags if tag == "section"} <= set(ids)
    for table in page.tables:
        assert len(table.rows) > 1, "an empty frame"
        width = len(table.rows[0])
        assert all(len(row) == width for row in table.rows)
        scopes = [attributes.get("scope") for tag, attributes, _ in table.cells if tag == "th"]
        assert None not in scopes
        assert scopes[:1] == ["col"]


def test_hostile_text_is_shown_and_does_nothing() -> None:
    data = render(sample.with_text(HOSTILE))
    assert b"<script" not in data
    text = data.decode()
    assert all(char.isprintable() or char == "\n" for char in text)
    assert text.count("</style>") == 1
    shown = Page(data).text
    assert shown.count(SHOWN) >= 40
    assert "49" not in shown.replace("499", "")


def test_hostile_text_is_escaped_in_each_place_of_its_own() -> None:
    page = Page(render(sample.with_text(HOSTILE)))
    for head in ("variant", "metric", "figure", "score", "candidate", "operator", "file", "stage", "build"):
        table = next(table for table in page.tables if table.rows[0][0] == head)
        assert any(SHOWN.replace("_", " ") in cell for row in table.rows[1:] for cell in row), head
    drawn = [text for tag, text in page.texts if tag in ("title", "desc", "text")]
    assert sum("<script" in text for text in drawn) >= 5


def test_the_table_of_variants_has_the_figures_of_the_evidence(full: Page) -> None:
    table = full.table("variant", "precision", "runs on")
    assert table.rows[0][3] == "cosine meanfidelity"
    expected = ["cpu-int8", "int8", "CPU", "0.999127", "0.99999980", "26.4 MB", "352", "2.38×", "✓ passed"]
    assert table.row("cpu-int8") == expected
    assert table.row("cpu-fp32")[3:] == ["1.000000", "0.99999990", "90.3 MB", "148", "1.00×", "✓ passed"]
    speeds = full.table("variant", "threads").row("cpu-int8")
    timing = sample.timings().graphs["cpu-int8"]
    assert speeds[1:5] == ["1", "5,000", "352", "8,810"]
    assert speeds[5:7] == [f"{timing.latency_ms:.2f}", f"{timing.latency_p95_ms:.2f}"]


def test_gate_worst_texts_search_and_operators_are_those_of_the_evidence(full: Page) -> None:
    found = sample.int8_evidence()
    gate = full.table("metric", "asked for")
    assert gate.row("cosine min") == ["cosine min", "at least 0.99", "0.990512", "✓ kept"]
    assert len(gate.rows) == 1 + len(found.gate.judged)
    worst = full.table("score", "tokens").rows[1:]
    assert [(float(score), int(tokens)) for score, tokens, _ in worst] == [(i.score, i.tokens) for i in found.worst]
    assert worst[1][2] == '<script>alert(1)</script> & "quotes"'
    assert worst[2][2] == "colour \\x1b[31mred\\x1b[0m, bell \\x07, direction \\u202eoverride"
    search = full.table("candidate").rows[1:]
    assert [row[0] for row in search] == [item.name for item in found.search]
    assert search[3][-2:] == ["✓ passed", "✓ chosen"]
    assert search[0][:4] == ["rowwise", "0", "0.996512", "0.961204"]
    operators = full.table("operator").rows[1:-1]
    assert {row[0]: (int(row[1]), int(row[2])) for row in operators} == {
        name: (found.operators.get(name, 0), found.loaded.get(name, 0)) for name in {**found.operators, **found.loaded}
    }
    assert full.table("operator").rows[-1][:3] == ["all", "349", "251"]
    assert "com.microsoft.MatMulIntegerToFloat × 24" in full.text


def test_sizes_parity_texts_machine_and_times_are_there(full: Page) -> None:
    report = sample.full()
    assert full.table("variant", "graph").row("cpu-int8")[1:] == ["164.4 kB", "26.4 MB", "786.4 kB"]
    parts = full.table("files", "number")
    assert parts.rows[-1] == ["all", str(len(report.contents.files)), "117.5 MB"]
    assert full.table("stage").rows[-1] == ["all", "69.9"]
    for text in ("2.8e-07", "origin texts.txt", "evaluated 5,000", "calibrated 256", "torch 2.13.0+cpu", "cores 2"):
        assert text in full.text
    assert report.digest in full.text
    assert sample.digest("model.safetensors") in full.text


def test_numbers_stand_at_the_right(full: Page) -> None:
    for table in full.tables:
        for tag, attributes, text in table.cells:
            if tag == "td" and re.fullmatch(r"[\d.,]+(e-\d+)?( MB| kB|×)?", text):
                assert "number" in (attributes.get("class") or ""), text


def test_the_plots_tell_what_they_show_to_those_who_do_not_see_them(full: Page) -> None:
    plots = [attributes for tag, attributes in full.tags if tag == "svg"]
    assert len(plots) == 2
    assert all(attributes["role"] == "img" for attributes in plots)
    told = [text for tag, text in full.texts if tag == "desc"]
    assert "On the front, the fastest first: rowwise, rowwise, alpha 0.65, cpu-int8" in told[0]


def test_a_variant_that_fails_is_told_at_the_top() -> None:
    bound = Threshold(metric="cosine_mean", at_least=0.9995)
    report = sample.replaced(sample.full(), "cpu-int8", gate=Verdict(judged=((bound, 0.999127),)))
    page = Page(render(report))
    told = "cpu-int8 does not keep 1 of 1 thresholds: cosine mean is 0.999127 and must be at least 0.9995."
    assert told in page.text
    assert ("li", {"class": "failed"}) in page.tags
    assert page.table("metric").row("cosine mean")[2:] == ["0.999127", "✗ not kept"]
    assert page.table("variant", "precision").row("cpu-int8")[-1] == "✗ failed"


def test_what_is_not_a_number_is_called_so_and_drawn_nowhere() -> None:
    bound = Threshold(metric="cosine_mean", at_least=0.999)
    report = sample.replaced(
        sample.full(),
        "cpu-int8",
        fidelity={"cosine_mean": math.nan},
        gate=Verdict(judged=((bound, math.nan),)),
        sensitivity=(NodeCost(node="a", cost=math.nan), NodeCost(node="b", cost=math.inf), NodeCost(node="c", cost=-1)),
    )
    data = render(report)
    page = Page(data)
    assert page.table("metric").row("cosine mean")[2:] == ["not a number", "✗ not kept"]
    assert page.table("variant", "precision").row("cpu-int8")[3] == "not a number"
    assert "cpu-int8" not in [row[0] for row in page.table("build").rows]
    assert not any(text in data for text in (b'"nan', b'"inf', b" nan", b"nan,", b">nan"))


def test_what_the_evidence_lacks_is_said_in_a_sentence() -> None:
    page = Page(render(sample.bare()))
    for text in (
        "cpu-int8 was not measured by itself.",
        "No speed of a variant was recorded.",
        "it needs the fidelity of a variant, which was not measured",
        "The files of the bundle are not known to this report.",
        "No comparison is recorded.",
        "The source is not recorded.",
        "Which texts the variants were measured on is not recorded.",
        "The bundle holds no timings, so neither the machine nor a speed is known.",
    ):
        assert text in page.text, text
    assert "svg" not in [tag for tag, _ in page.tags]


def test_without_timings_the_picture_says_what_it_needs() -> None:
    page = Page(render(replace(sample.full(), timings=None)))
    assert "it needs the speed of a variant, which was not recorded" in page.text
    assert page.table("candidate").rows[1][-3] == "–"


def test_an_empty_variant_has_sentences_and_no_empty_frames() -> None:
    nothing = {"fidelity": {}, "invariance": {}, "gate": Verdict(judged=()), "operators": {}, "loaded": {}}
    report = sample.replaced(sample.full(), "cpu-fp32", **nothing)
    page = Page(render(report))
    for text in ("No threshold was set.", "No figure was recorded.", "The operators were not recorded.", "not judged"):
        assert text in page.text
    unseen = sample.replaced(sample.full(), "cpu-fp32", loaded={})
    assert "The graph that ONNX Runtime loads was not looked at." in Page(render(unseen)).text


def test_many_groups_are_cut_and_counted() -> None:
    groups = tuple(NodeCost(node=f"g{index}", cost=1 / (index + 1)) for index in range(MAX_BARS + 7))
    page = Page(render(sample.replaced(sample.full(), "cpu-int8", sensitivity=groups)))
    assert "7 more cost less than the last one shown" in page.text
    assert sum(tag == "rect" for tag, _ in page.tags) == MAX_BARS


def test_the_same_report_gives_the_same_bytes() -> None:
    assert render(sample.full()) == render(sample.full())
    assert render(sample.full()) != render(sample.bare())


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: object, **more: object) -> object:
        if name == "jinja2":
            raise ImportError("No module named 'jinja2'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(RuntimeUnavailableError, match="jinja2 cannot be imported"):
        render(sample.full())


def test_a_decoder_is_told_in_tokens_and_positions() -> None:
    page = Page(render(sample.decoder()))
    assert page.table("variant", "precision", "runs on").row("cpu-int4")[6:8] == ["180", "5.12×"]
    speeds = page.table("variant", "threads").row("cpu-int4")
    assert speeds[1:] == ["2", "128", "91.25", "64", "180", "5.12×"]
    worst = page.table("score", "token").rows[1]
    assert worst == ["0.045100", "5", "The capital of Norway is", '" Oslo"', '" \\"the"']
    assert "tokens per second" in page.text
    assert "texts/s" not in page.text
    assert "10 windows of text compared with the source" in page.text
    assert "8,192 tokens, prompt and answer together" in page.text
    assert "30 layers, 3 heads of 64, 46.1 kB a token" in page.text
    assert page.table("files").row("tokenizer and chat template")[1] == "2"
