"""Compute the answer of a study from its records: table, published values, claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from buttress.analysis.core import (
    ANALYSES,
    AnalysisResult,
    analyze_group,
    analyze_standalone,
)
from buttress.analysis.figures import save_figure
from buttress.analysis.subject import AnalysisNotApplicable
from buttress.errors import ButtressError
from buttress.results.core import read_record_json
from buttress.results.evaluation import Evaluation
from buttress.results.run import Run
from buttress.results.study_result import (
    ClaimOutcome,
    ClaimResult,
    OtherTableOutcome,
    RankAgreement,
    StudyFigure,
    StudyResult,
    StudyTableRow,
    TableValue,
    write_study_result,
)
from buttress.statistics import spearman
from buttress.studies.claims import (
    CLAIMS,
    Predicate,
    UndecidableClaim,
    assess_claim,
    needed_data,
)
from buttress.studies.claims.trends import spearman_fisher_draws
from buttress.studies.grid import ExpandedStudy, GridRun, run_label
from buttress.studies.jobs import make_jobs, read_status
from buttress.studies.measure import (
    RUN_METRICS,
    GridRunRecords,
    analysis_rows_table,
    can_decide_claims,
    column_evaluation,
    column_units,
    group_by_row,
    measure_table,
    runs_of_column,
)
from buttress.studies.published import (
    full_published_values,
    other_values,
    published_values,
    read_csv_rows,
)
from buttress.studies.spec import (
    ClaimSpec,
    ColumnSpec,
    OtherCheck,
    Scale,
    ScaledStudy,
    StudySpec,
    column_title,
)
from buttress.studies.table import MeasuredValue, StudyTable, ValueTable
from buttress.system.progress import Progress, SilentProgress

MIN_ROWS = 4  # fewest rows of a rank correlation
SMOKE_REASON = "the scale smoke shows only that the parts fit together"


def answer_study(expanded: ExpandedStudy, root: Path) -> StudyResult:
    """Answer a study from its finished runs; claims on missing values are undecided."""
    study, scaled, runs = expanded.study, expanded.scaled, expanded.runs
    study_folder = expanded.result_path(root).parent
    statuses = {job.key: read_status(job) for job in make_jobs(expanded, root)}
    records = [
        GridRunRecords(
            run, root / "runs" / run.key, statuses[run.key].state, group_folder=study_folder
        )
        for run in runs
    ]
    if scaled.analysis_rows:
        table = analysis_rows_table(scaled, study_folder)
    else:
        table = measure_table(expanded, records)
    values = table.as_values()
    published = _published_rows(study, scaled, table)
    return StudyResult(
        study=study.name,
        scale=expanded.scale,
        title=study.title or study.name,
        question=study.question,
        source=study.source,
        description=study.description,
        axes=table.axes,
        columns=table.columns,
        column_titles={name: column_title(name, c) for name, c in scaled.columns.items()},
        units={name: column.unit for name, column in scaled.columns.items()},
        rows=_build_rows(table, values, published, scaled, records),
        claims=claim_results(study, expanded.scale, values),
        rank_agreement=() if published is None else rank_agreement(values, published),
        figures=study.figures,
        run_labels={run.key: run_label(run, scaled) for run in runs},
        notes=() if study.published is None else study.published.notes,
        total_runs=len(statuses),
        finished_runs=sum(run.state == "done" for run in statuses.values()),
        failed_runs={key: run.error for key, run in statuses.items() if run.state == "failed"},
        analyses=tuple(analysis.name for analysis in scaled.analyses),
        group_analyses=tuple(analysis.name for analysis in scaled.group_analyses),
        cost=_training_seconds(runs, root),
        settings={
            "datasets": sorted({run.spec.dataset for run in runs}),
            "suites": list(scaled.suites),
            "test_limit": scaled.test_limit,
            "seeds": list(scaled.seeds),
        },
    )


def claim_results(study: StudySpec, scale: Scale, measured: ValueTable) -> tuple[ClaimResult, ...]:
    """Assess each claim on the published table, on tables by other authors and on ours.

    The published outcome is that of all printed values, at every scale. In other tables only
    rows are redrawn, where a claim takes them as a sample: their images and seeds are not known.
    """
    largest = study.at_scale(study.scales[-1])
    published = None
    if study.published is not None:
        csv_rows = read_csv_rows(study.published)
        published = full_published_values(study.published, csv_rows, largest)
    others = {
        name: other_values(table, read_csv_rows(table), column_units(largest))
        for name, table in study.other_tables.items()
        if table.file
    }
    results = []
    for claim in study.claims:
        predicate = CLAIMS.create(claim.predicate.name, claim.predicate.args)
        assessment = assess_claim(predicate, measured)
        if scale == "smoke" and assessment.outcome != "undecided":
            assessment = assessment._replace(outcome="undecided", reason=SMOKE_REASON)
        elif assessment.outcome == "undecided" and assessment.replicate_share is not None:
            reason = f"{assessment.reason}; {needed_data(predicate, measured)}"
            assessment = assessment._replace(reason=reason)
        outcome, evidence = claim.published, ""
        if published is not None and not claim.published:
            outcome, evidence = printed_outcome(predicate, published)
        results.append(
            ClaimResult(
                id=claim.id,
                statement=claim.statement,
                published=outcome,
                published_evidence=evidence,
                other_tables=tuple(
                    _other_table_outcome(study, claim, check, others)
                    for check in claim.other_tables
                    if check.table in others
                ),
                **assessment._asdict(),
            )
        )
    return tuple(results)


def _other_table_outcome(
    study: StudySpec, claim: ClaimSpec, check: OtherCheck, tables: Mapping[str, ValueTable]
) -> OtherTableOutcome:
    table, spec = study.other_tables[check.table], check.predicate or claim.predicate
    assessment = assess_claim(CLAIMS.create(spec.name, spec.args), tables[check.table])
    return OtherTableOutcome(
        table=check.table,
        source=table.source,
        outcome=assessment.outcome,
        evidence=assessment.evidence,
        reason=assessment.reason,
        limits=" ".join(filter(None, (table.limits, check.limits))),
    )


def printed_outcome(predicate: Predicate, table: ValueTable) -> tuple[ClaimOutcome, str]:
    """Whether printed values satisfy a claim, with the values; their uncertainty is not known."""
    try:
        outcome: ClaimOutcome = "holds" if predicate.holds(table) else "does not hold"
        return outcome, predicate.evidence(table)
    except UndecidableClaim as reason:
        return "undecided", str(reason)


def _published_rows(study: StudySpec, scaled: ScaledStudy, table: StudyTable) -> ValueTable | None:
    """The published values of the measured rows."""
    if study.published is None:
        return None
    rows = dict(zip(table.rows, table.attributes, strict=True))
    csv_rows = read_csv_rows(study.published)
    return published_values(study.published, csv_rows, table.axes, rows, scaled.columns)


def _build_rows(
    table: StudyTable,
    values: ValueTable,
    published: ValueTable | None,
    scaled: ScaledStudy,
    records: Sequence[GridRunRecords],
) -> tuple[StudyTableRow, ...]:
    intervals, grouped = table.intervals(values), group_by_row(table.axes, records)
    rows = []
    for index, row in enumerate(table.rows):
        numbers, runs = {}, grouped.get(row, [])
        for column in table.columns:
            value = table.values.get((row, column))
            interval = intervals.get((row, column))
            published_value = (
                None if published is None else _finite_or_none(published.columns[column][index])
            )
            column_runs = runs_of_column(scaled.columns[column], runs)
            evaluations = _column_evaluations(column_runs, scaled.columns[column], scaled)
            numbers[column] = TableValue(
                value=None if value is None else _finite_or_none(value.value),
                low=None if interval is None else interval.low,
                high=None if interval is None else interval.high,
                published=published_value,
                images=len(value.scores[0]) if value is not None and value.scores else 0,
                seeds=0 if value is None else len(value.seeds),
                missing_reason=table.missing.get((row, column), ""),
                warnings=_value_warnings(value, evaluations),
                is_untrustworthy=not all(map(can_decide_claims, evaluations)),
            )
        rows.append(
            StudyTableRow(labels=row, attributes=dict(table.attributes[index]), values=numbers,
                 run_keys=tuple(s.grid_run.key for s in runs))
        )  # fmt: skip
    return tuple(rows)


def _value_warnings(
    value: MeasuredValue | None, evaluations: Sequence[Evaluation]
) -> tuple[str, ...]:
    """Warnings of the evaluations, and why the value decides no claim."""
    problem = "" if value is None else value.problem
    warnings = [warning for e in evaluations for warning in e.warnings]
    return tuple(dict.fromkeys(text for text in (problem, *warnings) if text))


def _column_evaluations(
    records: Sequence[GridRunRecords], column: ColumnSpec, scaled: ScaledStudy
) -> list[Evaluation]:
    """The evaluations of a value."""
    name = column.suite or (scaled.suites[0] if scaled.suites else "")
    name += "" if column.checkpoint == "best" else f"-{column.checkpoint}"
    if column.metric in RUN_METRICS or column.analysis:
        return []
    loaded = [s.results.loaded[name] for s in records if name in s.results.loaded]
    return [column_evaluation(evaluation, column.metric) for evaluation in loaded]


def rank_agreement(measured: ValueTable, published: ValueTable) -> tuple[RankAgreement, ...]:
    """Spearman's correlation of each column with the published one, over rows that have both."""
    agreements = []
    for column, values in measured.columns.items():
        theirs = published.columns[column]
        both = ~(np.isnan(values) | np.isnan(theirs))
        if np.isnan(theirs).all():
            continue
        agreement = RankAgreement(column=column, rows=int(both.sum()), spearman=None)
        can_rank = both.sum() >= MIN_ROWS and min(np.ptp(values[both]), np.ptp(theirs[both])) > 0
        if can_rank:
            z = spearman_fisher_draws(measured.draws(column)[both], theirs[both][:, None])
            low, high = np.tanh(np.quantile(z[1:], (0.025, 0.975))) if len(z) > 1 else (None, None)
            value = spearman(values[both], theirs[both]).value
            agreement = agreement.model_copy(update={"spearman": value, "low": low, "high": high})
        agreements.append(agreement)
    return tuple(agreements)


