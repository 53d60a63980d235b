"""Results of studies and searches: tables with published values, claims, rankings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from buttress.config import Spec
from buttress.results.core import read_record_json, write_record_json
from buttress.system.files import safe_file_name


class TableValue(Spec):
    """One value of the table; accuracies are in [0, 1]."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    published: float | None = None
    images: int = 0
    seeds: int = 0
    missing_reason: str = ""  # why there is no value
    warnings: tuple[str, ...] = ()  # warnings about it
    is_untrustworthy: bool = False  # whether one of the warnings invalidates it


class StudyTableRow(Spec):
    """One row: its labels, its numbers by column, and the runs behind it."""

    labels: tuple[str, ...]
    attributes: dict[str, str | float] = Field(default_factory=dict)
    values: dict[str, TableValue]
    run_keys: tuple[str, ...] = ()


ClaimOutcome = Literal["holds", "does not hold", "undecided"]


class OtherTableOutcome(Spec):
    """Whether a claim holds in a table by other authors."""

    table: str
    source: str
    outcome: ClaimOutcome
    evidence: str
    reason: str = ""  # why it is undecided
    limits: str = ""  # what differs from the setting of the study


class ClaimResult(Spec):
    """A claim in the published table, in tables by other authors, and in the measured table."""

    id: str
    statement: str
    published: str  # holds, does not hold, or why there is no published table
    published_evidence: str = ""
    other_tables: tuple[OtherTableOutcome, ...] = ()
    outcome: ClaimOutcome
    evidence: str
    reason: str = ""  # why it is undecided
    replicate_share: float | None = None  # of redrawn tables in which it is true


class StudyFigure(Spec):
    """A figure of a study's page.

    ``lines``: columns along ``x``, a curve per column and value of ``group``; ``scatter``: a column
    against ``x``, a point per row, colored by ``group``; ``profile``: columns side by side as bars,
    one series per row; ``analysis``: an analysis of several runs in one drawing.
    """

    kind: Literal["lines", "scatter", "profile", "analysis"]
    title: str
    caption: str = ""
    x: str = ""  # an axis, an attribute or a column
    columns: tuple[str, ...] = ()
    group: str = ""  # an axis or an attribute
    where: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # labels of the rows to draw
    analysis: str = ""

    @property
    def file(self) -> str:
        """Name of the drawing of an analysis, beside the study's answer."""
        return f"figure-{safe_file_name(self.title)}.svg"


class RankAgreement(Spec):
    """Rank correlation of a measured column with the published one."""

    column: str
    rows: int
    spearman: float | None
    low: float | None = None
    high: float | None = None


class StudyResult(Spec):
    """The result of a study at one scale, from its finished runs."""

    study: str
    scale: str
    title: str
    question: str
    source: str
    description: str = ""
    axes: tuple[str, ...]
    columns: tuple[str, ...]
    column_titles: dict[str, str] = Field(default_factory=dict)
    units: dict[str, Literal["percent", "number"]]
    rows: tuple[StudyTableRow, ...]
    claims: tuple[ClaimResult, ...]
    rank_agreement: tuple[RankAgreement, ...]
    figures: tuple[StudyFigure, ...] = ()
    run_labels: dict[str, str] = Field(default_factory=dict)  # key -> labels and seed
    notes: tuple[str, ...] = ()
    total_runs: int
    finished_runs: int
    failed_runs: dict[str, str] = Field(default_factory=dict)  # key -> why
    analyses: tuple[str, ...] = ()  # of every run
    group_analyses: tuple[str, ...] = ()  # of all of them; files beside the answer
    cost: dict[str, float] = Field(default_factory=dict)  # seconds, passes ...
    settings: dict[str, Any] = Field(default_factory=dict)  # dataset, suites, images

    def column_title(self, column: str) -> str:
        return self.column_titles.get(column) or column.replace("_", " ")

    def with_titles(self, text: str) -> str:
        """Replace names of columns by their titles: ``pgd20`` by ``PGD-20``."""
        return re.sub(r"\b\w+\b", lambda m: self.column_titles.get(m[0], m[0]), text)


