"""What was measured on the very weights that are exported; nothing else may stand beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buttress.data import load_dataset
from buttress.errors import ButtressError
from buttress.files import read_json
from buttress.progress import Progress
from buttress.records.run import Run
from buttress.report.collect import suites as read_suites
from buttress.report.views import CLEAN, Result, SuiteView

TEST = "test"
UNTRUSTWORTHY = "untrustworthy"


@dataclass(frozen=True)
class Whole:
    """The whole test split of a data set, as records name it."""

    fingerprint: str = ""  # empty where the images are not here
    images: int = 0


@dataclass(frozen=True)
class Measured:
    suites: tuple[SuiteView, ...]
    refused: tuple[str, ...]  # records of other weights, and files that cannot be read
    tests: Mapping[str, Whole]
    diagnosis: tuple[Mapping[str, Any], ...]  # what a later look at these weights found

    @property
    def doubts(self) -> tuple[str, ...]:
        """What speaks against any of the numbers, in words."""
        return doubts([r for s in self.suites for r in s.results.values()], self.diagnosis)

    def clean(self, dataset: str) -> Result | None:
        """The clean images of the whole test set of a data set."""
        for suite in self.suites:
            if suite.dataset == dataset and CLEAN in suite.results and not self.why_partial(suite):
                return suite.results[CLEAN]
        return None

    def why_partial(self, suite: SuiteView) -> str:
        """Why a suite's numbers are not about the whole test set; empty if they are."""
        if suite.split != TEST:
            return f"it is about the {suite.split or 'unknown'} split, not about the test images"
        whole = self.tests[suite.dataset]
        if not whole.fingerprint:
            return (
                f"the test images of {shown_dataset(suite.dataset)} are not on this machine, so it "
                "could not be checked that all of them were attacked"
            )
        seen = len(suite.survived)
        if seen != whole.images or about(suite).get("data") != whole.fingerprint:
            return f"it saw {seen} images, and not exactly the {whole.images} of the test set"
        return ""


def measure(run: Run, weights: str, progress: Progress) -> Measured:
    """All numbers of a run that were measured on the weights with this digest."""
    found = [s for s in read_suites(run, run.path.name) if s.results or s.unreadable]
    suites = tuple(s for s in found if s.results and about(s).get("weights") == weights)
    others = [s.suite for s in found if s.results and s not in suites]
    refused = [f"suite {name} was measured on other weights of this run" for name in others]
    refused += [reason for s in suites for reason in s.unreadable.values()]
    return Measured(
        suites=suites,
        refused=tuple(refused),
        tests=whole_tests({s.dataset for s in suites if s.split == TEST}, progress),
        diagnosis=tuple(diagnosis(run, weights)),
    )


def whole_tests(names: Iterable[str], progress: Progress) -> dict[str, Whole]:
    found = {}
    for name in sorted(names):
        try:
            data = load_dataset(name, TEST, progress=progress)
        except (ButtressError, OSError):  # a data set that is not here hinders no export
            found[name] = Whole()
        else:
            found[name] = Whole(data.fingerprint(), len(data))
    return found


def about(suite: SuiteView) -> Mapping[str, Any]:
    """How the first record of a suite was made; weights and data are those of all."""
    return next(iter(suite.results.values())).made


def doubts(
    results: Iterable[Result], diagnosis: Iterable[Mapping[str, Any]] = ()
) -> tuple[str, ...]:
    """Every warning and finding of some records and of a diagnosis, once."""
    texts = [t for r in results for t in (*r.warnings, *said(findings(r.made)))]
    return tuple(dict.fromkeys([*texts, *said(diagnosis)]))


def is_doubtful(result: Result) -> bool:
    """Whether a record is marked as not to be trusted.

    Findings have a severity; where a record has none of them, each warning counts, to be safe.
    """
    if "findings" in result.made:
        return any(map(is_severe, findings(result.made)))
    return bool(result.warnings)


def diagnosis(run: Run, weights: str) -> list[Mapping[str, Any]]:
    """What a later diagnosis of the run found, if it is of these weights."""
    try:
        content = read_json(Path(run.analysis_file("doctor")))
    except (ButtressError, OSError):
        return []
    inner = content.get("result")
    if not isinstance(inner, Mapping) or inner.get("weights") != weights:
        return []
    return findings(inner)


def findings(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = content.get("findings")
    return [f for f in found if isinstance(f, Mapping)] if isinstance(found, list) else []


def said(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """What findings warn of, in words; notes warn of nothing."""
    grave = [f for f in found if f.get("severity") != "note"]
    return ["; ".join(str(f[k]) for k in ("said", "remedy") if f.get(k)) for f in grave]


def is_severe(finding: Mapping[str, Any]) -> bool:
    return finding.get("severity") == UNTRUSTWORTHY


def shown_dataset(name: str) -> str:
    """The name of a data set without the folders of this machine."""
    kind, sep, path = name.partition(":")
    return f"{kind}:{Path(path).name}" if sep else name
