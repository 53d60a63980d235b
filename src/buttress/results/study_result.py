"""What a study answers: the table, published beside measured, and the word on every claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from buttress.config import Spec
from buttress.system.files import read_json, write_json


class TableValue(Spec):
    """One cell of the table; shares of images are in [0, 1]."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    published: float | None = None
    images: int = 0
    seeds: int = 0
    missing: str = ""  # why there is no value
    distrusted: tuple[str, ...] = ()  # why it must not be relied on
    untrustworthy: bool = False  # one of these reasons makes it worthless


class StudyTableRow(Spec):
    """One row: its labels, its numbers by column, and the runs behind it."""

    labels: tuple[str, ...]
    attributes: dict[str, str | float] = Field(default_factory=dict)
    numbers: dict[str, TableValue]
    runs: tuple[str, ...] = ()


class ClaimResult(Spec):
    """A claim, what the published numbers say of it, and what ours do."""

    id: str
    says: str
    published: str  # holds, does not hold, or why that cannot be said
    word: Literal["holds", "does not hold", "undecided"]
    evidence: str
    share: float | None = None  # of redrawn tables in which it is true


class RankAgreement(Spec):
    """How a measured column ranks the rows as the published one does."""

    column: str
    rows: int
    spearman: float | None
    low: float | None = None
    high: float | None = None


class StudyResult(Spec):
    """A study at one scale, as far as its runs are."""

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
    settings: dict[str, Any] = Field(default_factory=dict)  # data set, suites, images


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
    "best": "the highest accuracy of those trained in full",
    "close": "trained in full; its interval overlaps that of the best",
    "worse": "trained in full; its interval lies below that of the best",
    "in doubt": "dropped for lack of places; its interval overlaps that of the last one kept",
    "dropped": "its interval lies below that of the last one kept",
    "failed": "a run of it failed",
    "running": "not decided yet",
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
    """One round: all that are left train as long, and the best go on."""

    share: float  # of the recipe's epochs
    candidates: int
    asked: int  # to be kept by rank
    kept: int  # with those that chance could put among them
    in_doubt: int  # of which there was no place for
    flops: float  # of training


class AxisValueResult(Spec):
    """How the candidates with one label of an axis did, all after the same short training."""

    axis: str
    label: str
    candidates: int
    first: float | None  # mean accuracy after the first rung
    in_full: int  # trained to the end


class SearchFront(Spec):
    """Who is best for a price, of those trained in full."""

    price: Literal["parameters", "macs"]
    best: tuple[int, ...]  # places in the ranking, from the most robust on
    within_chance: tuple[int, ...]


class SearchResult(Spec):
    """A search at one scale, as far as it is."""

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
    notes: tuple[str, ...] = ()  # why a decision must not be relied on
    is_over: bool = False


def search_result_path(root: Path, key: str) -> Path:
    return root / "searches" / key / "search.json"


def write_search_result(root: Path, result: SearchResult) -> Path:
    path = search_result_path(root, result.key)
    write_json(path, result.model_dump(mode="json"))
    return path


def read_search_result(path: Path) -> SearchResult:
    return SearchResult.parse(read_json(path), str(path))
