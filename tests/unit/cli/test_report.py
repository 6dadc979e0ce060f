"""`edgeonnx report`: drawn for people, as data, and as a page."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from edgeonnx.cli.main import app
from edgeonnx.cli.report import draw
from edgeonnx.report.content import Report
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.evidence import NodeCost
from edgeonnx.spec.report import Threshold, Verdict
from tests.support.bundles import make_bundle
from tests.support.cli import ESCAPE, edgeonnx
from tests.unit.report import sample

RUNNER = CliRunner()
HOSTILE = "[bold]\x1b[31m\x07\n\u202e\ud800"
SHOWN = "[bold]\\x1b[31m\\x07\\n\\u202e\\ud800"


def drawn(report: Report, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")
    draw(report, Console(file=stream, width=width, highlight=False, markup=False))
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = make_bundle(tmp_path)
    (path / "timings.json").write_bytes(canonical_json(sample.timings().to_dict()))
    return path


def line(text: str, start: str, nth: int = 0) -> list[str]:
    return [row for row in text.splitlines() if row.startswith(start)][nth].split()


def test_it_fits_in_80_columns_and_no_figure_is_broken() -> None:
    text = drawn(sample.full())
    assert max(map(len, text.splitlines())) <= 80
    assert ESCAPE not in text
    for item in sample.int8_evidence().sensitivity:
        assert sum(row.split()[:1] == [item.node] for row in text.splitlines()) == 1, item.node


def test_the_figures_are_those_of_the_evidence() -> None:
    text = drawn(sample.full())
    assert line(text, "cpu-int8  int8") == ["cpu-int8", "int8", "CPU", "0.999127", "0.99999980", "26.4", "MB"]
    assert line(text, "cpu-int8 ", 1) == ["cpu-int8", "1", "352", "8,810", "3.43", "9.56", "2.38×"]
    assert line(text, "cosine min  ") == ["cosine", "min", "at", "least", "0.99", "0.990512", "kept"]
    assert line(text, "com.microsoft.BiasGelu") == ["com.microsoft.BiasGelu", "0", "6", "new"]
    assert line(text, "rowwise, alpha 0.65, 2 kept")[-5:] == ["2", "0.999127", "–", "passed,", "chosen"]
    assert line(text, "all ") == ["all", "13", "117.5", "MB"]
    assert line(text, "evaluated") == ["evaluated", "5,000"]
    assert line(text, "all ", 1) == ["all", "69.9", "s"]
    assert "ok     cpu-int8 keeps all 3 thresholds." in text


def test_the_front_and_the_groups_kept_are_marked_without_colour() -> None:
    text = drawn(sample.full())
    assert "*" in line(text, "rowwise, alpha 0.65, 8 kept")
    assert "*" not in line(text, "rowwise, alpha 0.80")
    assert line(text, "rowwise, alpha 0.80")[-1] == "fails"
    kept = line(text, "encoder.layer.5.output.dense")
    assert (kept[1], kept[-1]) == ("0.001320", "kept")
    assert kept[2] == "█" * 14
    assert len(line(text, "encoder.layer.4.output.dense")[2]) < 4


def test_a_failure_and_what_is_not_a_number_are_told() -> None:
    bound = Threshold(metric="cosine_mean", at_least=0.999)
    report = sample.replaced(
        sample.full(),
        "cpu-int8",
        fidelity={"cosine_mean": math.nan},
        gate=Verdict(judged=((bound, math.nan),)),
        sensitivity=(NodeCost(node="a", cost=math.nan), NodeCost(node="b", cost=-1.0)),
    )
    text = drawn(report)
    assert "FAILED cpu-int8 does not keep 1 of 1 thresholds" in text
    assert "not a number  NOT KEPT" in text
    assert line(text, "b ") == ["b", "-1.000000"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_hostile_text_stays_text(encoding: str) -> None:
    text = drawn(sample.with_text(HOSTILE), width=1000, encoding=encoding)
    assert ESCAPE not in text
    assert all(char.isprintable() or char == "\n" for char in text)
    assert text.count(SHOWN) >= 35


def test_without_utf8_bars_are_ascii() -> None:
    assert "#" * 14 + " kept" in drawn(sample.full(), encoding="ascii")


def test_what_is_missing_is_said_in_sentences() -> None:
    text = drawn(sample.bare())
    for sentence in ("No speed of a variant was recorded.", "no fidelity of a variant is known", "The machine is not"):
        assert sentence in text
    assert "no speed of a variant is known" in drawn(replace(sample.full(), timings=None))
    unseen = drawn(sample.replaced(sample.full(), "cpu-int8", loaded={}))
    assert line(unseen, "Gelu") == ["Gelu", "6", "–"]


def test_a_long_worst_text_is_cut() -> None:
    worst = (replace(sample.int8_evidence().worst[0], text="x" * 5000),)
    text = drawn(sample.replaced(sample.full(), "cpu-int8", worst=worst), width=400)
    assert "x" * 200 + "…" in text
    assert "x" * 201 not in text


def test_the_verb_draws_a_bundle(bundle: Path) -> None:
    done = RUNNER.invoke(app, ["report", str(bundle)])
    assert (done.exit_code, done.stderr) == (0, ""), done.exception
    assert "tiny 1.0.0 (embedding)" in done.stdout
    assert "x86-64, AVX-512 VNNI" in done.stdout
    assert ESCAPE not in done.stdout


def test_the_verb_in_a_pipe_of_another_encoding(bundle: Path) -> None:
    done = edgeonnx("report", str(bundle), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1.00\\xd7" in done.stdout


def test_json_is_one_document_with_the_evidence(bundle: Path) -> None:
    done = RUNNER.invoke(app, ["report", "--json", str(bundle)])
    assert (done.exit_code, done.stderr) == (0, "")
    data = json.loads(done.stdout)
    assert (data["name"], data["task"]) == ("tiny", "embedding")
    assert data["timings"] == sample.timings().to_dict()


def test_a_page_is_written_and_replaced_only_by_force(bundle: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = RUNNER.invoke(app, ["report", str(bundle), "--html", str(page)])
    assert (done.exit_code, done.stdout) == (0, f"page  {page}\n")
    data = page.read_bytes()
    assert data.startswith(b"<!DOCTYPE html>")
    page.write_bytes(b"mine")
    done = RUNNER.invoke(app, ["report", str(bundle), "--html", str(page)])
    assert done.exit_code == 2
    assert "exists already" in done.stderr
    assert page.read_bytes() == b"mine"
    assert RUNNER.invoke(app, ["report", str(bundle), "--html", str(page), "--force"]).exit_code == 0
    assert page.read_bytes() == data
    assert sorted(item.name for item in tmp_path.iterdir()) == ["page.html", bundle.name]


@pytest.mark.parametrize(("damage", "code"), [("folder", 5), ("timings", 5), ("evidence", 5)])
def test_errors_have_their_code_and_write_no_page(bundle: Path, tmp_path: Path, damage: str, code: int) -> None:
    if damage == "folder":
        bundle = tmp_path / "none"
    else:
        (bundle / f"{damage}.json").write_text("{}")
    done = RUNNER.invoke(app, ["report", str(bundle), "--html", str(tmp_path / "page.html")])
    assert done.exit_code == code, (done.stdout, done.exception)
    assert done.stderr.startswith("error: ")
    assert not (tmp_path / "page.html").exists()


def test_a_decoder_is_drawn_in_tokens_and_positions() -> None:
    text = drawn(sample.decoder(), width=100)
    assert "tokens/s" in text
    assert "texts/s" not in text
    assert "prompt ms" in text
    assert "windows of text, computed by" in text
    assert "template of the model" in text
    assert '" Oslo"' in text
    assert "worst positions" in text
