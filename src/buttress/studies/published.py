"""Tables by others: the published one of a study, and those of other authors."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import product
from pathlib import Path

import numpy as np

from buttress.errors import UserError
from buttress.studies.grid import merge_settings
from buttress.studies.nares import read_nares
from buttress.studies.spec import (
    ColumnSpec,
    OtherTable,
    PublishedTable,
    ScaledStudy,
    StudySpec,
)
from buttress.studies.table import REDRAWS, RowLabels, ValueTable

PERCENT = 0.01
TableRows = Mapping[RowLabels, Mapping[str, str | float]]  # labels -> attributes


def read_csv_rows(table: PublishedTable | OtherTable) -> list[dict[str, str]]:
    """Read the rows of a table: a bundled CSV file, or that of an absolute path."""
    path = Path(str(resources.files("buttress.studies") / "tables" / table.file))
    if path.suffix == ".jsonl":
        csv_rows = read_nares(path)
    else:
        try:
            with path.open(encoding="utf-8", newline="") as file:
                csv_rows = list(csv.DictReader(file))
        except (OSError, csv.Error, UnicodeDecodeError):
            raise UserError(
                f"cannot read the published table {table.file}; put it beside the study file"
            ) from None
    filters = table.filter.items()
    return [line for line in csv_rows if all(line.get(key) in values for key, values in filters)]


def with_table_files(study: StudySpec, files: Mapping[str, Path]) -> StudySpec:
    """The study with files of the user for tables by other authors."""
    tables = dict(study.other_tables)
    for name, path in files.items():
        if name not in tables:
            known = ", ".join(tables) or "none"
            raise UserError(f"study {study.name} has no table {name!r}; its tables are: {known}")
        tables[name] = tables[name].model_copy(update={"file": str(path.expanduser().resolve())})
    return study.model_copy(update={"other_tables": tables})


def published_values(
    published: PublishedTable,
    csv_rows: Sequence[Mapping[str, str]],
    axes: Sequence[str],
    rows: TableRows,
    columns: Mapping[str, ColumnSpec],
) -> ValueTable:
    """The published values of these rows and columns; nan if missing."""
    by_row: dict[RowLabels, Mapping[str, str]] = {}
    row_keys = set(axes).union(*rows.values())
    for key in published.rows:
        if key not in row_keys:
            raise UserError(
                f"published.rows: {key!r} is neither an axis nor an attribute of the rows"
            )
    for line in csv_rows:
        for row, attributes in rows.items():
            about = {**dict(zip(axes, row, strict=True)), **attributes}
            if all(
                _matches_label(line.get(c), about.get(key)) for key, c in published.rows.items()
            ):
                by_row.setdefault(row, line)
    names = {name: published.columns.get(name, name) for name in columns}
    units = {name: column.unit for name, column in columns.items()}
    values = {
        name: np.array([_number(by_row.get(row, {}), names[name], units[name]) for row in rows])
        for name in columns
    }
    return ValueTable(tuple(axes), tuple(rows), values, tuple(rows.values()), dict(units))


def full_published_values(
    published: PublishedTable, csv_rows: Sequence[Mapping[str, str]], paper: ScaledStudy
) -> ValueTable:
    """All of the published table, whatever rows are measured; ``paper`` is the largest scale."""
    column_axes = {axis for column in paper.columns.values() for axis in column.where}
    axes = [axis for axis in paper.axes if axis not in column_axes]
    rows = {
        row: merge_settings(dict(zip(axes, row, strict=True)), paper).attributes
        for row in product(*(paper.axes[axis] for axis in axes))
    }
    return published_values(published, csv_rows, axes, rows, paper.columns).measured_rows()


def other_values(
    table: OtherTable, csv_rows: Sequence[Mapping[str, str]], units: Mapping[str, str]
) -> ValueTable:
    """A table by other authors; all its columns are attributes of the rows too.

    Its redraws are its values again: only what a claim says of a sample of rows is uncertain.
    """
    rows = tuple(tuple(line[name] for name in table.rows) for line in csv_rows)
    attributes = tuple(
        {key: text for key, text in line.items() if key not in table.rows} for line in csv_rows
    )
    values = {
        name: np.array([_number(line, theirs, units.get(name, "percent")) for line in csv_rows])
        for name, theirs in table.columns.items()
    }
    redraws = {name: np.repeat(column[:, None], REDRAWS, axis=1) for name, column in values.items()}
    return ValueTable(table.rows, rows, values, attributes, units, redraws)


def _matches_label(text: str | None, label: str | float | None) -> bool:
    """Whether two labels are the same text or the same number."""
    if isinstance(label, float) and text:
        return text == f"{label:g}"
    return text == label


def _number(csv_row: Mapping[str, str], name: str, unit: str) -> float:
    try:
        value = float((csv_row.get(name) or "").strip())
    except ValueError:
        return float("nan")
    return value * PERCENT if unit == "percent" else value
