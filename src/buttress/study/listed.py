"""A table whose rows are no runs: a list that an analysis of the whole study left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buttress.errors import CorruptFile
from buttress.files import read_json
from buttress.study.measure import Missing, inside, number_in
from buttress.study.spec import Column, Listed, Scaled
from buttress.study.table import Measured, Row, Table


def listed_table(listed: Listed, scaled: Scaled, folder: Path) -> Table:
    """One row for each item of the list; a column of another analysis has one value for all."""
    try:
        items = inside(_result(folder, listed.analysis), listed.of)
    except Missing:
        return Table(listed.rows, (), {}, tuple(scaled.columns))
    rows: dict[Row, Mapping[str, Any]] = {
        tuple(str(item[name]) for name in listed.rows): item for item in items
    }
    found: dict[tuple[Row, str], Measured] = {}
    missing: dict[tuple[Row, str], str] = {}
    for name, column in scaled.columns.items():
        for row, item in rows.items():
            try:
                value = _value(column, item, listed, folder)
                found[row, name] = Measured((0,), figures=(value,))
            except Missing as reason:
                missing[row, name] = str(reason)
    nothing: tuple[Mapping[str, str | float], ...] = tuple({} for _ in rows)
    return Table(listed.rows, tuple(rows), found, tuple(scaled.columns), nothing, missing)


def _value(column: Column, item: Mapping[str, Any], listed: Listed, folder: Path) -> float:
    if column.analysis in ("", listed.analysis):
        return number_in(item, column.of)
    return number_in(_result(folder, column.analysis), column.of)


def _result(folder: Path, analysis: str) -> Any:
    try:
        content = read_json(folder / f"{analysis}.json")
    except (FileNotFoundError, CorruptFile):
        raise Missing("not computed yet") from None
    if reason := content.get("does_not_apply"):
        raise Missing(f"{analysis} does not apply: {reason}")
    return content["result"]
