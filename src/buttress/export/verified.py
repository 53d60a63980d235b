"""Results that were measured on exactly the weights that are exported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buttress.data import load_dataset
from buttress.errors import ButtressError
from buttress.report.collect import suites as read_suites
from buttress.report.run_results import CLEAN, SuiteEntryResult, SuiteResults
from buttress.results.core import read_record_json
from buttress.results.run import Run
from buttress.system.progress import Progress

TEST_SPLIT = "test"
UNTRUSTWORTHY = "untrustworthy"


@dataclass(frozen=True)
class TestSet:
    """The whole test split of a dataset, as records identify it."""

    fingerprint: str = ""  # empty if the images are not available
    images: int = 0


@dataclass(frozen=True)
class VerifiedResults:
    suites: tuple[SuiteResults, ...]
    rejected: tuple[str, ...]  # records of other weights, and files that cannot be read
    test_sets: Mapping[str, TestSet]
    doctor_findings: tuple[Mapping[str, Any], ...]  # of a later diagnosis of these weights

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the results."""
        return doubts([r for s in self.suites for r in s.results.values()], self.doctor_findings)

    def clean_result(self, dataset: str) -> SuiteEntryResult | None:
        """Identify the whole test split of a dataset."""
        for suite in self.suites:
            if (
                suite.dataset == dataset
                and CLEAN in suite.results
                and not self.why_incomplete(suite)
            ):
                return suite.results[CLEAN]
        return None

    def why_incomplete(self, suite: SuiteResults) -> str:
        """Why an evaluation is not on the whole test set; empty if it is."""
        if suite.split != TEST_SPLIT:
            return f"evaluated on the {suite.split or 'unknown'} split, not on the test split"
        test_set = self.test_sets[suite.dataset]
        if not test_set.fingerprint:
            return (
                f"the test images of {public_dataset_name(suite.dataset)} are not available here, "
                "so it cannot be verified that all of them were evaluated"
            )
        images = len(suite.is_robust)
        if (
            images != test_set.images
            or about(suite).get("data_fingerprint") != test_set.fingerprint
        ):
            return f"evaluated {images} images, not exactly the {test_set.images} of the test split"
        return ""


def read_verified_results(run: Run, weights: str, progress: Progress) -> VerifiedResults:
    """Collect the results that were measured on the weights with this digest."""
    suites_read = [s for s in read_suites(run, run.path.name) if s.results or s.unreadable]
    suites = tuple(
        s for s in suites_read if s.results and about(s).get("weights_digest") == weights
    )
    other_suites = [s.suite for s in suites_read if s.results and s not in suites]
    refused = [f"suite {name} was evaluated on other weights of this run" for name in other_suites]
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
        except (ButtressError, OSError):  # a missing dataset does not prevent an export
            test_sets[name] = TestSet()
        else:
            test_sets[name] = TestSet(data.fingerprint(), len(data))
    return test_sets


def about(suite: SuiteResults) -> Mapping[str, Any]:
    """Metadata of the first record of a suite."""
    return next(iter(suite.results.values())).made


def doubts(
    results: Iterable[SuiteEntryResult], diagnosis: Iterable[Mapping[str, Any]] = ()
) -> tuple[str, ...]:
    """Every warning and finding of some records and of a diagnosis, once."""
    texts = [t for r in results for t in (*r.warnings, *said(findings(r.made)))]
    return tuple(dict.fromkeys([*texts, *said(diagnosis)]))


def is_doubtful(result: SuiteEntryResult) -> bool:
    """Whether a record is marked as not trustworthy.

    Findings have a severity; where a record has none of them, each warning counts, to be safe.
    """
    if "findings" in result.made:
        return any(map(is_severe, findings(result.made)))
    return bool(result.warnings)


def diagnosis(run: Run, weights: str) -> list[Mapping[str, Any]]:
    """Findings of the diagnosis of the run, if it is of these weights."""
    try:
        content = read_record_json(run.analysis_file("doctor"))
    except (ButtressError, OSError):
        return []
    inner = content.get("result")
    if not isinstance(inner, Mapping) or inner.get("weights_digest") != weights:
        return []
    return findings(inner)


def findings(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = content.get("findings")
    return [f for f in found if isinstance(f, Mapping)] if isinstance(found, list) else []


def said(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """Texts of the findings, without notes."""
    grave = [f for f in found if f.get("severity") != "note"]
    return ["; ".join(str(f[k]) for k in ("message", "remedy") if f.get(k)) for f in grave]


def is_severe(finding: Mapping[str, Any]) -> bool:
    return finding.get("severity") == UNTRUSTWORTHY


def public_dataset_name(name: str) -> str:
    """Name of a dataset without local folders."""
    kind, sep, path = name.partition(":")
    return f"{kind}:{Path(path).name}" if sep else name
