"""What a search found: every candidate with its rungs, its cost and its fate."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from buttress.files import read_json, write_json
from buttress.spec import Spec

Fate = Literal["best", "close", "worse", "in doubt", "dropped", "failed", "running"]
FATES: dict[Fate, str] = {
    "best": "the highest accuracy of those trained in full",
    "close": "trained in full; its interval overlaps that of the best",
    "worse": "trained in full; its interval lies below that of the best",
    "in doubt": "dropped for lack of places; its interval overlaps that of the last one kept",
    "dropped": "its interval lies below that of the last one kept",
    "failed": "a run of it failed",
    "running": "not decided yet",
}


class Score(Spec):
    """Robust validation accuracy after one rung: the mean over seeds, with its 95% interval."""

    epochs: int
    value: float
    low: float
    high: float
    clean: float
    images: int
    runs: tuple[str, ...]  # keys, one per seed


class Tried(Spec):
    """One candidate."""

    labels: dict[str, str]  # axis -> label
    model: str
    parameters: int
    macs: int
    scores: tuple[Score, ...] = ()  # of the rungs it reached
    fate: Fate = "running"
    reason: str = ""  # why it failed


class Rung(Spec):
    """One round: all that are left train as long, and the best go on."""

    share: float  # of the recipe's epochs
    candidates: int
    asked: int  # to be kept by rank
    kept: int  # with those that chance could put among them
    in_doubt: int  # of which there was no place for
    flops: float  # of training


class Option(Spec):
    """How the candidates with one label of an axis did, all after the same short training."""

    axis: str
    label: str
    candidates: int
    first: float | None  # mean accuracy after the first rung
    in_full: int  # trained to the end


class Front(Spec):
    """Who is best for a price, of those trained in full."""

    price: Literal["parameters", "macs"]
    best: tuple[int, ...]  # places in the ranking, from the most robust on
    within_chance: tuple[int, ...]


class Search(Spec):
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
    rungs: tuple[Rung, ...] = ()
    ranking: tuple[Tried, ...]  # by the last rung reached, then by accuracy
    options: tuple[Option, ...] = ()
    fronts: tuple[Front, ...] = ()
    flops: float = 0.0  # of all training so far
    flops_of_all: float = 0.0  # had all in the budget been trained in full
    failed: dict[str, str] = Field(default_factory=dict)  # candidate -> the run, and why
    notes: tuple[str, ...] = ()  # why a decision must not be relied on
    is_over: bool = False


def search_file(root: Path, key: str) -> Path:
    return root / "searches" / key / "search.json"


def write_search(root: Path, found: Search) -> Path:
    path = search_file(root, found.key)
    write_json(path, found.model_dump(mode="json"))
    return path


def read_search(path: Path) -> Search:
    return Search.parse(read_json(path), str(path))
