"""What the pages show, read from the records of runs: frozen, and free of files and HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.records.diagnosis import Diagnosis, Finding, findings_in, merged
from buttress.records.run import Run, State
from buttress.records.spec import RunSpec
from buttress.registry import canonical
from buttress.report.analyses import Curve, Sparsity
from buttress.statistics import Interval, wilson

CLEAN = "clean"


@dataclass(frozen=True)
class Share:
    """A share of images with its 95% interval."""

    hits: float  # whole, but for the mean over corrupted copies
    images: int
    interval: Interval | None = None  # where it is not Wilson's

    @property
    def value(self) -> float:
        return self.hits / self.images

    @property
    def low(self) -> float:
        return (self.interval or wilson(self.hits, self.images)).low

    @property
    def high(self) -> float:
        return (self.interval or wilson(self.hits, self.images)).high


@dataclass(frozen=True)
class Definition:
    """What decides an attack's numbers. Two runs share a column only if all of it is equal."""

    name: str
    attack: str = ""
    threat: str = ""
    args: str = ""  # "steps=20, restarts=2"

    @property
    def is_clean(self) -> bool:
        return self.name == CLEAN


@dataclass(frozen=True)
class Result:
    """What one attack did to one model."""

    definition: Definition
    position: int
    share: Share
    warnings: tuple[str, ...]
    made: Mapping[str, Any]  # seed, cost, versions and the rest of the record's metadata
    flags: bytes = b""  # a bit per image, right or wrong; none where a result has no verdicts


@dataclass(frozen=True)
class ClassShare:
    """How the images of one class fared."""

    name: str
    clean: Share | None
    worst: Share


@dataclass(frozen=True)
class SuiteView:
    """The records of one suite on one run."""

    suite: str
    dataset: str
    split: str
    images: str  # a hash of the pixels and of the sample ids, in order
    results: Mapping[str, Result]
    unreadable: Mapping[str, str]  # attack -> why its record cannot be used
    expected: tuple[str, ...]  # the attacks of the suite, where a record says so
    survived: NDArray[np.bool_]  # (N,) right under every attack that is in `results`
    classes: tuple[ClassShare, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Reasons to distrust these numbers, as the evaluation found them."""
        return merged(f for r in self.results.values() for f in findings_in(r.made))

    def is_of(self, weights: str) -> bool:
        """Whether these numbers are about the weights with this hash."""
        return all(r.made.get("weights") == weights for r in self.results.values())


@dataclass(frozen=True)
class Said:
    """What an analysis says of a run in a sentence, or why it does not apply."""

    name: str
    says: str = ""
    reason: str = ""


@dataclass(frozen=True)
class RunView:
    """One run: what was asked, how it ended, and what was measured on it."""

    run: Run
    slug: str
    place: str  # the folder, as seen from the root that was asked for
    spec: RunSpec
    header: Mapping[str, Any]
    state: State
    message: str
    suites: tuple[SuiteView, ...] = ()
    sparsity: Sparsity | None = None
    curves: tuple[Curve, ...] = ()
    galleries: tuple[str, ...] = ()  # names of analysis files; their images are read page by page
    others: tuple[str, ...] = ()  # further analyses, shown by their saved pictures
    said: tuple[Said, ...] = ()  # sentences on the analyses that are drawn here
    problems: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None  # what the doctor said
    suffix: str = ""  # tells runs apart that share model and training

    @property
    def key(self) -> str:
        return str(self.header.get("key", ""))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the evaluations found, where the doctor has not said it."""
        known = {f.name for f in self.diagnosis.findings} if self.diagnosis else set()
        found = merged(f for suite in self.suites for f in suite.findings)
        return tuple(f for f in found if f.name not in known)

    @property
    def model(self) -> str:
        return self.spec.model

    @property
    def label(self) -> str:
        return f"{self.model} {self.suffix}".strip()

    @property
    def category(self) -> str:
        return str(self.header.get("category", ""))

    @property
    def objective(self) -> str:
        return self.spec.recipe.objective.name

    @property
    def is_standard(self) -> bool:
        return canonical(self.objective) == "standard"

    @property
    def trained_on(self) -> str:
        """The threat of training; a standard recipe may name one for validation only."""
        return "" if self.is_standard else self.spec.recipe.threat or ""

    @property
    def described(self) -> str:
        """For a sentence: ``vit_tiny trained by pgd_at``."""
        how = "with standard training" if self.is_standard else f"trained by {self.objective}"
        return f"{self.label} {how}"


@dataclass(frozen=True)
class BrokenRun:
    """A folder with a ``run.json`` that cannot be read."""

    place: str
    reason: str


@dataclass(frozen=True)
class Collection:
    """Everything found below the roots."""

    runs: tuple[RunView, ...]
    broken: tuple[BrokenRun, ...]
