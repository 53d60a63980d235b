"""From the records of runs to the table of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from buttress.analysis.core import ANALYSES, is_together
from buttress.errors import ButtressError
from buttress.evaluation import Evaluation, load_evaluation
from buttress.files import read_json
from buttress.records.evaluation import diagnosed
from buttress.records.run import Run
from buttress.spec import digest
from buttress.study.cells import Cell, merged
from buttress.study.spec import Column, Scaled
from buttress.study.table import Measured, Row, Table
from buttress.study.tasks import network_cost

WORST_CASE, CORRUPTIONS = "worst_case", "corruptions"
WHOLE = (WORST_CASE, CORRUPTIONS)  # what only a complete evaluation says
FIGURES = ("parameters_m", "gmacs", "train_seconds", "collapsed")


class Missing(Exception):
    """A number that is not there; the text says why."""


@dataclass
class Source:
    """The records of one run, read once."""

    cell: Cell
    folder: Path
    state: str  # as far as the study's own wishes are met
    evaluations: dict[str, Evaluation] = field(default_factory=dict)  # read so far
    together: Path = Path()  # the folder with analyses of all runs

    @property
    def run(self) -> Run:
        return Run(self.folder)

    def evaluation(self, suite: str, which: str) -> Evaluation:
        name = suite if which == "best" else f"{suite}-{which}"
        if name not in self.evaluations:
            found = load_evaluation(self.run.suite_folder(name))
            self.evaluations[name] = diagnosed(found, self.run.analysis_file("doctor"))
        return self.evaluations[name]

    def analysis(self, name: str) -> Mapping[str, Any]:
        """The result of an analysis; of one of all runs, its part on this run."""
        is_shared = is_together(ANALYSES.entry(name))
        path = self.together / f"{name}.json" if is_shared else self.run.analysis_file(name)
        content = read_json(path)
        if reason := content.get("does_not_apply"):
            raise Missing(f"{name} does not apply: {reason}")
        found: Mapping[str, Any] = content["result"]
        if is_shared and self.cell.key not in found.get("by_run", {}):
            raise Missing(f"{name} does not apply to this run")
        return found["by_run"][self.cell.key] if is_shared else found


def table_of(scaled: Scaled, sources: Sequence[Source]) -> Table:
    """Every column of every row, as far as the runs are; what is missing says why."""
    fixed = {axis for column in scaled.columns.values() for axis in column.where}
    axes = tuple(axis for axis in scaled.axes if axis not in fixed)
    grouped = by_row(axes, sources)
    rows: dict[Row, Mapping[str, str | float]] = {
        row: merged(dict(zip(axes, row, strict=True)), scaled).attributes for row in grouped
    }
    found: dict[tuple[Row, str], Measured] = {}
    missing: dict[tuple[Row, str], str] = {}
    for name, column in scaled.columns.items():
        for row in rows:
            try:
                found[row, name] = _measured(column, grouped[row], scaled)
            except Missing as reason:
                missing[row, name] = str(reason)
    return Table(axes, tuple(rows), found, tuple(scaled.columns), tuple(rows.values()), missing)


def by_row(axes: Sequence[str], sources: Sequence[Source]) -> dict[Row, list[Source]]:
    """The runs behind each row, in order of their seeds."""
    found: dict[Row, list[Source]] = {}
    for source in sources:
        found.setdefault(tuple(source.cell.labels.get(a, "") for a in axes), []).append(source)
    return {row: sorted(runs, key=lambda s: s.cell.seed) for row, runs in found.items()}


def behind(column: Column, of_row: Sequence[Source]) -> list[Source]:
    """Those of a row's runs that one of its numbers comes from."""
    wanted = column.where.items()
    return [s for s in of_row if all(s.cell.labels.get(a) == v for a, v in wanted)]


def _measured(column: Column, of_row: Sequence[Source], scaled: Scaled) -> Measured:
    chosen = behind(column, of_row)
    if not chosen:
        raise Missing("the study has no such run")
    seeds = tuple(s.cell.seed for s in chosen)
    if len(set(seeds)) < len(seeds):
        raise Missing("the column does not say which of several runs it means")
    try:
        if column.analysis or column.of in FIGURES:
            return Measured(seeds, figures=tuple(_figure(s, column) for s in chosen))
        suite = column.suite or scaled.suites[0]
        scores = [_scores(s, suite, column) for s in chosen]
    except FileNotFoundError:
        raise Missing(_why_not(chosen)) from None
    except (ButtressError, KeyError, IndexError, TypeError) as error:
        raise Missing(_why_not(chosen) or str(error)) from None
    ids = {tag for _, tag in scores}
    if len(ids) > 1:
        raise Missing("its seeds were attacked on different images")
    return Measured(seeds, scores=tuple(s for s, _ in scores), images=ids.pop())


def _why_not(chosen: Sequence[Source]) -> str:
    states = {s.state for s in chosen} - {"done"}
    words = {"new": "not run yet", "started": "still running", "failed": "the run failed"}
    return "; ".join(words[state] for state in sorted(states)) or "not evaluated yet"


def _figure(source: Source, column: Column) -> float:
    if column.of in ("parameters_m", "gmacs"):
        cost = network_cost(source.cell.spec)
        return cost.parameters / 1e6 if column.of == "parameters_m" else cost.macs / 1e9
    if column.of == "train_seconds":
        return float(source.run.summary["seconds"])
    if column.of == "collapsed":
        events = source.run.summary["events"]
        return float(any(event.get("kind") in ("collapse", "rollback") for event in events))
    return number_in(source.analysis(column.analysis), column.of)


def number_in(result: Any, path: str) -> float:
    """The number at ``components.attention_qkv.ratio``."""
    found = inside(result, path)
    if not isinstance(found, (int, float)):
        raise Missing(f"there is no number at {path}")
    return float(found)


def inside(result: Any, path: str) -> Any:
    """What is at a path in the result of an analysis; a list is searched by any of its values.

    ``places[0].l1_linf.result`` takes the first of a list.
    """
    for part in path.replace("[", ".[").split("."):
        if part.startswith("["):
            found = result[int(part.strip("[]")) :][:1]
        elif isinstance(result, Mapping):
            found = [result[part]] if part in result else []
        elif isinstance(result, Sequence) and not isinstance(result, str):
            found = [item for item in result if part in map(str, item.values())]
        else:
            found = []
        if not found:
            raise Missing(f"it has no {part}")
        result = found[0]
    return result


def _scores(source: Source, suite: str, column: Column) -> tuple[np.ndarray, str]:
    """What each image scored, in order of sample ids, and a hash of those."""
    found = source.evaluation(suite, column.which)
    if not found.records:
        raise FileNotFoundError
    first = next(iter(found.records.values()))
    expected = first.meta.get("suite_attacks", [])
    if column.of in WHOLE and set(expected) - set(found.records):
        raise Missing("its evaluation is not complete")
    order = np.argsort(first.ids, kind="stable")
    return _flags(found, column.of)[order].astype(np.float64), digest(first.ids[order].tolist())


def _flags(found: Evaluation, of: str) -> np.ndarray:
    """Right or wrong for each image; for corruptions the share of its copies that are right."""
    if of == WORST_CASE:
        return found.survived
    if of != CORRUPTIONS:
        return found.records[of].correct
    if found.corruptions is None:
        raise Missing(f"the suite {found.suite} has no corruptions")
    return found.corruptions.shares
