"""Plots: round ticks inside their axis, marks where the figures say, labels that do not cover each other."""

from __future__ import annotations

import math
import random
import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest

from edgeonnx.report.figures import Point
from edgeonnx.report.plot import CHARACTER, FONT, Axis, Bar, Box, bars, place_label, scatter, tick_texts, ticks

HOSTILE = "<script>&\"'\x1b[31m\u202e"


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0, 10, 5, (0, 2, 4, 6, 8, 10)),
        (0, 400, 7, (0, 50, 100, 150, 200, 250, 300, 350, 400)),
        (0.9961, 1.0004, 5, (0.997, 0.998, 0.999, 1.0)),
        (0, 0.00132, 4, (0, 0.0005, 0.001)),
        (-1, 1, 4, (-1, -0.5, 0, 0.5, 1)),
        (3, 3, 5, (3,)),
        (0, 1, 1, (0, 1)),
        (1e9, 3e9, 2, (1e9, 2e9, 3e9)),
    ],
)
def test_ticks_are_round(low: float, high: float, count: int, expected: tuple[float, ...]) -> None:
    assert ticks(low, high, count) == expected


def test_ticks_of_any_axis_are_round_inside_and_about_as_many_as_asked() -> None:
    rng = random.Random(20250607)
    for _ in range(2000):
        low = rng.uniform(-1, 1) * 10 ** rng.randint(-6, 2)
        high = low + rng.uniform(0.01, 1) * 10 ** rng.randint(-4, 6)
        count = rng.randint(4, 10)
        found = ticks(low, high, count)
        step = min((b - a for a, b in pairwise(found)), default=1.0)
        assert max(2, count / 2.5) <= len(found) <= 2 * count + 1, (low, high, count, found)
        assert all(low - 1e-6 * step <= value <= high + 1e-6 * step for value in found)
        digits = f"{step:.3e}".split("e")[0].rstrip("0").rstrip(".")
        assert len(found) < 2 or digits in ("1", "2", "5"), (low, high, count, found)


def test_no_tick_is_a_negative_zero() -> None:
    assert [str(value) for value in ticks(-0.4, 0.4, 4)] == ["-0.4", "-0.2", "0.0", "0.2", "0.4"]


@pytest.mark.parametrize(("low", "high"), [(1, 0), (math.nan, 1), (0, math.inf)])
def test_an_axis_without_bounds_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="no axis"):
        ticks(low, high, 5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.0, 0.5, 1.0), ("0.0", "0.5", "1.0")),
        ((0.997, 0.998), ("0.997", "0.998")),
        ((0.0, 2000.0), ("0", "2,000")),
        ((0.0, 5e-7), ("0.0000000", "0.0000005")),
        ((3.25,), ("3.25",)),
        ((), ()),
    ],
)
def test_numbers_of_an_axis_have_the_decimals_that_they_need(values: tuple[float, ...], expected: object) -> None:
    assert tick_texts(values) == expected


def test_an_axis_goes_from_its_start_to_its_end() -> None:
    axis = Axis(low=10, high=20, start=100, end=0)
    assert (axis.at(10), axis.at(20), axis.at(15)) == (100, 0, 50)


POINTS = (
    Point(name="fast", x=400.0, y=0.99, kind="failed", front=True),
    Point(name="between", x=200.0, y=0.995, kind="passed", front=True),
    Point(name="slow", x=100.0, y=1.0, kind="variant", front=True),
    Point(name="beaten", x=100.0, y=0.992, kind="variant"),
)


def draw(points: tuple[Point, ...]) -> ElementTree.Element:
    return ElementTree.fromstring(
        scatter(points, title="the title", description="told", x_label="texts per second", y_label="cosine mean")
    )


def test_a_scatter_plot_has_each_mark_where_its_figures_say() -> None:
    svg = draw(POINTS)
    circles = {item.find("title").text.split(":")[0]: item for item in svg.iter("circle")}
    assert {name: item.get("class") for name, item in circles.items()} == {
        "between": "passed",
        "slow": "variant",
        "beaten": "variant",
    }
    places = {name: (float(item.get("cx")), float(item.get("cy"))) for name, item in circles.items()}
    assert places["slow"][0] == places["beaten"][0] < places["between"][0]
    assert places["slow"][1] < places["between"][1] < places["beaten"][1]
    ticked = {item.text: float(item.get("x")) for item in svg.iter("text") if item.get("class") == "middle"}
    assert places["slow"][0] == pytest.approx(ticked["100"], abs=0.11)
    assert places["between"][0] == pytest.approx(ticked["200"], abs=0.11)
    assert len([item for item in svg.iter("path") if item.get("class") == "failed"]) == 1


