from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from buttress.report.charts import (
    BarItem,
    ChartFrame,
    LineSeries,
    ScatterPoint,
    draw_bars,
    draw_histogram,
    draw_lines,
    draw_scatter,
)
from buttress.report.formatting import (
    explain_threat,
    format_duration,
    format_percent,
    format_percent_pair,
    format_threat,
)
from buttress.report.svg import LinearScale, round_ticks


def attributes(svg: str, css: str) -> list[dict[str, str]]:
    """The attributes of all elements of a class."""
    root = ElementTree.fromstring(svg)
    return [e.attrib for e in root.iter() if e.attrib.get("class", "").split(" ")[0] == css]


def test_whiskers_stand_at_the_interval() -> None:
    svg = draw_bars(
        [BarItem("vit", 0.6, low=0.5, high=0.75)], "Worst case", width=340, name_width=118
    )

    (whisker,), (bar,) = attributes(svg, "whisker"), attributes(svg, "bar")

    start, end = 126.0, 296.0  # where the axis says 0% and 100%
    assert float(whisker["x1"]) == pytest.approx(start + 0.5 * (end - start), abs=0.01)
    assert float(whisker["x2"]) == pytest.approx(start + 0.75 * (end - start), abs=0.01)
    assert float(bar["x"]) == start
    assert float(bar["width"]) == pytest.approx(0.6 * (end - start), abs=0.01)
    grid = sorted({float(g["x1"]) for g in attributes(svg, "grid")})
    assert grid == [start, (start + end) / 2, end]


def test_missing_bar_says_so_and_draws_nothing() -> None:
    svg = draw_bars([BarItem("vit", None)], "Worst case")

    assert attributes(svg, "bar") == []
    assert "vit missing" in svg


def test_every_chart_is_described_and_well_formed() -> None:
    series = [
        LineSeries("<a>", [0, 1], [0.9, float("nan")], [0.8, 0.1], [1.0, 0.3], is_dashed=True)
    ]
    charts = [
        draw_bars([BarItem('"<b>"', 0.5, low=0.4, high=0.6, tick_value=0.9)], "Bars & more"),
        draw_lines(series, ChartFrame("eps", "accuracy"), "Lines"),
        draw_lines([], ChartFrame("epoch", "loss", is_percent=False), "Nothing"),
        draw_scatter(
            [ScatterPoint("<c>", 0.3, 0.5, 0.4, 0.6)], ChartFrame("sparsity", "worst"), "Scatter"
        ),
        draw_histogram(
            [-1, 0, 1], {"all": [0, 1], "<d>": [1000, 0]}, ChartFrame("weight", "count", False)
        ),
    ]

    for svg in charts:
        root = ElementTree.fromstring(svg)
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]
        assert "nan" not in re.sub(r"<title>.*?</title>", "", svg)


def test_line_points_lie_on_the_scale() -> None:
    frame = ChartFrame("eps", "accuracy", width=480, height=300)

    svg = draw_lines([LineSeries("vit", [0, 0.1], [1.0, 0.25])], frame, "Lines")

    first, last = attributes(svg, "dot")
    assert (float(first["cx"]), float(first["cy"])) == (46, 12)
    assert (float(last["cx"]), float(last["cy"])) == (466, 260 - 0.25 * 248)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0, 7, [0, 2, 4, 6]), (3, 3, [3])],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert round_ticks(low, high) == pytest.approx(expected)


def test_scale_of_one_value_stays_inside() -> None:
    assert LinearScale(2, 2, 0, 100)(2) == 50


def test_percent_never_rounds_to_all_or_nothing() -> None:
    assert [format_percent(v) for v in (0, 0.003, 0.614, 0.998, 1)] == [
        "0%",
        "0.3%",
        "61%",
        "99.8%",
        "100%",
    ]
    assert format_percent_pair(0.614, 0.611) == ("61.4%", "61.1%")


def test_threats_in_words() -> None:
    assert format_threat("Linf:8/255") == "L∞ 8/255"
    assert format_threat("Linf:25.5/255") == "L∞ 0.1"
    assert "(8/255)" in explain_threat("Linf:8/255")
    assert "L2 norm" in explain_threat("L2:0.5")
    assert "L1 norm of at most 12" in explain_threat("L1:12")
    assert explain_threat("nonsense") == "nonsense"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.42, "0.4 s"), (12.4, "12 s"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (97200, "1 d 3 h")],
)
def test_durations(seconds: float, expected: str) -> None:
    assert format_duration(seconds) == expected
