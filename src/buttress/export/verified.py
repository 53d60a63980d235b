"""Results that were measured on exactly the weights that are exported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from buttress.data import load_dataset
from buttress.errors import ButtressError
from buttress.results.core import CLEAN
from buttress.results.diagnosis import Diagnosis, warning_texts
from buttress.results.evaluation import Evaluation, SuiteEntryResult
from buttress.results.run_results import RunResults
from buttress.results.run_spec import RunSpec
from buttress.system.progress import Progress

TEST_SPLIT = "test"


@dataclass(frozen=True)
class TestSet:
    """The whole test split of a dataset, as records identify it."""

    fingerprint: str = ""  # empty if the images are not available
    images: int = 0


@dataclass(frozen=True)
class VerifiedResults:
    """Evaluations of the exported weights, and the test sets they are compared with."""

    evaluations: tuple[Evaluation, ...]
    rejected: tuple[str, ...]  # records of other weights, and files that cannot be read
    test_sets: Mapping[str, TestSet]
    diagnosis: Diagnosis | None = None  # of these weights

    @property
    def warnings(self) -> tuple[str, ...]:
        """Every warning about the results, once."""
        texts = [text for e in self.evaluations for text in e.warnings]
        return tuple(dict.fromkeys([*texts, *self.doctor_warnings]))

    @property
    def doctor_warnings(self) -> list[str]:
        return warning_texts(self.diagnosis.findings) if self.diagnosis else []

    def clean_result(self, dataset: str) -> SuiteEntryResult | None:
        """Result on the clean images of the whole test split of a dataset."""
        for evaluation in self.evaluations:
            if (
                evaluation.dataset == dataset
                and CLEAN in evaluation.results
                and not self.why_incomplete(evaluation)
            ):
                return evaluation.results[CLEAN]
        return None

    def why_incomplete(self, evaluation: Evaluation) -> str:
        """Why an evaluation is not on the whole test set; empty if it is."""
        if evaluation.split != TEST_SPLIT:
            return f"evaluated on the {evaluation.split or 'unknown'} split, not on the test split"
        test_set = self.test_sets[evaluation.dataset]
        if not test_set.fingerprint:
            return (
                f"the test images of {public_dataset_name(evaluation.dataset)} are not available "
                "here, so it cannot be verified that all of them were evaluated"
            )
        fingerprint = evaluation.metadata.get("data_fingerprint")
        if len(evaluation) != test_set.images or fingerprint != test_set.fingerprint:
            return (
                f"evaluated {len(evaluation)} images, not exactly the {test_set.images} of the "
                "test split"
            )
        return ""


def read_verified_results(run: RunResults, weights: str, progress: Progress) -> VerifiedResults:
    """Collect the results that were measured on the weights with this digest."""
    usable = [e for e in run.evaluations if e.results]
    verified = tuple(e for e in usable if e.has_weights(weights))
    rejected = [
        f"suite {e.suite} was evaluated on other weights of this run"
        for e in usable
        if not e.has_weights(weights)
    ]
    rejected += [reason for e in verified for reason in e.unreadable.values()]
    datasets = {e.dataset for e in verified if e.split == TEST_SPLIT}
    is_diagnosed = run.diagnosis is not None and run.diagnosis.weights_digest == weights
    return VerifiedResults(
        verified,
        tuple(rejected),
        load_test_sets(datasets, run.spec, progress),
        run.diagnosis if is_diagnosed else None,
    )


def load_test_sets(names: Iterable[str], spec: RunSpec, progress: Progress) -> dict[str, TestSet]:
    """The test images of datasets, those of the run at the size of the run."""
    test_sets = {}
    for name in sorted(names):
        try:
            size = spec.image_size if name == spec.dataset else None
            data = load_dataset(name, TEST_SPLIT, image_size=size, progress=progress)
        except (ButtressError, OSError):  # a missing dataset does not prevent an export
            test_sets[name] = TestSet()
        else:
            test_sets[name] = TestSet(data.fingerprint(), len(data))
    return test_sets


def public_dataset_name(name: str) -> str:
    """Name of a dataset without local folders."""
    kind, sep, path = name.partition(":")
    return f"{kind}:{Path(path).name}" if sep else name
