"""Answers a study from what its runs left: the table, published beside measured, and its claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from buttress.errors import UserError
from buttress.records.answer import Agreement, Answer, Judged, Line, Number, answer_file
from buttress.records.evaluation import Evaluation
from buttress.records.run import Run
from buttress.statistics import spearman
from buttress.study.cells import Cell, cells_of
from buttress.study.claims import CLAIMS, Cannot, judge
from buttress.study.claims.core import check
from buttress.study.listed import listed_table
from buttress.study.measure import Source, behind, by_row, table_of
from buttress.study.published import published_view, read_published
from buttress.study.scales import Scale
from buttress.study.spec import Claim, Column, Scaled, StudySpec
from buttress.study.survey import look_at
from buttress.study.table import REPLICATES, Table, View
from buttress.study.work import work_of

FEWEST = 3  # rows with a rank correlation


def answer(study: StudySpec, scale: Scale, root: Path, *, place: Path | None = None) -> Answer:
    """What a study says now; runs that are missing leave gaps, and claims on them undecided."""
    scaled, cells = study.scaled(scale), cells_of(study, scale)
    beside = answer_file(root, study.name, scale).parent
    found = {work.key: look_at(work) for work in work_of(scaled, cells, root)}
    sources = [
        Source(cell, root / "runs" / cell.key, found[cell.key].state, together=beside)
        for cell in cells
    ]
    table = _table(study, scaled, scale, sources, root)
    replicates = table.replicates(REPLICATES)
    theirs = _published(study, scaled, table, place)
    return Answer(
        study=study.name,
        scale=scale,
        title=study.title or study.name,
        question=study.question,
        source=study.source,
        about=study.about,
        axes=table.axes,
        columns=table.columns,
        units={name: column.unit for name, column in scaled.columns.items()},
        lines=_lines(table, replicates, theirs, scaled, sources),
        claims=tuple(judged(claim, table.view, replicates, theirs) for claim in study.claims),
        agreement=() if theirs is None else agreement_of(table.view, replicates, theirs),
        notes=() if study.published is None else study.published.notes,
        runs=len(found),
        done=sum(run.state == "done" for run in found.values()),
        failed={key: run.error for key, run in found.items() if run.state == "failed"},
        analyses=tuple(use.name for use in scaled.analyses),
        together=tuple(use.name for use in scaled.together),
        cost=_cost(cells, root),
        settings={
            "datasets": sorted({cell.spec.dataset for cell in cells}),
            "suites": list(scaled.suites),
            "test_limit": scaled.test_limit,
            "seeds": list(scaled.seeds),
        },
    )


def _table(
    study: StudySpec, scaled: Scaled, scale: Scale, sources: Sequence[Source], root: Path
) -> Table:
    """The rows are the runs, unless an analysis lists them."""
    if not scaled.listed:
        return table_of(scaled, sources)
    return listed_table(scaled, answer_file(root, study.name, scale).parent)


def judged(claim: Claim, measured: View, replicates: Sequence[View], theirs: View | None) -> Judged:
    """A claim under the published numbers and under ours."""
    predicate = CLAIMS.create(claim.test.name, claim.test.args)
    verdict = judge(predicate, measured, replicates)
    published = claim.published
    if theirs is not None and not published:
        try:
            published = "holds" if check(predicate, theirs.known_rows()) else "does not hold"
        except Cannot as reason:
            published = f"cannot be said: {reason}"
    return Judged(
        id=claim.id, says=claim.says, published=published, word=verdict.word,
        evidence=verdict.evidence, share=verdict.share,
    )  # fmt: skip


def _published(study: StudySpec, scaled: Scaled, table: Table, place: Path | None) -> View | None:
    if study.published is None:
        return None
    rows = dict(zip(table.rows, table.attributes, strict=True))
    lines = read_published(study.published, place)
    return published_view(study.published, lines, table.axes, rows, scaled.columns)


def _lines(
    table: Table, replicates: Sequence[View], theirs: View | None, scaled: Scaled,
    sources: Sequence[Source],
) -> tuple[Line, ...]:  # fmt: skip
    spans, grouped = table.intervals(replicates), by_row(table.axes, sources)
    found = []
    for index, row in enumerate(table.rows):
        numbers, runs = {}, grouped.get(row, [])
        for column in table.columns:
            cell = table.cells.get((row, column))
            span = spans.get((row, column))
            known = None if theirs is None else _finite(theirs.columns[column][index])
            chosen = behind(scaled.columns[column], runs)
            judged_by = _evaluations(chosen, scaled.columns[column], scaled)
            numbers[column] = Number(
                value=None if cell is None else _finite(cell.value),
                low=None if span is None else span.low,
                high=None if span is None else span.high,
                published=known,
                images=len(cell.scores[0]) if cell is not None and cell.scores else 0,
                seeds=0 if cell is None else len(cell.seeds),
                missing=table.missing.get((row, column), ""),
                distrusted=tuple(dict.fromkeys(w for e in judged_by for w in e.warnings)),
                untrustworthy=not all(e.trustworthy for e in judged_by),
            )
        found.append(
            Line(labels=row, attributes=dict(table.attributes[index]), numbers=numbers,
                 runs=tuple(s.cell.key for s in runs))
        )  # fmt: skip
    return tuple(found)


def _evaluations(sources: Sequence[Source], column: Column, scaled: Scaled) -> list[Evaluation]:
    """The evaluations behind a number."""
    name = column.suite or (scaled.suites[0] if scaled.suites else "")
    name += "" if column.which == "best" else f"-{column.which}"
    return [s.evaluations[name] for s in sources if name in s.evaluations]


def agreement_of(measured: View, replicates: Sequence[View], theirs: View) -> tuple[Agreement, ...]:
    """Spearman's correlation of each column with the published one, over rows that have both."""
    found = []
    for column, values in measured.columns.items():
        published = theirs.columns[column]
        both = ~(np.isnan(values) | np.isnan(published))
        if not (~np.isnan(published)).any():
            continue
        rows, value = int(both.sum()), _rank(values[both], published[both])
        if value is None:
            found.append(Agreement(column=column, rows=rows, spearman=None))
            continue
        ranks = [_rank(view.columns[column][both], published[both]) for view in replicates]
        drawn = [rank for rank in ranks if rank is not None]
        low, high = np.quantile(drawn, (0.025, 0.975)) if drawn else (None, None)
        found.append(Agreement(column=column, rows=rows, spearman=value, low=low, high=high))
    return tuple(found)


def _rank(mine: np.ndarray, theirs: np.ndarray) -> float | None:
    """None where there is no order to speak of: few rows, or all alike."""
    try:
        return spearman(mine, theirs).value if len(mine) >= FEWEST else None
    except UserError:
        return None


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _cost(cells: Sequence[Cell], root: Path) -> dict[str, float]:
    """What the finished runs took."""
    seconds = 0.0
    for cell in cells:
        run = Run(root / "runs" / cell.key)
        if run.is_trained:
            seconds += float(run.summary.get("seconds", 0.0))
    return {"train_seconds": seconds}
