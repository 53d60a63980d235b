"""Attacks that do not trust the model's gradients, on images robust to gradient-based attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from buttress.attacks.core import ATTACKS, create_attack
from buttress.attacks.random_search import RandomSearch
from buttress.attacks.square.attack import Square
from buttress.evaluation.check_budget import CheckBudget
from buttress.evaluation.doctor.attack_results import transfer_contradicts
from buttress.evaluation.doctor.core import ModelUnderTest, run_checks
from buttress.evaluation.run_entry import EvaluationJob, load_source_models, run_suite_entry
from buttress.evaluation.smoothed_copy import COPY_IMAGES, GradientComparison, compare_with_copy
from buttress.evaluation.suite import SuiteEntry
from buttress.models.cost import count_passes
from buttress.results.attack_record import AttackRecord
from buttress.results.diagnosis import UNTRUSTWORTHY, Finding
from buttress.system.progress import Progress, SilentProgress
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import Norm, NormBall

SAMPLE_FRACTION = 0.25  # of the robust images get a few queries ...
SAMPLE_QUERIES = 50
FULL_QUERIES = 1000  # ... and all of them, with many, if that fools some of the sample:
MIN_FOOLED_SAMPLES = 2
MIN_FOOLED_FRACTION = 0.05  # of the sample; honest models stay below it in tests
MISMATCH, SHATTERED = "gradient_mismatch", "shattered_gradient"
GRADIENT_CHECKS = (
    "loss_does_not_increase",
    "robust_at_any_eps",
    MISMATCH,
    SHATTERED,
    "gradient_mode_dependent_outputs",
    "no_gradient_path",
    "zero_gradient",
)  # their findings say that gradient-based attacks fail


MIN_CHECKED_EPS = 0.1  # of the default eps of the dataset: smaller attacks are not checked
TRANSFER_ARGS = {"loss": "margin", "schedule": "cosine", "rel_step": 2.0}
TRANSFER_STEPS, SAMPLE_TRANSFER_STEPS = 20, 10  # the second with the gradients of the model


class AttackChecks:
    """Checks that attack a few images, once per norm; in Linf for other threat models.

    ``entries`` are the names of those that are checked: the last gradient-based attack of each
    threat model. What checks of the model took, ``model_passes``, and the comparison with a copy
    are paid from the budget of the first.
    """

    def __init__(
        self, subject: ModelUnderTest, entries: Sequence[SuiteEntry], model_passes: int = 0
    ) -> None:
        self.subject, self.model_passes = subject, model_passes
        last_of_threat: dict[str, SuiteEntry] = {}
        for entry in entries:
            if entry.threat is not None:
                attack = create_attack(entry.attack, **load_source_models(entry.args))
                if any(s.needs_grad for s in attack.stages(entry.threat, subject.data.num_classes)):
                    last_of_threat[str(entry.threat)] = entry
        checked = [entry for entry in entries if entry in last_of_threat.values()]
        self.entries = [entry.name for entry in checked]
        self._first_of_norm: dict[Norm, tuple[SuiteEntry, NormBall]] = {}
        for entry in checked:
            ball = self._checked_ball(entry)
            self._first_of_norm.setdefault(ball.norm, (entry, ball))
        self._findings: dict[Norm, tuple[list[Finding], int]] = {}

    @cached_property
    def comparison(self) -> GradientComparison:
        """The gradients of a smoothed copy and those of the model."""
        return compare_with_copy(self.subject)

    def comparison_for(self, entry: SuiteEntry, findings: Sequence[Finding]) -> GradientComparison:
        """The comparison for an entry; gradients that are right but shattered are averaged."""
        names = {f.check for f in findings}
        is_wrong = MISMATCH in names or self.comparison.has_other_gradients
        if is_wrong or SHATTERED not in names:
            return self.comparison
        return self.comparison.averaged(self._checked_ball(entry), self.subject.x[0].numel())

    def budget(self, entry: SuiteEntry, records: Sequence[AttackRecord]) -> CheckBudget:
        """The budget of an entry, from the records of the attacks on its threat model."""
        spent = 0
        if entry.name == self.entries[0]:
            spent = self.model_passes + self.comparison.passes
        attacks = [r for r in records if r.metadata.get("threat") == str(entry.threat)]
        return CheckBudget.of_records(attacks, spent)

    def run(self, entry: SuiteEntry, records: Sequence[AttackRecord]) -> tuple[list[Finding], int]:
        """The findings in the norm of an entry, and the passes of single images.

        Each pass counts for the first entry that needs it, whose eps and budget are those of the
        checks, also if an evaluation resumes behind it.
        """
        passes = self.comparison.passes if entry.name == self.entries[0] else 0
        if self.subject.is_black_box:
            return [], passes
        first, ball = self._first_of_norm[self._checked_ball(entry).norm]
        if ball.norm not in self._findings:
            names = [r.name for r in records]
            budget = self.budget(first, records[: names.index(first.name) + 1])
            images = range(min(budget.check_images, len(self.subject.data)))
            subject = replace(self.subject, threat=ball, data=self.subject.data.select(images))
            with count_passes(subject.model) as counter:
                findings = run_checks(subject, "attack")
            self._findings[ball.norm] = findings, counter.total
        findings, check_passes = self._findings[ball.norm]
        return findings, passes + (check_passes if entry.name == first.name else 0)

    def _checked_ball(self, entry: SuiteEntry) -> NormBall:
        """The perturbation set of the checks; with almost no eps they say nothing on gradients."""
        budgets, threat = self.subject.data.budgets, entry.threat
        if not isinstance(threat, NormBall):
            return NormBall("Linf", budgets["Linf"])
        too_small = threat.eps < MIN_CHECKED_EPS * budgets[threat.norm]
        return NormBall(threat.norm, budgets[threat.norm]) if too_small else threat


def cross_check(
    job: EvaluationJob,
    entry: SuiteEntry,
    record: AttackRecord,
    findings: Sequence[Finding],
    comparison: GradientComparison,
    transfer_images: int,
    progress: Progress,
) -> AttackRecord:
    """Add the images that cross-checks fool to the metadata of a record (``cross_check``).

    First on a sample of the robust images: examples of the smoothed copy, on at most
    ``transfer_images`` if its gradients are those of the model, and a few queries, if the attack
    makes none of its own. If these fool some, or gradients are found to be wrong, on all of them,
    with many queries.
    """
    check = RobustImages(job, entry, record, comparison)
    is_suspicious = any(
        f.severity == UNTRUSTWORTHY and f.check in GRADIENT_CHECKS for f in findings
    )
    if not is_suspicious:
        rng = SampleRNG(job.seed, "cross-check", torch.tensor(record.ids))
        draws = rng.draw_uniform(torch.empty(len(record), 1))[:, 0].numpy()
        sample = check.robust & (draws < SAMPLE_FRACTION)
        if comparison.has_other_gradients:
            check.transfer(sample, TRANSFER_STEPS, SilentProgress())
        else:
            few = _first_of(check.robust, draws, transfer_images)
            check.transfer(few, SAMPLE_TRANSFER_STEPS, SilentProgress())
        if not check.attack_makes_queries:
            check.query(sample, SAMPLE_QUERIES, SilentProgress())
        images = max(int(sample.sum()), int(check.transferred.sum()))
        is_suspicious = check.fooled.sum() >= max(MIN_FOOLED_SAMPLES, MIN_FOOLED_FRACTION * images)
    if is_suspicious:
        if comparison.has_other_gradients:
            check.transfer(check.robust, TRANSFER_STEPS, progress)
        check.query(check.robust, FULL_QUERIES, progress)
    return replace(record, metadata={**record.metadata, "cross_check": check.summary()})


def _first_of(mask: NDArray[np.bool_], draws: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """A random sample of at most ``count`` images, and of at most the usual fraction of many."""
    total = int(mask.sum())
    count = min(count, max(COPY_IMAGES, int(SAMPLE_FRACTION * total)), total)
    chosen = np.zeros_like(mask)
    chosen[np.argsort(np.where(mask, draws, np.inf), kind="stable")[:count]] = True
    return chosen


class RobustImages:
    """The robust images of a record under attacks that do not trust the model's gradients."""

    def __init__(
        self,
        job: EvaluationJob,
        entry: SuiteEntry,
        record: AttackRecord,
        comparison: GradientComparison,
    ) -> None:
        assert entry.threat is not None
        self.job, self.entry, self.threat, self.record = job, entry, entry.threat, record
        self.comparison = comparison
        self.transfer_contradicts = transfer_contradicts(
            ATTACKS.entry(entry.attack).tags, {"copy_gradients": comparison.summary}
        )
        attack = create_attack(entry.attack, **load_source_models(entry.args))
        self.eot_samples = attack.eot_samples
        stages = attack.stages(entry.threat, job.data.num_classes)
        self.attack_makes_queries = any(isinstance(s, Square | RandomSearch) for s in stages)
        self.robust = record.scores > 0  # in some draw of a randomized model
        self.fooled = np.zeros(len(record), dtype=np.bool_)
        self.fooled_by_transfer = self.fooled.copy()
        self.queries, self.queried, self.transferred = 0, self.fooled.copy(), self.fooled.copy()
        self.forward_passes, self.copy_passes = 0.0, 0

    def transfer(self, mask: NDArray[np.bool_], steps: int, progress: Progress) -> None:
        """Attack the smoothed copy on images not attacked so, and try its examples."""
        copy = self.comparison.copy
        if copy is None:
            return
        mask = mask & ~self.fooled & ~self.transferred
        self.transferred |= mask
        attack_args = {"steps": steps, **TRANSFER_ARGS}
        args = {"sources": [self.comparison.source], "attack": "pgd", "args": attack_args}
        with count_passes(copy) as passes:
            fooled = self._attack(mask, "transfer", args, progress)
        self.fooled_by_transfer |= fooled
        if self.transfer_contradicts:
            self.fooled |= fooled
        self.copy_passes += passes.total

    def query(self, mask: NDArray[np.bool_], queries: int, progress: Progress) -> None:
        self.queries, self.queried = queries, self.queried | mask
        name = "square" if Square.supports(self.threat) else "random_search"
        self.fooled |= self._attack(mask & ~self.fooled, name, {"queries": queries}, progress)

    def _attack(
        self, mask: NDArray[np.bool_], name: str, args: Mapping[str, Any], progress: Progress
    ) -> NDArray[np.bool_]:
        """The images of ``mask`` that an attack fools."""
        fooled = np.zeros_like(mask)
        if not mask.any():
            return fooled
        args = {**args, "eot_samples": self.eot_samples}
        check = SuiteEntry(f"{self.entry.name}, cross-check", name, self.threat, args)
        positions = np.flatnonzero(mask)
        job = replace(self.job, data=self.job.data.select(positions.tolist()))
        record = run_suite_entry(job, check, np.ones(len(positions), dtype=np.bool_), progress)
        self.forward_passes += float(record.metadata["forward_passes"]) * len(record)
        fooled[positions[record.scores == 0]] = True
        return fooled

    def summary(self) -> dict[str, Any]:
        ids, count = self.record.ids, max(1, len(self.record))
        return {
            "copy_gradients": self.comparison.summary,
            "queries": self.queries,
            "images": int(self.queried.sum()),
            "fooled_ids": ids[self.fooled].tolist(),
            "transfer_images": int(self.transferred.sum()),
            "transfer_fooled_ids": ids[self.fooled_by_transfer].tolist(),
            "forward_passes": round(self.forward_passes / count, 3),
            "copy_passes": round(self.copy_passes / count, 3),
        }