def _finite_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _training_seconds(runs: Sequence[GridRun], root: Path) -> dict[str, float]:
    """Cost of the finished runs."""
    seconds = 0.0
    for grid_run in runs:
        run = Run(root / "runs" / grid_run.key)
        if run.is_trained:
            seconds += float(run.summary.get("seconds", 0.0))
    return {"train_seconds": seconds}


def run_group_analyses(
    expanded: ExpandedStudy, root: Path, *, progress: Progress | None = None
) -> None:
    """Run missing group analyses; results go to the folder of the study's answer."""
    progress, out = progress or SilentProgress(), expanded.result_path(root).parent
    keys = dict.fromkeys(run.key for run in expanded.runs)
    labels = {run.key: run_label(run, expanded.scaled) for run in expanded.runs}
    trained_runs = [run for key in keys if (run := Run(root / "runs" / key)).is_trained]
    for analysis in expanded.scaled.group_analyses:
        try:
            if ANALYSES.spec(analysis.name).subject == "none":
                analyze_standalone(analysis.name, out, args=analysis.args, progress=progress)
            elif trained_runs:
                analyze_group(
                    analysis.name,
                    trained_runs,
                    out,
                    args=analysis.args,
                    limit=expanded.scaled.test_limit,
                    labels=[labels[run.path.name] for run in trained_runs],
                    progress=progress,
                )
        except AnalysisNotApplicable as reason:
            progress.log(f"{analysis.name} does not apply: {reason}")
        except (ButtressError, RuntimeError, OSError) as error:  # the answer is written without it
            progress.log(f"group analysis {analysis.name} failed: {error}")


