"""Queries that do not trust gradients, on images that are robust to gradient-based attacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from buttress.attacks.core import create_attack
from buttress.attacks.random_search import RandomSearch
from buttress.attacks.square.attack import Square
from buttress.evaluation.run_entry import EvaluationJob, run_suite_entry
from buttress.evaluation.suite import SuiteEntry
from buttress.results.attack_record import AttackRecord
from buttress.results.diagnosis import UNTRUSTWORTHY, Finding
from buttress.system.progress import Progress, SilentProgress
from buttress.system.rng import SampleRNG

SAMPLE_FRACTION = 0.25  # of the robust images get a few queries ...
SAMPLE_QUERIES = 50
FULL_QUERIES = 1000  # ... and all of them many, if the few fool some of the sample:
MIN_FOOLED_SAMPLES = 2
MIN_FOOLED_FRACTION = 0.05  # of the sample; honest models stay below it in tests
GRADIENT_CHECKS = (
    "loss_does_not_increase",
    "robust_at_any_eps",
    "gradient_mismatch",
    "gradient_mode_dependent_outputs",
    "no_gradient_path",
    "zero_gradient",
)  # their findings say that gradient-based attacks fail


def queried_entries(entries: Sequence[SuiteEntry], num_classes: int) -> set[str]:
    """The entries that are cross-checked: the last gradient-based attack of each threat model."""
    last_of_threat: dict[str, str] = {}
    for entry in entries:
        if entry.threat is not None:
            attack = create_attack(entry.attack, **entry.args)
            if any(stage.needs_grad for stage in attack.stages(entry.threat, num_classes)):
                last_of_threat[str(entry.threat)] = entry.name
    return set(last_of_threat.values())


def cross_check(
    job: EvaluationJob,
    entry: SuiteEntry,
    record: AttackRecord,
    findings: Sequence[Finding],
    progress: Progress,
) -> AttackRecord:
    """Add the images that queries fool to the metadata of a record (``cross_check``).

    An attack that makes queries of its own is checked only if gradients are found to be wrong.
    """
    assert entry.threat is not None
    stages = create_attack(entry.attack, **entry.args).stages(entry.threat, job.data.num_classes)
    makes_queries = any(isinstance(stage, Square | RandomSearch) for stage in stages)
    is_suspicious = any(
        f.severity == UNTRUSTWORTHY and f.check in GRADIENT_CHECKS for f in findings
    )
    fooled, queries, images, passes = np.zeros(len(record), dtype=np.bool_), 0, 0, 0.0
    if not makes_queries and not is_suspicious:
        rng = SampleRNG(job.seed, "cross-check", torch.from_numpy(record.ids))
        is_sampled = rng.draw_uniform(torch.empty(len(record), 1))[:, 0] < SAMPLE_FRACTION
        mask, queries = (record.scores > 0) & is_sampled.numpy(), SAMPLE_QUERIES
        fooled, passes = _run_queries(job, entry, mask, queries, SilentProgress())
        images = int(mask.sum())
        is_suspicious = fooled.sum() >= max(MIN_FOOLED_SAMPLES, MIN_FOOLED_FRACTION * images)
    if is_suspicious:
        mask, queries = (record.scores > 0) & ~fooled, FULL_QUERIES
        fooled_by_all, all_passes = _run_queries(job, entry, mask, queries, progress)
        fooled, passes = fooled | fooled_by_all, passes + all_passes
        images = int((record.scores > 0).sum())
    summary = {
        "queries": queries,
        "images": images,
        "fooled_ids": record.ids[fooled].tolist(),
        "forward_passes": round(passes / max(1, len(record)), 3),
    }
    return replace(record, metadata={**record.metadata, "cross_check": summary})


def _run_queries(
    job: EvaluationJob,
    entry: SuiteEntry,
    mask: NDArray[np.bool_],
    queries: int,
    progress: Progress,
) -> tuple[NDArray[np.bool_], float]:
    """The images of ``mask`` that queries fool, and the passes of all images together."""
    if not mask.any():
        return np.zeros_like(mask), 0.0
    assert entry.threat is not None
    name = "square" if Square.supports(entry.threat) else "random_search"
    check = SuiteEntry(f"{entry.name}, cross-check", name, entry.threat, {"queries": queries})
    record = run_suite_entry(job, check, mask, progress)
    passes = float(record.metadata["forward_passes"]) * len(record)
    return mask & (record.scores == 0), passes
