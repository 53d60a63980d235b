"""The published numbers beside a study: CSV files with percentages."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from buttress.errors import UserError
from buttress.study.spec import Column, Published
from buttress.study.table import Row, View

PERCENT = 0.01


def read_published(published: Published, place: Path | None = None) -> list[dict[str, str]]:
    """The lines of a published table: a shipped file, or one beside the user's study file."""
    beside = None if place is None else place.parent / published.file
    shipped = Path(str(resources.files("buttress.study") / "tables" / published.file))
    path = beside if beside is not None and beside.is_file() else shipped
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    except (OSError, csv.Error, UnicodeDecodeError):
        raise UserError(f"the published table {published.file} cannot be read") from None
    wanted = published.only.items()
    return [line for line in lines if all(line.get(k) == v for k, v in wanted)]


def published_view(
    published: Published,
    lines: Sequence[Mapping[str, str]],
    axes: Sequence[str],
    rows: Mapping[Row, Mapping[str, str | float]],
    columns: Mapping[str, Column],
) -> View:
    """The published table in the form of ours: our rows and columns, nan where it has none."""
    by_row: dict[Row, Mapping[str, str]] = {}
    known = set(axes).union(*rows.values())
    for key in published.rows:
        if key not in known:
            raise UserError(f"the published table names {key!r}, no axis or attribute of the rows")
    for line in lines:
        for row, attributes in rows.items():
            about = {**dict(zip(axes, row, strict=True)), **attributes}
            if all(_same(line.get(c), about.get(key)) for key, c in published.rows.items()):
                by_row.setdefault(row, line)
    names = {name: published.columns.get(name, name) for name in columns}
    values = {
        name: np.array([_number(by_row.get(row, {}), names[name], column) for row in rows])
        for name, column in columns.items()
    }
    return View(tuple(axes), tuple(rows), values, tuple(rows.values()))


def _same(text: str | None, label: str | float | None) -> bool:
    """The same text, or the same number however it is written."""
    if isinstance(label, float) and text:
        return text == f"{label:g}"
    return text == label


def _number(line: Mapping[str, str], name: str, column: Column) -> float:
    text = (line.get(name) or "").strip()
    try:
        value = float(text)
    except ValueError:
        return float("nan")
    return value * PERCENT if column.unit == "percent" else value