def study_result_path(root: Path, study: str, scale: str) -> Path:
    return root / "studies" / f"{study}-{scale}" / "answer.json"


def write_study_result(root: Path, result: StudyResult) -> Path:
    path = study_result_path(root, result.study, result.scale)
    write_record_json(path, result.model_dump(mode="json"))
    return path


def read_study_result(path: Path) -> StudyResult:
    return StudyResult.parse(read_record_json(path), str(path))


CandidateStatus = Literal["best", "close", "worse", "pruned, tied", "pruned", "failed", "running"]
CANDIDATE_STATUSES: dict[CandidateStatus, str] = {
    "best": "highest robust accuracy among the fully trained candidates",
    "close": "fully trained; its interval overlaps that of the best",
    "worse": "fully trained; its interval lies below that of the best",
    "pruned, tied": "pruned although its interval overlaps that of the last candidate kept",
    "pruned": "pruned: its interval lies below that of the last candidate kept",
    "failed": "one of its runs failed",
    "running": "still running",
}


class RungScore(Spec):
    """Robust validation accuracy after one rung: the mean over seeds, with its 95% interval."""

    epochs: int
    robust_accuracy: float
    low: float
    high: float
    clean_accuracy: float
    images: int
    run_keys: tuple[str, ...]  # keys, one per seed


class CandidateResult(Spec):
    labels: dict[str, str]  # axis -> label
    model: str
    parameters: int
    macs: int
    scores: tuple[RungScore, ...] = ()  # of the rungs it reached
    status: CandidateStatus = "running"
    failure_reason: str = ""


class RungResult(Spec):
    """One rung of successive halving."""

    epoch_fraction: float  # of the recipe's epochs
    candidates: int
    target_survivors: int  # number to keep by rank
    survivors: int  # including those whose interval overlaps
    pruned_within_interval: int  # pruned although their interval overlaps
    training_flops: float


class AxisValueResult(Spec):
    """Results of the candidates with one label of an axis."""

    axis: str
    label: str
    candidates: int
    first_rung_accuracy: float | None  # mean over its candidates
    fully_trained: int


class SearchFront(Spec):
    """Pareto front of robust accuracy and cost among the fully trained candidates."""

    cost_metric: Literal["parameters", "macs"]
    ranks: tuple[int, ...]  # indices into the candidates, most robust first
    ranks_within_interval: tuple[int, ...]


class SearchResult(Spec):
    """The result of a search at one scale, possibly unfinished."""

    name: str
    scale: str
    key: str  # its name with a hash of all that may change a number
    title: str
    question: str
    source: str = ""
    description: str = ""
    budget: dict[str, float]
    seed: int
    grid_size: int  # combinations
    in_budget: int
    sampled: int
    rungs: tuple[RungResult, ...] = ()
    candidates: tuple[CandidateResult, ...]  # ranked by the last rung reached, then by accuracy
    axis_values: tuple[AxisValueResult, ...] = ()
    fronts: tuple[SearchFront, ...] = ()
    training_flops: float = 0.0  # so far
    full_training_flops: float = 0.0  # of training all candidates in the budget in full
    failed_candidates: dict[str, str] = Field(default_factory=dict)  # candidate -> the run, and why
    notes: tuple[str, ...] = ()  # caveats of the decisions
    is_finished: bool = False


def search_result_path(root: Path, key: str) -> Path:
    return root / "searches" / key / "search.json"


def write_search_result(root: Path, result: SearchResult) -> Path:
    path = search_result_path(root, result.key)
    write_record_json(path, result.model_dump(mode="json"))
    return path


def read_search_result(path: Path) -> SearchResult:
    return SearchResult.parse(read_record_json(path), str(path))
