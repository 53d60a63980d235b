"""A table whose rows are no runs: lists that analyses of the whole study left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from buttress.errors import CorruptFile
from buttress.files import read_json
from buttress.study.measure import Missing, inside, number_in
from buttress.study.spec import Column, Listed, Scaled
from buttress.study.table import NONE, Measured, Row, Table


def listed_table(scaled: Scaled, folder: Path) -> Table:
    """One row for each item of the lists; a column of another analysis has one value for all."""
    axes = tuple(dict.fromkeys(name for listed in scaled.listed for name in listed.rows))
    items = {
        tuple(str(item.get(axis, NONE)) for axis in axes): (item, listed)
        for listed in scaled.listed
        for item in _items(listed, folder)
    }
    found: dict[tuple[Row, str], Measured] = {}
    missing: dict[tuple[Row, str], str] = {}
    for name, column in scaled.columns.items():
        for row, (item, listed) in items.items():
            try:
                value = _value(column, item, listed, scaled, folder)
                found[row, name] = Measured((0,), figures=(value,))
            except Missing as reason:
                missing[row, name] = str(reason)
    nothing: tuple[Mapping[str, str | float], ...] = tuple({} for _ in items)
    return Table(axes, tuple(items), found, tuple(scaled.columns), nothing, missing)


def _items(listed: Listed, folder: Path) -> Sequence[Mapping[str, Any]]:
    try:
        found: Sequence[Mapping[str, Any]] = inside(_result(folder, listed.analysis), listed.of)
    except Missing:
        return ()
    return found


def _value(
    column: Column, item: Mapping[str, Any], listed: Listed, scaled: Scaled, folder: Path
) -> float:
    if column.analysis in ("", listed.analysis):
        return number_in(item, column.of)
    if column.analysis in [other.analysis for other in scaled.listed]:
        raise Missing(f"it has no {column.of}: that is of other rows")
    return number_in(_result(folder, column.analysis), column.of)


def _result(folder: Path, analysis: str) -> Any:
    try:
        content = read_json(folder / f"{analysis}.json")
    except (FileNotFoundError, CorruptFile):
        raise Missing("not computed yet") from None
    if reason := content.get("does_not_apply"):
        raise Missing(f"{analysis} does not apply: {reason}")
    return content["result"]
