"""What a study answers: the table, published beside measured, and the word on every claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from buttress.files import read_json, write_json
from buttress.spec import Spec


class Number(Spec):
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


class Line(Spec):
    """One row: its labels, its numbers by column, and the runs behind it."""

    labels: tuple[str, ...]
    attributes: dict[str, str | float] = Field(default_factory=dict)
    numbers: dict[str, Number]
    runs: tuple[str, ...] = ()


class Judged(Spec):
    """A claim, what the published numbers say of it, and what ours do."""

    id: str
    says: str
    published: str  # holds, does not hold, or why that cannot be said
    word: Literal["holds", "does not hold", "undecided"]
    evidence: str
    share: float | None = None  # of redrawn tables in which it is true


class Agreement(Spec):
    """How a measured column ranks the rows as the published one does."""

    column: str
    rows: int
    spearman: float | None
    low: float | None = None
    high: float | None = None


class Answer(Spec):
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
    lines: tuple[Line, ...]
    claims: tuple[Judged, ...]
    agreement: tuple[Agreement, ...]
    notes: tuple[str, ...] = ()
    runs: int
    done: int
    failed: dict[str, str] = Field(default_factory=dict)  # key -> why
    analyses: tuple[str, ...] = ()  # of every run
    together: tuple[str, ...] = ()  # of all of them; files beside the answer
    cost: dict[str, float] = Field(default_factory=dict)  # seconds, passes ...
    settings: dict[str, Any] = Field(default_factory=dict)  # data set, suites, images


def answer_file(root: Path, study: str, scale: str) -> Path:
    return root / "studies" / f"{study}-{scale}" / "answer.json"


def write_answer(root: Path, answer: Answer) -> Path:
    path = answer_file(root, answer.study, answer.scale)
    write_json(path, answer.model_dump(mode="json"))
    return path


def read_answer(path: Path) -> Answer:
    return Answer.parse(read_json(path), str(path))