def test_the_front_is_one_line_through_its_points_only() -> None:
    (line,) = draw(POINTS).iter("polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    assert len(places) == 3
    assert places == sorted(places)
    assert not list(draw(POINTS[3:]).iter("polyline"))


def test_a_plot_of_nothing_is_nothing_and_of_one_point_is_drawn() -> None:
    assert scatter((), title="t", description="d", x_label="x", y_label="y") == ""
    assert bars((), title="t", description="d") == ""
    for x, y in ((0.0, 0.0), (0.0, 1.0), (5.0, -2.0)):
        assert list(draw((Point(name="p", x=x, y=y, kind="variant", front=True),)).iter("circle"))


def test_plots_escape_their_texts() -> None:
    hostile = (Point(name=HOSTILE, x=1.0, y=1.0, kind="variant"),)
    texts = (
        scatter(hostile, title=HOSTILE, description=HOSTILE, x_label=HOSTILE, y_label=HOSTILE),
        bars((Bar(name=HOSTILE, value=1.0, text=HOSTILE, marked=True),), title=HOSTILE, description=HOSTILE, mark="k"),
    )
    for text in texts:
        assert "<script" not in text
        assert text.isprintable()
        found = [item.text for item in ElementTree.fromstring(text).iter() if item.text]
        assert sum("<script>&\"'\\x1b[31m\\u202e" in item for item in found) >= 5


def labels(svg: ElementTree.Element) -> list[Box]:
    """The boxes of the names beside the marks: texts without a class, or the strong ones."""
    found = [item for item in svg.iter("text") if item.get("class") in (None, "strong") and item.get("x")]
    return [
        Box(
            left=float(item.get("x")),
            top=float(item.get("y")) - FONT + 1.5,
            right=float(item.get("x")) + len(item.text) * CHARACTER,
            bottom=float(item.get("y")) + 2,
        )
        for item in found
    ]


def test_labels_of_a_crowd_do_not_cover_each_other_and_variants_keep_theirs() -> None:
    rng = random.Random(7)
    crowd = tuple(
        Point(name=f"candidate {i}", x=rng.gauss(300, 8), y=rng.gauss(0.999, 1e-4), kind="passed") for i in range(40)
    )
    svg = draw((*crowd, Point(name="cpu-int8", x=300.0, y=0.999, kind="variant", front=True)))
    boxes = labels(svg)
    assert 5 < len(boxes) < 41
    assert not [pair for pair in combinations(boxes, 2) if pair[0].meets(pair[1])]
    assert "cpu-int8" in [item.text for item in svg.iter("text") if item.get("class") == "strong"]


def test_a_label_moves_out_of_the_way_or_is_left_out() -> None:
    frame = Box(left=0, top=0, right=300, bottom=100)
    free = place_label(100, 50, 60, frame, [])
    assert free is not None
    assert free.left > 100
    other = place_label(100, 50, 60, frame, [free])
    assert other is not None
    assert not other.meets(free)
    at_edge = place_label(290, 50, 60, frame, [])
    assert at_edge is not None
    assert at_edge.right < 290
    assert place_label(100, 50, 60, frame, [frame]) is None
    assert place_label(100, 50, 400, frame, []) is None


def test_bars_are_as_long_as_their_values() -> None:
    items = (
        Bar(name="a", value=4.0, text="4"),
        Bar(name="b", value=1.0, text="1", marked=True),
        Bar(name="c", value=-1.0, text="-1"),
        Bar(name="d", value=math.nan, text="not a number"),
    )
    svg = ElementTree.fromstring(bars(items, title="t", description="d", mark="kept"))
    widths = [float(item.get("width")) for item in svg.iter("rect")]
    assert widths[0] == pytest.approx(4 * widths[1], rel=0.01)
    assert widths[2:] == [1.0, 1.0]
    assert [item.get("class") for item in svg.iter("rect")] == ["bar", "bar marked", "bar", "bar"]
    assert "1 kept" in [item.text for item in svg.iter("text")]


def test_a_long_name_loses_its_middle_and_keeps_its_ends() -> None:
    name = "encoder." + "x" * 80 + ".attention.self.query+key+value"
    svg = ElementTree.fromstring(bars((Bar(name=name, value=1.0, text="1"),), title="t", description="d"))
    (shown,) = [item.text for item in svg.iter("text") if item.get("class") == "end code"]
    assert re.fullmatch(r"encoder\.x+….*query\+key\+value", shown)
    assert next(svg.iter("g")).find("title").text == f"{name}: 1"


def test_all_of_a_bar_stays_on_the_picture() -> None:
    items = tuple(Bar(name="n" * length, value=1.0, text="0.001234", marked=True) for length in (1, 46, 90))
    svg = ElementTree.fromstring(bars(items, title="t", description="d", mark="kept"))
    for item in svg.iter("rect"):
        assert float(item.get("x")) + float(item.get("width")) + len("0.001234 kept") * CHARACTER < 760
