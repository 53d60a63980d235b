"""Build the table of a study from the records of its runs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from buttress.analysis.core import ANALYSES, is_group_analysis
from buttress.errors import ButtressError, CorruptFileError, UserError
from buttress.evaluation import Evaluation, load_evaluation
from buttress.results.core import read_record_json
from buttress.results.evaluation import with_diagnosis
from buttress.results.run import Run
from buttress.studies.grid import GridRun, merge_settings
from buttress.studies.spec import AnalysisRows, ColumnSpec, PublishedTable, ScaledStudy
from buttress.studies.table import NO_LABEL, MeasuredValue, RowLabels, StudyTable, ValueTable
from buttress.system.files import digest
from buttress.training.cost import run_model_cost

WORST_CASE, CORRUPTIONS = "worst_case", "corruptions"
NEEDS_FULL_SUITE = (WORST_CASE, CORRUPTIONS)  # columns that need a complete evaluation
RUN_METRICS = ("parameters_m", "gmacs", "train_seconds", "collapsed")


class MissingValue(Exception):
    """A value is missing; the text says why."""


@dataclass
class GridRunRecords:
    """The records of one run, cached."""

    grid_run: GridRun
    folder: Path
    state: str  # of the tasks of this study
    evaluations: dict[str, Evaluation] = field(default_factory=dict)  # read so far
    group_folder: Path = Path()  # the folder with analyses of all runs

    @property
    def run(self) -> Run:
        return Run(self.folder)

    def evaluation(self, suite: str, checkpoint: str) -> Evaluation:
        name = suite if checkpoint == "best" else f"{suite}-{checkpoint}"
        if name not in self.evaluations:
            evaluation = load_evaluation(self.run.suite_folder(name))
            self.evaluations[name] = with_diagnosis(evaluation, self.run.analysis_file("doctor"))
        return self.evaluations[name]

    def analysis(self, name: str) -> Mapping[str, Any]:
        """Result of an analysis; of a group analysis, the part on this run."""
        is_group = is_group_analysis(ANALYSES.entry(name))
        path = self.group_folder / f"{name}.json" if is_group else self.run.analysis_file(name)
        content = read_record_json(path)
        if reason := content.get("does_not_apply"):
            raise MissingValue(f"{name} does not apply: {reason}")
        result: Mapping[str, Any] = content["result"]
        if is_group and self.grid_run.key not in result.get("by_run", {}):
            raise MissingValue(f"{name} does not apply to this run")
        return result["by_run"][self.grid_run.key] if is_group else result


def measure_table(scaled: ScaledStudy, records: Sequence[GridRunRecords]) -> StudyTable:
    """Measure every column of every row; missing values have a reason."""
    column_axes = {axis for column in scaled.columns.values() for axis in column.where}
    axes = tuple(axis for axis in scaled.axes if axis not in column_axes)
    grouped = group_by_row(axes, records)
    rows: dict[RowLabels, Mapping[str, str | float]] = {
        row: merge_settings(dict(zip(axes, row, strict=True)), scaled).attributes for row in grouped
    }
    values: dict[tuple[RowLabels, str], MeasuredValue] = {}
    missing: dict[tuple[RowLabels, str], str] = {}
    for name, column in scaled.columns.items():
        for row in rows:
            try:
                values[row, name] = _measure(column, grouped[row], scaled)
            except MissingValue as reason:
                missing[row, name] = str(reason)
    return StudyTable(
        axes, tuple(rows), values, tuple(scaled.columns), tuple(rows.values()), missing
    )


def group_by_row(
    axes: Sequence[str], records: Sequence[GridRunRecords]
) -> dict[RowLabels, list[GridRunRecords]]:
    """The runs of each row, ordered by seed."""
    groups: dict[RowLabels, list[GridRunRecords]] = {}
    for source in records:
        groups.setdefault(tuple(source.grid_run.labels.get(a, "") for a in axes), []).append(source)
    return {row: sorted(runs, key=lambda s: s.grid_run.seed) for row, runs in groups.items()}


def runs_of_column(column: ColumnSpec, row_runs: Sequence[GridRunRecords]) -> list[GridRunRecords]:
    """The runs of a row that a column selects."""
    labels = column.where.items()
    return [s for s in row_runs if all(s.grid_run.labels.get(a) == v for a, v in labels)]


def _measure(
    column: ColumnSpec, of_row: Sequence[GridRunRecords], scaled: ScaledStudy
) -> MeasuredValue:
    runs = runs_of_column(column, of_row)
    if not runs:
        raise MissingValue("the grid contains no run for this cell")
    seeds = tuple(s.grid_run.seed for s in runs)
    if len(set(seeds)) < len(seeds):
        raise MissingValue("several runs match this cell; add labels to `where` of the column")
    try:
        if column.analysis or column.metric in RUN_METRICS:
            return MeasuredValue(seeds, values_per_seed=tuple(_run_metric(s, column) for s in runs))
        suite = column.suite or scaled.suites[0]
        scores = [_image_scores(s, suite, column) for s in runs]
    except FileNotFoundError:
        raise MissingValue(_missing_reason(runs)) from None
    except (ButtressError, KeyError, IndexError, TypeError) as error:
        raise MissingValue(_missing_reason(runs) or str(error)) from None
    ids = {image_set for _, image_set in scores}
    if len(ids) > 1:
        raise MissingValue("the seeds were evaluated on different images")
    return MeasuredValue(seeds, scores=tuple(s for s, _ in scores), image_set=ids.pop())


def _missing_reason(runs: Sequence[GridRunRecords]) -> str:
    states = {s.state for s in runs} - {"done"}
    texts = {"new": "not run yet", "started": "not finished", "failed": "the run failed"}
    return "; ".join(texts[state] for state in sorted(states)) or "not evaluated yet"


def _run_metric(records: GridRunRecords, column: ColumnSpec) -> float:
    if column.metric in ("parameters_m", "gmacs"):
        cost = run_model_cost(records.grid_run.spec)
        return cost.parameters / 1e6 if column.metric == "parameters_m" else cost.macs / 1e9
    if column.metric == "train_seconds":
        return float(records.run.summary["seconds"])
    if column.metric == "collapsed":
        events = records.run.summary["events"]
        return float(any(event.get("kind") in ("collapse", "rollback") for event in events))
    return number_in(records.analysis(column.analysis), column.metric)


def number_in(result: Any, path: str) -> float:
    """The number at ``components.attention_qkv.ratio``."""
    value = value_at_path(result, path)
    if not isinstance(value, (int, float)):
        raise MissingValue(f"the analysis result has no number at {path}")
    return float(value)


def value_at_path(result: Any, path: str) -> Any:
    """Look up a dotted path in the result of an analysis; lists are searched by value.

    ``places[0].l1_linf.result`` takes the first of a list.
    """
    for key in path.replace("[", ".[").split("."):
        if key.startswith("["):
            matches = result[int(key.strip("[]")) :][:1]
        elif isinstance(result, Mapping):
            matches = [result[key]] if key in result else []
        elif isinstance(result, Sequence) and not isinstance(result, str):
            matches = [item for item in result if key in map(str, item.values())]
        else:
            matches = []
        if not matches:
            raise MissingValue(f"the analysis result has no key {key}")
        result = matches[0]
    return result


def _image_scores(
    records: GridRunRecords, suite: str, column: ColumnSpec
) -> tuple[np.ndarray, str]:
    """Per-sample scores in the order of sample ids, and a hash of the ids."""
    evaluation = records.evaluation(suite, column.checkpoint)
    if not evaluation.records:
        raise FileNotFoundError
    first = next(iter(evaluation.records.values()))
    expected = first.metadata.get("suite_entries", [])
    if column.metric in NEEDS_FULL_SUITE and set(expected) - set(evaluation.records):
        raise MissingValue("the evaluation is incomplete")
    order = np.argsort(first.ids, kind="stable")
    return _per_sample_scores(evaluation, column.metric)[order].astype(np.float64), digest(
        first.ids[order].tolist()
    )


def _per_sample_scores(evaluation: Evaluation, metric: str) -> np.ndarray:
    """Per-sample correctness; for corruptions the fraction of correct copies."""
    if metric == WORST_CASE:
        return evaluation.is_robust
    if metric != CORRUPTIONS:
        return evaluation.records[metric].correct
    if evaluation.corruptions is None:
        raise MissingValue(f"the suite {evaluation.suite} has no corruptions")
    return evaluation.corruptions.image_accuracy


def analysis_rows_table(scaled: ScaledStudy, folder: Path) -> StudyTable:
    """One row for each item of the lists; a column of another analysis has one value for all."""
    axes = tuple(
        dict.fromkeys(name for rows_spec in scaled.analysis_rows for name in rows_spec.row_fields)
    )
    items = {
        tuple(str(item.get(axis, NO_LABEL)) for axis in axes): (item, rows_spec)
        for rows_spec in scaled.analysis_rows
        for item in _read_items(rows_spec, folder)
    }
    values: dict[tuple[RowLabels, str], MeasuredValue] = {}
    missing: dict[tuple[RowLabels, str], str] = {}
    for name, column in scaled.columns.items():
        for row, (item, rows_spec) in items.items():
            try:
                value = _item_value(column, item, rows_spec, scaled, folder)
                values[row, name] = MeasuredValue((0,), values_per_seed=(value,))
            except MissingValue as reason:
                missing[row, name] = str(reason)
    attributes: tuple[Mapping[str, str | float], ...] = tuple({} for _ in items)
    return StudyTable(axes, tuple(items), values, tuple(scaled.columns), attributes, missing)


def _read_items(rows_spec: AnalysisRows, folder: Path) -> Sequence[Mapping[str, Any]]:
    try:
        items: Sequence[Mapping[str, Any]] = value_at_path(
            _read_group_result(folder, rows_spec.analysis), rows_spec.path
        )
    except MissingValue:
        return ()
    return items


def _item_value(
    column: ColumnSpec,
    item: Mapping[str, Any],
    rows_spec: AnalysisRows,
    scaled: ScaledStudy,
    folder: Path,
) -> float:
    if column.analysis in ("", rows_spec.analysis):
        return number_in(item, column.metric)
    if column.analysis in [other.analysis for other in scaled.analysis_rows]:
        raise MissingValue(f"column {column.metric} belongs to other rows")
    return number_in(_read_group_result(folder, column.analysis), column.metric)


def _read_group_result(folder: Path, analysis: str) -> Any:
    try:
        content = read_record_json(folder / f"{analysis}.json")
    except (FileNotFoundError, CorruptFileError):
        raise MissingValue("not computed yet") from None
    if reason := content.get("does_not_apply"):
        raise MissingValue(f"{analysis} does not apply: {reason}")
    return content["result"]


PERCENT = 0.01


def read_published(
    published: PublishedTable, study_file: Path | None = None
) -> list[dict[str, str]]:
    """Read a published table: a bundled CSV file, or one beside the study file."""
    user_path = None if study_file is None else study_file.parent / published.file
    bundled_path = Path(str(resources.files("buttress.studies") / "tables" / published.file))
    path = user_path if user_path is not None and user_path.is_file() else bundled_path
    try:
        with path.open(encoding="utf-8", newline="") as file:
            csv_rows = list(csv.DictReader(file))
    except (OSError, csv.Error, UnicodeDecodeError):
        raise UserError(f"cannot read the published table {published.file}") from None
    filters = published.filter.items()
    return [line for line in csv_rows if all(line.get(k) == v for k, v in filters)]


def published_values(
    published: PublishedTable,
    csv_rows: Sequence[Mapping[str, str]],
    axes: Sequence[str],
    rows: Mapping[RowLabels, Mapping[str, str | float]],
    columns: Mapping[str, ColumnSpec],
) -> ValueTable:
    """The published table with the rows and columns of the measured one; nan if missing."""
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
    values = {
        name: np.array(
            [_published_number(by_row.get(row, {}), names[name], column) for row in rows]
        )
        for name, column in columns.items()
    }
    return ValueTable(tuple(axes), tuple(rows), values, tuple(rows.values()))


def _matches_label(text: str | None, label: str | float | None) -> bool:
    """Whether two labels are the same text or the same number."""
    if isinstance(label, float) and text:
        return text == f"{label:g}"
    return text == label


def _published_number(csv_row: Mapping[str, str], name: str, column: ColumnSpec) -> float:
    text = (csv_row.get(name) or "").strip()
    try:
        value = float(text)
    except ValueError:
        return float("nan")
    return value * PERCENT if column.unit == "percent" else value
