"""Results of studies and searches: tables with published values, claims, rankings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from buttress.config import Spec
from buttress.system.files import read_json, write_json


class TableValue(Spec):
    """One value of the table; accuracies are in [0, 1]."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    published: float | None = None
    images: int = 0
    seeds: int = 0
    missing: str = ""  # why there is no value
    distrusted: tuple[str, ...] = ()  # warnings about it
    untrustworthy: bool = False  # whether one of the warnings invalidates it


class StudyTableRow(Spec):
    """One row: its labels, its numbers by column, and the runs behind it."""

    labels: tuple[str, ...]
    attributes: dict[str, str | float] = Field(default_factory=dict)
    numbers: dict[str, TableValue]
    runs: tuple[str, ...] = ()


class ClaimResult(Spec):
    """A claim, and whether it holds in the published and in the measured table."""

    id: str
    statement: str
    published: str  # holds, does not hold, or why it is undecided
    outcome: Literal["holds", "does not hold", "undecided"]
    evidence: str
    replicate_share: float | None = None  # of bootstrap tables in which it is true


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
    about: str = ""
    axes: tuple[str, ...]
    columns: tuple[str, ...]
    units: dict[str, Literal["percent", "number"]]
    lines: tuple[StudyTableRow, ...]
    claims: tuple[ClaimResult, ...]
    agreement: tuple[RankAgreement, ...]
    notes: tuple[str, ...] = ()
    runs: int
    done: int
    failed: dict[str, str] = Field(default_factory=dict)  # key -> why
    analyses: tuple[str, ...] = ()  # of every run
    together: tuple[str, ...] = ()  # of all of them; files beside the answer
    cost: dict[str, float] = Field(default_factory=dict)  # seconds, passes ...
    settings: dict[str, Any] = Field(default_factory=dict)  # dataset, suites, images


def study_result_path(root: Path, study: str, scale: str) -> Path:
    return root / "studies" / f"{study}-{scale}" / "answer.json"


def write_study_result(root: Path, result: StudyResult) -> Path:
    path = study_result_path(root, result.study, result.scale)
    write_json(path, result.model_dump(mode="json"))
    return path


def read_study_result(path: Path) -> StudyResult:
    return StudyResult.parse(read_json(path), str(path))


CandidateStatus = Literal["best", "close", "worse", "in doubt", "dropped", "failed", "running"]
CANDIDATE_STATUSES: dict[CandidateStatus, str] = {
    "best": "highest robust accuracy among the fully trained candidates",
    "close": "fully trained; its interval overlaps that of the best",
    "worse": "fully trained; its interval lies below that of the best",
    "in doubt": "pruned although its interval overlaps that of the last candidate kept",
    "dropped": "pruned: its interval lies below that of the last candidate kept",
    "failed": "one of its runs failed",
    "running": "still running",
}


class RungScore(Spec):
    """Robust validation accuracy after one rung: the mean over seeds, with its 95% interval."""

    epochs: int
    value: float
    low: float
    high: float
    clean: float
    images: int
    runs: tuple[str, ...]  # keys, one per seed


class CandidateResult(Spec):
    """One candidate."""

    labels: dict[str, str]  # axis -> label
    model: str
    parameters: int
    macs: int
    scores: tuple[RungScore, ...] = ()  # of the rungs it reached
    fate: CandidateStatus = "running"
    reason: str = ""  # why it failed


class RungResult(Spec):
    """One rung of successive halving."""

    share: float  # of the recipe's epochs
    candidates: int
    asked: int  # number to keep by rank
    kept: int  # including those whose interval overlaps
    in_doubt: int  # pruned although their interval overlaps
    flops: float  # of training


class AxisValueResult(Spec):
    """Results of the candidates with one label of an axis."""

    axis: str
    label: str
    candidates: int
    first: float | None  # mean accuracy after the first rung
    in_full: int  # trained to the end


class SearchFront(Spec):
    """Pareto front of robust accuracy and cost among the fully trained candidates."""

    price: Literal["parameters", "macs"]
    best: tuple[int, ...]  # indices into the ranking, most robust first
    within_chance: tuple[int, ...]


class SearchResult(Spec):
    """The result of a search at one scale, possibly unfinished."""

    search: str
    scale: str
    key: str  # its name with a hash of all that may change a number
    title: str
    question: str
    source: str = ""
    about: str = ""
    budget: dict[str, float]
    seed: int
    grid: int  # combinations
    in_budget: int
    drawn: int
    rungs: tuple[RungResult, ...] = ()
    ranking: tuple[CandidateResult, ...]  # by the last rung reached, then by accuracy
    options: tuple[AxisValueResult, ...] = ()
    fronts: tuple[SearchFront, ...] = ()
    flops: float = 0.0  # of all training so far
    flops_of_all: float = 0.0  # had all in the budget been trained in full
    failed: dict[str, str] = Field(default_factory=dict)  # candidate -> the run, and why
    notes: tuple[str, ...] = ()  # caveats of the decisions
    is_over: bool = False


def search_result_path(root: Path, key: str) -> Path:
    return root / "searches" / key / "search.json"


def write_search_result(root: Path, result: SearchResult) -> Path:
    path = search_result_path(root, result.key)
    write_json(path, result.model_dump(mode="json"))
    return path


def read_search_result(path: Path) -> SearchResult:
    return SearchResult.parse(read_json(path), str(path))