MAX_PANELS = 12  # more networks in one drawing cannot be read


def draw_analysis_figures(expanded: ExpandedStudy, root: Path) -> None:
    """Draw the analysis figures of a study beside its answer; one without results is removed."""
    folder = expanded.result_path(root).parent
    for figure in expanded.study.figures:
        if figure.kind != "analysis":
            continue
        results = figure_results(figure, expanded, root)
        if results:
            save_figure(ANALYSES.spec(figure.analysis).result.plot, results, folder / figure.file)
        else:
            (folder / figure.file).unlink(missing_ok=True)


def figure_results(
    figure: StudyFigure, expanded: ExpandedStudy, root: Path
) -> dict[str, AnalysisResult]:
    """Saved results of the runs that a figure shows, by the labels of the runs, of one seed."""
    results: dict[str, AnalysisResult] = {}
    first_seed = expanded.scaled.seeds[0]
    for run in expanded.runs:
        selected = all(run.labels.get(axis) in labels for axis, labels in figure.where.items())
        if run.seed != first_seed or not selected or len(results) == MAX_PANELS:
            continue
        result = saved_result(figure.analysis, run, root)
        if result is not None:
            results[run_label(run, expanded.scaled, with_seed=False)] = result
    return results


def saved_result(analysis: str, run: GridRun, root: Path) -> AnalysisResult | None:
    """The saved result of an analysis; None if there is none that can be read."""
    path = Run(root / "runs" / run.key).analysis_file(analysis)
    try:
        content = read_record_json(path)["result"]
        return None if content is None else ANALYSES.spec(analysis).result.parse(content, str(path))
    except (ButtressError, OSError, KeyError):
        return None


def write_study_answer(
    expanded: ExpandedStudy, root: Path, *, progress: Progress | None = None
) -> StudyResult:
    """Run group analyses, answer the study and save the answer below ``root/studies``."""
    run_group_analyses(expanded, root, progress=progress)
    draw_analysis_figures(expanded, root)
    answer = answer_study(expanded, root)
    write_study_result(root, answer)
    return answer
