"""Build the table of a study from the records of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from buttress.analysis.core import ANALYSES
from buttress.analysis.uncertainty import FigureSamples, figure_samples, resolve_path
from buttress.attacks import ATTACKS
from buttress.errors import ButtressError, CorruptFileError
from buttress.results.attack_record import AttackRecord
from buttress.results.core import WORST_CASE, read_record_json
from buttress.results.diagnosis import all_trustworthy
from buttress.results.evaluation import CORRUPTIONS, Evaluation
from buttress.results.run import Run
from buttress.results.run_results import RunResults
from buttress.results.threat_summary import BEYOND_NORMS, beyond_norms
from buttress.studies.grid import ExpandedStudy, GridRun, merge_settings
from buttress.studies.spec import AnalysisRows, ColumnSpec, ScaledStudy
from buttress.studies.table import NO_LABEL, CellKey, MeasuredValue, RowLabels, StudyTable
from buttress.system.files import digest
from buttress.training.cost import run_model_cost
from buttress.training.guards import TRAINING_FAILED

NEEDS_FULL_SUITE = (
    WORST_CASE,
    CORRUPTIONS,
    BEYOND_NORMS,
)  # columns that need a complete evaluation
OVERESTIMATES = ("queries_beat_gradients", "transfer_beats_gradients")  # of a weak attack
EXACT_METRICS = ("parameters_m", "gmacs")  # the same for every seed
RUN_METRICS = (*EXACT_METRICS, "train_seconds", "collapsed")


class MissingValue(Exception):
    """A value is missing; the text says why."""


@dataclass
class GridRunRecords:
    grid_run: GridRun
    folder: Path
    state: str  # of the tasks of this study
    group_folder: Path = Path()  # the folder with analyses of all runs

    @cached_property
    def results(self) -> RunResults:
        return RunResults(Run(self.folder))

    def figure(self, analysis: str, path: str) -> tuple[float, FigureSamples]:
        """A number in the result of an analysis, and what it was averaged over."""
        is_group = ANALYSES.spec(analysis).subject == "group"
        file = f"{analysis}.json"
        content = read_record_json(
            self.group_folder / file if is_group else self.results.run.analysis_file(analysis)
        )
        if reason := content.get("does_not_apply"):
            raise MissingValue(f"{analysis} does not apply: {reason}")
        key, result = self.grid_run.key, content["result"]
        if is_group and key not in result.get("by_run", {}):
            raise MissingValue(f"{analysis} does not apply to this run")
        value = number_in(result["by_run"][key] if is_group else result, path)
        return value, figure_samples(content, path, run=key if is_group else "")

    @cached_property
    def training_problem(self) -> str:
        """Why the trained model shows nothing, if its training failed."""
        run = self.results.run
        warnings = run.caveats if run.is_trained else []
        return next((text for text in warnings if text.startswith(TRAINING_FAILED)), "")


def measure_table(expanded: ExpandedStudy, records: Sequence[GridRunRecords]) -> StudyTable:
    """Measure every column of every row; missing values have a reason."""
    scaled = expanded.scaled
    column_axes = {axis for column in scaled.columns.values() for axis in column.where}
    axes = tuple(axis for axis in scaled.axes if axis not in column_axes)
    grouped = group_by_row(axes, records)
    rows: dict[RowLabels, Mapping[str, str | float]] = {
        row: merge_settings(dict(zip(axes, row, strict=True)), scaled).attributes for row in grouped
    }
    values: dict[CellKey, MeasuredValue] = {}
    missing: dict[CellKey, str] = {}
    for name, column in scaled.columns.items():
        for row in rows:
            try:
                labels_run = all(label in scaled.axes[a] for a, label in column.where.items())
                if not (column.metric and labels_run):
                    raise MissingValue(f"not computed at scale {expanded.scale}")
                values[row, name] = _measure(column, grouped[row], scaled)
            except MissingValue as reason:
                missing[row, name] = str(reason)
    return StudyTable(
        axes,
        tuple(rows),
        values,
        tuple(scaled.columns),
        tuple(rows.values()),
        missing,
        column_units(scaled),
    )


def column_units(scaled: ScaledStudy) -> dict[str, str]:
    return {name: column.unit for name, column in scaled.columns.items()}


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
    """The value of a cell; of the finished seeds alone it is shown and decides no claim."""
    runs = runs_of_column(column, of_row)
    if not runs:
        raise MissingValue("the grid contains no run for this cell")
    if len({s.grid_run.seed for s in runs}) < len(runs):
        raise MissingValue("several runs match this cell; add labels to `where` of the column")
    try:
        return _measure_seeds(column, runs, scaled)
    except MissingValue:
        finished = [run for run in runs if _is_measured(column, run, scaled)]
        if not finished:
            raise
        value = _measure_seeds(column, finished, scaled)
        text = f"only {len(finished)} of {len(runs)} seeds are finished"
        return replace(value, problem=value.problem or text)


def _is_measured(column: ColumnSpec, run: GridRunRecords, scaled: ScaledStudy) -> bool:
    try:
        _measure_seeds(column, [run], scaled)
    except MissingValue:
        return False
    return True


def _measure_seeds(
    column: ColumnSpec, runs: Sequence[GridRunRecords], scaled: ScaledStudy
) -> MeasuredValue:
    seeds = tuple(s.grid_run.seed for s in runs)
    try:
        if column.analysis:
            return _figure_value(
                seeds, [s.figure(column.analysis, column.metric) for s in runs], runs
            )
        if column.metric in RUN_METRICS:
            metrics = tuple(_run_metric(s, column.metric) for s in runs)
            is_exact = column.metric in EXACT_METRICS
            problem = "" if is_exact else _run_problem(runs)
            return MeasuredValue(seeds, values_per_seed=metrics, is_exact=is_exact, problem=problem)
        suite = column.suite or scaled.suites[0]
        scores = [_image_scores(s, suite, column) for s in runs]
    except FileNotFoundError:
        raise MissingValue(_missing_reason(runs)) from None
    except (ButtressError, LookupError, TypeError) as error:
        raise MissingValue(_missing_reason(runs) or str(error)) from None
    ids = {image_set for _, image_set in scores}
    if len(ids) > 1:
        raise MissingValue("the seeds were evaluated on different images")
    problem = _run_problem(runs) or _evaluation_problem(
        [
            column_evaluation(s.results.evaluation(suite, column.checkpoint), column.metric)
            for s in runs
        ]
    )
    return MeasuredValue(
        seeds, scores=tuple(s for s, _ in scores), image_set=ids.pop(), problem=problem
    )


def _figure_value(
    seeds: tuple[int, ...],
    figures: Sequence[tuple[float, FigureSamples]],
    runs: Sequence[GridRunRecords] = (),
) -> MeasuredValue:
    """The figure of an analysis for each seed; samples that differ in their units are left out."""
    samples = tuple(sample for _, sample in figures)
    can_redraw = len({(sample.unit_set, len(sample)) for sample in samples}) == 1
    return MeasuredValue(
        seeds,
        values_per_seed=tuple(value for value, _ in figures),
        figures=samples if can_redraw else (),
        is_exact=all(sample.varies_by == "exact" for sample in samples),
        problem=_run_problem(runs),
    )


def _run_problem(runs: Sequence[GridRunRecords]) -> str:
    return next((s.training_problem for s in runs if s.training_problem), "")


def _evaluation_problem(evaluations: Sequence[Evaluation]) -> str:
    """Why accuracies are not trustworthy, if they are not."""
    doubtful = [e for e in evaluations if not can_decide_claims(e)]
    if not doubtful:
        return ""
    return f"not trustworthy ({'; '.join(doubtful[0].warnings[:1])})"


def column_evaluation(evaluation: Evaluation, metric: str) -> Evaluation:
    """The records that a column depends on: that of its attack, or all."""
    if metric not in evaluation.records:
        return evaluation
    return replace(evaluation, records={metric: evaluation.records[metric]})


def can_decide_claims(evaluation: Evaluation) -> bool:
    """Whether accuracies are trustworthy, or doubted only because a published attack is weak.

    Claims about a published protocol are decided by its attacks. That others beat one which is
    known to be weak is a warning; claims under strong attacks have columns of their own.
    """
    findings = [
        finding
        for record in evaluation.records.values()
        for finding in record.findings
        if not (is_published_weak(record) and finding.check in OVERESTIMATES)
    ]
    diagnosis = evaluation.diagnosis
    return all_trustworthy([*findings, *(diagnosis.findings if diagnosis else ())])


def is_published_weak(record: AttackRecord) -> bool:
    """Whether the attack is kept only to repeat published numbers."""
    return record.metadata.get("attack") in ATTACKS.names("published_weak")


def _missing_reason(runs: Sequence[GridRunRecords]) -> str:
    states = {s.state for s in runs} - {"done"}
    texts = {"new": "not run yet", "started": "not finished", "failed": "the run failed"}
    return "; ".join(texts[state] for state in sorted(states)) or "not evaluated yet"


def _run_metric(records: GridRunRecords, metric: str) -> float:
    if metric in EXACT_METRICS:
        cost = run_model_cost(records.grid_run.spec)
        return cost.parameters / 1e6 if metric == "parameters_m" else cost.macs / 1e9
    if metric == "train_seconds":
        return float(records.results.run.summary["seconds"])
    events = records.results.run.summary["events"]
    return float(any(event.get("kind") in ("collapse", "rollback") for event in events))


def number_in(result: Any, path: str) -> float:
    """The number at ``components.attention_qkv.sparsity``."""
    value = value_at_path(result, path)
    if not isinstance(value, (int, float)):
        raise MissingValue(f"the analysis result has no number at {path}")
    return float(value)


def value_at_path(result: Any, path: str) -> Any:
    """Look up a path in the result of an analysis, as `resolve_path` reads it."""
    try:
        for key in resolve_path(result, path):
            result = result[key]
    except LookupError as error:
        raise MissingValue(str(error)) from None
    return result


def _image_scores(
    records: GridRunRecords, suite: str, column: ColumnSpec
) -> tuple[np.ndarray, str]:
    """Per-sample scores of distinct images in the order of sample ids, and a hash of the ids."""
    evaluation = records.results.evaluation(suite, column.checkpoint)
    if not evaluation.records:
        raise FileNotFoundError
    if column.metric in NEEDS_FULL_SUITE and evaluation.missing_entries:
        raise MissingValue("the evaluation is incomplete")
    ids = evaluation.sample_ids
    order = np.argsort(ids, kind="stable")
    order = order[evaluation.is_distinct[order]]
    return _per_sample_scores(evaluation, column.metric)[order].astype(np.float64), digest(
        ids[order].tolist()
    )


def _per_sample_scores(evaluation: Evaluation, metric: str) -> np.ndarray:
    """Per-sample correctness; for several corruptions or threat models the fraction of correct."""
    if metric == WORST_CASE:
        return _worst_case_scores(evaluation)
    if metric == BEYOND_NORMS:
        return beyond_norms(evaluation.threats)
    if metric != CORRUPTIONS:
        return evaluation.records[metric].scores
    if evaluation.corruptions is None:
        raise MissingValue(f"the suite {evaluation.suite} has no corruptions")
    return evaluation.corruptions.image_accuracy


def _worst_case_scores(evaluation: Evaluation) -> np.ndarray:
    """Smallest score over the suite and its cross-checks, except those of a weak published attack.

    Where such an attack is cross-checked in full depends on a sample of images, so that what the
    cross-check fools would lower some rows of a table and not others.
    """
    counted = [
        record.scores if is_published_weak(record) else record.robust_scores
        for record in evaluation.records.values()
        if record.in_worst_case
    ]
    return np.asarray(np.minimum.reduce(counted))


def analysis_rows_table(scaled: ScaledStudy, folder: Path) -> StudyTable:
    """One row for each item of the lists; a column of another analysis has one value for all."""
    axes = tuple(
        dict.fromkeys(name for rows_spec in scaled.analysis_rows for name in rows_spec.row_fields)
    )
    items = {
        tuple(str(item.get(axis, NO_LABEL)) for axis in axes): (f"{rows_spec.path}[{i}]", rows_spec)
        for rows_spec in scaled.analysis_rows
        for i, item in enumerate(_read_items(rows_spec, folder))
    }
    values: dict[CellKey, MeasuredValue] = {}
    missing: dict[CellKey, str] = {}
    for name, column in scaled.columns.items():
        for row, (path, rows_spec) in items.items():
            try:
                figure = _item_figure(column, path, rows_spec, scaled, folder)
                values[row, name] = _figure_value((0,), [figure])
            except MissingValue as reason:
                missing[row, name] = str(reason)
    attributes: tuple[Mapping[str, str | float], ...] = tuple({} for _ in items)
    columns, units = tuple(scaled.columns), column_units(scaled)
    return StudyTable(axes, tuple(items), values, columns, attributes, missing, units)


def _read_items(rows_spec: AnalysisRows, folder: Path) -> Sequence[Mapping[str, Any]]:
    try:
        items: Sequence[Mapping[str, Any]] = value_at_path(
            _read_group_record(folder, rows_spec.analysis)["result"], rows_spec.path
        )
    except MissingValue:
        return ()
    return items


def _item_figure(
    column: ColumnSpec,
    item_path: str,
    rows_spec: AnalysisRows,
    scaled: ScaledStudy,
    folder: Path,
) -> tuple[float, FigureSamples]:
    """The figure of one item, or of an analysis that has one for all items."""
    analysis, path = rows_spec.analysis, f"{item_path}.{column.metric}"
    if column.analysis not in ("", rows_spec.analysis):
        if column.analysis in [other.analysis for other in scaled.analysis_rows]:
            raise MissingValue(f"column {column.metric} belongs to other rows")
        analysis, path = column.analysis, column.metric
    record = _read_group_record(folder, analysis)
    return number_in(record["result"], path), figure_samples(record, path)


def _read_group_record(folder: Path, analysis: str) -> Mapping[str, Any]:
    try:
        content: Mapping[str, Any] = read_record_json(folder / f"{analysis}.json")
    except (FileNotFoundError, CorruptFileError):
        raise MissingValue("not computed yet") from None
    if reason := content.get("does_not_apply"):
        raise MissingValue(f"{analysis} does not apply: {reason}")
    return content
