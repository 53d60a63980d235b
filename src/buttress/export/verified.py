"""What was measured on the very weights that are exported; nothing else may stand beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buttress.data import load_dataset
from buttress.errors import ButtressError
from buttress.report.collect import suites as read_suites
from buttress.report.run_results import CLEAN, SuiteEntryResult, SuiteResults
from buttress.results.run import Run
from buttress.system.files import read_json
from buttress.system.progress import Progress

TEST_SPLIT = "test"
UNTRUSTWORTHY = "untrustworthy"


@dataclass(frozen=True)
class TestSet:
    """The whole test split of a data set, as records name it."""

    fingerprint: str = ""  # empty where the images are not here
    images: int = 0


@dataclass(frozen=True)
class VerifiedResults:
    suites: tuple[SuiteResults, ...]
    rejected: tuple[str, ...]  # records of other weights, and files that cannot be read
    test_sets: Mapping[str, TestSet]
    doctor_findings: tuple[Mapping[str, Any], ...]  # what a later look at these weights found

    @property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against any of the numbers, in words."""
        return doubts([r for s in self.suites for r in s.results.values()], self.doctor_findings)

    def clean_result(self, dataset: str) -> SuiteEntryResult | None:
        """The clean images of the whole test set of a data set."""
        for suite in self.suites:
            if (
                suite.dataset == dataset
                and CLEAN in suite.results
                and not self.why_incomplete(suite)
            ):
                return suite.results[CLEAN]
        return None

    def why_incomplete(self, suite: SuiteResults) -> str:
        """Why a suite's numbers are not about the whole test set; empty if they are."""
        if suite.split != TEST_SPLIT:
            return f"it is about the {suite.split or 'unknown'} split, not about the test images"
        test_set = self.test_sets[suite.dataset]
        if not test_set.fingerprint:
            return (
                f"the test images of {public_dataset_name(suite.dataset)} are not on this machine, "
                "so it could not be checked that all of them were attacked"
            )
        images = len(suite.survived)
        if images != test_set.images or about(suite).get("data") != test_set.fingerprint:
            return f"it saw {images} images, and not exactly the {test_set.images} of the test set"
        return ""


def read_verified_results(run: Run, weights: str, progress: Progress) -> VerifiedResults:
    """All numbers of a run that were measured on the weights with this digest."""
    suites_read = [s for s in read_suites(run, run.path.name) if s.results or s.unreadable]
    suites = tuple(s for s in suites_read if s.results and about(s).get("weights") == weights)
    other_suites = [s.suite for s in suites_read if s.results and s not in suites]
    refused = [f"suite {name} was measured on other weights of this run" for name in other_suites]
    refused += [reason for s in suites for reason in s.unreadable.values()]
    return VerifiedResults(
        suites=suites,
        rejected=tuple(refused),
        test_sets=load_test_sets({s.dataset for s in suites if s.split == TEST_SPLIT}, progress),
        doctor_findings=tuple(diagnosis(run, weights)),
    )


def load_test_sets(names: Iterable[str], progress: Progress) -> dict[str, TestSet]:
    test_sets = {}
    for name in sorted(names):
        try:
            data = load_dataset(name, TEST_SPLIT, progress=progress)
        except (ButtressError, OSError):  # a data set that is not here hinders no export
            test_sets[name] = TestSet()
        else:
            test_sets[name] = TestSet(data.fingerprint(), len(data))
    return test_sets


def about(suite: SuiteResults) -> Mapping[str, Any]:
    """How the first record of a suite was made; weights and data are those of all."""
    return next(iter(suite.results.values())).made


def doubts(
    results: Iterable[SuiteEntryResult], diagnosis: Iterable[Mapping[str, Any]] = ()
) -> tuple[str, ...]:
    """Every warning and finding of some records and of a diagnosis, once."""
    texts = [t for r in results for t in (*r.warnings, *said(findings(r.made)))]
    return tuple(dict.fromkeys([*texts, *said(diagnosis)]))


def is_doubtful(result: SuiteEntryResult) -> bool:
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


def public_dataset_name(name: str) -> str:
    """The name of a data set without the folders of this machine."""
    kind, sep, path = name.partition(":")
    return f"{kind}:{Path(path).name}" if sep else name
