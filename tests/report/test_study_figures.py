"""Figures of a study's page that are drawn from its table."""

from __future__ import annotations

import pytest

from buttress.report.study_figures import table_figures
from buttress.results.study_result import StudyFigure, StudyResult, StudyTableRow, TableValue


def make_result(*figures: StudyFigure) -> StudyResult:
    rows = [
        StudyTableRow(
            labels=(strength, data),
            attributes={"size": size},
            values={
                "clean": TableValue(value=value, low=value - 0.1, high=value + 0.1),
                "block_1": TableValue(value=10 * value),
                "block_2": TableValue(value=5 * value),
            },
        )
        for strength, data, size, value in [
            ("0", "a", 1.0, 0.8), ("1e-5", "a", 2.0, 0.6), ("1e-3", "a", 3.0, 0.2),
            ("0", "b", 1.0, 0.4),
        ]
    ]  # fmt: skip
    return StudyResult(
        study="s", scale="mini", title="t", question="q", source="", axes=("strength", "data"),
        columns=("clean", "block_1", "block_2"), column_titles={"clean": "Clean accuracy"},
        units={"clean": "percent", "block_1": "number", "block_2": "number"},
        rows=tuple(rows), claims=(), rank_agreement=(), figures=figures, total_runs=4,
        finished_runs=4,
    )  # fmt: skip


def test_curves_are_evenly_spaced_and_grouped() -> None:
    figure = StudyFigure(kind="lines", title="T", x="strength", columns=("clean",), group="data")
    (drawn,) = table_figures(make_result(figure))
    assert [entry.name for entry in drawn.legend] == ["data a", "data b"]
    for text in ("0", "1e-05", "0.001"):
        assert f">{text}</text>" in drawn.svg
    assert "data a: 0.8 to 0.2" in drawn.svg


def test_rows_that_share_x_are_averaged() -> None:
    figure = StudyFigure(kind="lines", title="T", x="strength", columns=("clean",))
    (drawn,) = table_figures(make_result(figure))
    assert "0.6 to 0.2" in drawn.svg  # (0.8 + 0.4) / 2 at strength 0
    assert "band" not in drawn.svg  # no interval where rows are averaged


@pytest.mark.parametrize(("where", "dots"), [({}, 4), ({"data": ("a",)}, 3)])
def test_points_of_a_scatter_are_the_selected_rows(
    where: dict[str, tuple[str, ...]], dots: int
) -> None:
    figure = StudyFigure(kind="scatter", title="T", x="size", columns=("clean",), where=where)
    (drawn,) = table_figures(make_result(figure))
    assert drawn.svg.count("<circle") == dots


def test_a_profile_has_a_bar_for_each_column_and_row() -> None:
    columns = ("block_1", "block_2")
    figure = StudyFigure(kind="profile", title="T", columns=columns, where={"data": ("a",)})
    (drawn,) = table_figures(make_result(figure))
    assert drawn.svg.count("<rect") == 6
    assert [entry.name for entry in drawn.legend] == ["0 / a", "1e-5 / a", "1e-3 / a"]


def test_a_figure_without_values_is_left_out() -> None:
    figure = StudyFigure(kind="scatter", title="T", x="nothing", columns=("clean",))
    assert table_figures(make_result(figure)) == []
