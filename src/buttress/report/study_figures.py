"""Figures of a study's page that are drawn from its table: curves, scatter plots and profiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from buttress.report.charts import (
    NUM_COLORS,
    ChartFrame,
    LineSeries,
    ScatterPoint,
    draw_lines,
    draw_overlaid_bars,
    draw_scatter,
)
from buttress.report.figures import LegendEntry, ReportFigure
from buttress.results.study_result import StudyFigure, StudyResult, StudyTableRow


def table_figures(answer: StudyResult) -> list[ReportFigure]:
    """The figures that a study declares over its table; those without a value are left out."""
    draw = {"lines": draw_curves, "scatter": draw_points, "profile": draw_profile}
    figures = [draw[f.kind](f, answer) for f in answer.figures if f.kind in draw]
    return [figure for figure in figures if figure is not None]


@dataclass(frozen=True)
class FigureRow:
    """A row of the table with its place in a figure."""

    name: str
    series: str
    x: float
    row: StudyTableRow


def figure_rows(figure: StudyFigure, answer: StudyResult) -> list[FigureRow]:
    """The rows that a figure draws, with their x value and series."""
    rows = []
    for row in answer.rows:
        properties = {**dict(zip(answer.axes, row.labels, strict=False)), **row.attributes}
        if not matches(properties, figure.where):
            continue
        x = column_value(row, figure.x)
        if x is None:
            x = to_number(properties.get(figure.x))
        series = f"{title_of(figure.group)} {properties.get(figure.group, '')}".strip()
        rows.append(FigureRow(" / ".join(row.labels), series if figure.group else "", x, row))
    return rows


def matches(properties: Mapping[str, object], where: Mapping[str, Sequence[str]]) -> bool:
    return all(str(properties.get(key)) in map(str, labels) for key, labels in where.items())


def column_value(row: StudyTableRow, column: str) -> float | None:
    value = row.values.get(column)
    return None if value is None or value.value is None else float(value.value)


def to_number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def title_of(name: str) -> str:
    return name.replace("_", " ")


def draw_curves(figure: StudyFigure, answer: StudyResult) -> ReportFigure | None:
    """One curve per column and value of ``group``; rows with the same x are averaged."""
    rows = [r for r in figure_rows(figure, answer) if math.isfinite(r.x)]
    series: list[LineSeries] = []
    for column in figure.columns:
        for group in dict.fromkeys(r.series for r in rows):
            members = [r for r in rows if r.series == group]
            if curve := column_curve(members, column):
                parts = [answer.column_title(column) if len(figure.columns) > 1 else "", group]
                name = ", ".join(p for p in parts if p) or answer.column_title(column)
                series.append(LineSeries(name, *curve, len(series) % NUM_COLORS))
    if not series:
        return None
    series, ticks = place_evenly(series)
    frame = replace(chart_frame(figure, answer), x_ticks=ticks)
    legend = tuple(LegendEntry(s.name, i % NUM_COLORS) for i, s in enumerate(series))
    ends = "; ".join(f"{s.name}: {s.y[0]:.3g} to {s.y[-1]:.3g}" for s in series)
    svg = draw_lines(series, frame, f"{figure.title}. {ends}")
    return ReportFigure(figure.title, svg, axis_caption(figure, answer), legend)


def place_evenly(series: Sequence[LineSeries]) -> tuple[list[LineSeries], dict[float, str]]:
    """Series with their x values at equal distances, and the values to write there."""
    values = sorted({x for s in series for x in s.x})
    place = {value: float(index) for index, value in enumerate(values)}
    shifted_series = [replace(s, x=[place[x] for x in s.x]) for s in series]
    return shifted_series, {place[value]: f"{value:g}" for value in values}


def column_curve(
    rows: Sequence[FigureRow], column: str
) -> tuple[list[float], list[float], list[float], list[float]] | None:
    """x, mean, and the interval where every x has one row with an interval."""
    values: dict[float, list[StudyTableRow]] = {}
    for r in rows:
        if column_value(r.row, column) is not None:
            values.setdefault(r.x, []).append(r.row)
    if not values:
        return None
    xs = sorted(values)
    means = [
        sum(column_value(row, column) or 0.0 for row in values[x]) / len(values[x]) for x in xs
    ]
    cells = [values[x][0].values[column] for x in xs if len(values[x]) == 1]
    low = [c.low for c in cells if c.low is not None]
    high = [c.high for c in cells if c.high is not None]
    has_band = len(low) == len(high) == len(xs)
    return xs, means, low if has_band else [], high if has_band else []


def draw_points(figure: StudyFigure, answer: StudyResult) -> ReportFigure | None:
    """One point per row; the color is the value of ``group``."""
    column = figure.columns[0]
    rows = [
        r
        for r in figure_rows(figure, answer)
        if math.isfinite(r.x) and column_value(r.row, column) is not None
    ]
    if not rows:
        return None
    colors = {name: i % NUM_COLORS for i, name in enumerate(dict.fromkeys(r.series for r in rows))}
    points = [scatter_point(r, column, colors[r.series]) for r in rows]
    legend = tuple(LegendEntry(name, color) for name, color in colors.items() if name)
    svg = draw_scatter(points, chart_frame(figure, answer), f"{figure.title}: {len(rows)} models")
    return ReportFigure(figure.title, svg, axis_caption(figure, answer), legend)


def scatter_point(r: FigureRow, column: str, color: int) -> ScatterPoint:
    cell = r.row.values[column]
    value = column_value(r.row, column) or 0.0
    low = value if cell.low is None else cell.low
    high = value if cell.high is None else cell.high
    return ScatterPoint(r.name, r.x, value, low, high, color, cell.is_untrustworthy)


def draw_profile(figure: StudyFigure, answer: StudyResult) -> ReportFigure | None:
    """Overlaid bars: a place per column, a color per row."""
    series = {}
    for r in figure_rows(figure, answer)[:NUM_COLORS]:
        values = [column_value(r.row, column) for column in figure.columns]
        if any(value is not None for value in values):
            series[r.name] = values
    if not series:
        return None
    names = [answer.column_title(column) for column in figure.columns]
    svg = draw_overlaid_bars(names, series, chart_frame(figure, answer), figure.title)
    legend = tuple(LegendEntry(name, index) for index, name in enumerate(series))
    return ReportFigure(figure.title, svg, axis_caption(figure, answer), legend)


def chart_frame(figure: StudyFigure, answer: StudyResult) -> ChartFrame:
    x_unit = answer.units.get(figure.x, "number")
    is_percent = all(answer.units.get(c, "percent") == "percent" for c in figure.columns)
    return ChartFrame(
        x_label=answer.column_title(figure.x) if figure.x in answer.columns else title_of(figure.x),
        y_label=answer.column_title(figure.columns[0]),
        is_percent=is_percent,
        is_x_percent=x_unit == "percent",
    )


def axis_caption(figure: StudyFigure, answer: StudyResult) -> str:
    """What is drawn upwards; the x axis has its name in the drawing."""
    if len(figure.columns) > 1 and figure.kind != "scatter":
        return figure.caption
    title = answer.column_title(figure.columns[0])
    unit = ", %" if answer.units.get(figure.columns[0], "percent") == "percent" else ""
    return f"{title}{unit}{'; ' + figure.caption if figure.caption else ''}"
