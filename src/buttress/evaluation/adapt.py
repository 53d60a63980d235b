"""Attacks that are adapted to what the doctor found about a model (arXiv:2002.08347).

| finding | adaptation |
| --- | --- |
| the model is randomized | passes are averaged (EOT), scores are means over draws |
| gradients are masked | a surrogate in the backward pass (BPDA), else queries without gradients |
| the loss saturates | a loss of margins, towards each of the nearest classes |
| one output more than classes | a joint loss of classes and rejection (`detectors`) |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from buttress.engine.randomness import choose_eot_samples
from buttress.errors import UserError
from buttress.evaluation.doctor.core import ModelUnderTest
from buttress.evaluation.doctor.outputs import RANDOMNESS_CHECK
from buttress.evaluation.run_entry import EvaluationJob, run_suite_entry
from buttress.evaluation.suite import SuiteEntry
from buttress.models.surrogate import Surrogate
from buttress.results.attack_record import AttackRecord
from buttress.results.diagnosis import AdaptiveAttack, AdaptiveResult, Finding
from buttress.system.progress import Progress

MASKING_CHECKS = (
    "no_gradient_path", "zero_gradient", "gradient_mismatch", "shattered_gradient",
    "gradient_mode_dependent_outputs", "loss_does_not_increase", "robust_at_any_eps",
    "black_box_beats_white_box", "one_step_beats_many", "noise_beats_gradients",
    "nonfinite_outputs",
)  # fmt: skip
SATURATION_CHECKS = ("saturated_gradient", "outputs_are_probabilities")
BASELINES = ("pgd-20", "square-300", "noise")  # attacks of the doctor, the first that was run
MARGIN_STEPS, MARGIN_TARGETS = 40, 3
QUERIES = 2000


@dataclass
class Adaptation:
    """The adaptive attacks for some findings: their arguments and the reasons."""

    args: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    query_reasons: list[str] = field(default_factory=list)  # for queries; empty: none are made
    notes: list[str] = field(default_factory=list)


def propose_adaptation(
    subject: ModelUnderTest, findings: Sequence[Finding], surrogate: Any = None
) -> Adaptation | None:
    """What to change in an attack because of findings; None if none calls for anything.

    ``surrogate`` is the user's stand-in; without one the identity is tried.
    """
    names, adaptation = [finding.check for finding in findings], Adaptation()
    is_random = RANDOMNESS_CHECK in names
    masking = [n for n in names if n in MASKING_CHECKS and not (is_random and n in NOISE_CHECKS)]
    if is_random:
        count = choose_eot_samples(subject.model, subject.x, subject.y, subject.seed)
        adaptation.args["eot_samples"] = count
        adaptation.reasons.append(f"{count} passes averaged because of {RANDOMNESS_CHECK}")
    if masking or surrogate is not None:
        _choose_surrogate(adaptation, subject, masking, surrogate)
    saturation = [n for n in names if n in SATURATION_CHECKS]
    if saturation:
        adaptation.reasons.append(f"margin loss because of {', '.join(saturation)}")
    return adaptation if adaptation.reasons or adaptation.query_reasons else None


NOISE_CHECKS = ("gradient_mismatch", "shattered_gradient")  # follow from randomness alone


def _choose_surrogate(
    adaptation: Adaptation, subject: ModelUnderTest, masking: Sequence[str], surrogate: Any
) -> None:
    """A surrogate that gives gradients, or queries where there is none."""
    cause = f"because of {', '.join(masking)}" if masking else "as given"
    if surrogate is None and not subject.is_black_box:
        try:
            Surrogate.parse("identity").attach(subject.model, subject.x)
            surrogate = "identity"
        except UserError:
            adaptation.notes.append(
                "no preprocessing that stops gradients was found: a surrogate of your own "
                "(FILE.py:FUNCTION) may find more"
            )
    if surrogate is None:
        adaptation.query_reasons.append(f"{QUERIES} queries without gradients {cause}")
        return
    adaptation.args["surrogate"] = Surrogate.parse(surrogate)
    adaptation.reasons.append(f"surrogate {adaptation.args['surrogate']} {cause}")


def run_adaptive_attacks(
    adaptation: Adaptation,
    subject: ModelUnderTest,
    job: EvaluationJob,
    records: Iterable[AttackRecord],
    progress: Progress,
) -> AdaptiveResult:
    """Run the attacks of an adaptation on the images that no attack of the doctor fooled."""
    by_name = {record.name: record for record in records}
    baseline = by_name[next(name for name in BASELINES if name in by_name)]
    scores, attacks = np.minimum.reduce([r.scores for r in by_name.values()]), []
    worst_case_before = float(scores.mean())
    for entry, reasons in _adaptive_entries(adaptation, subject):
        record = run_suite_entry(job, entry, scores > 0, progress)
        scores = np.minimum(scores, record.scores)
        attacks.append(
            AdaptiveAttack(
                name=entry.name,
                attack=entry.attack,
                args=entry.stored_args,
                reasons=tuple(reasons),
                accuracy=float(scores.mean()),
            )
        )
    return AdaptiveResult(
        baseline=baseline.name,
        before=baseline.accuracy,
        worst_case_before=worst_case_before,
        attacks=tuple(attacks),
        draws=job.draws,
        notes=tuple(adaptation.notes),
    )


def margin_attack_args(subject: ModelUnderTest) -> dict[str, Any]:
    """Arguments of `pgd`: steps on the margin towards each of the nearest classes."""
    targets = min(MARGIN_TARGETS, subject.data.num_classes - 1)
    return {"steps": MARGIN_STEPS, "rel_step": 2.0, "schedule": "cosine", "loss": "margin",
            "target": "each", "targets": targets, "restarts": targets}  # fmt: skip


def _adaptive_entries(
    adaptation: Adaptation, subject: ModelUnderTest
) -> list[tuple[SuiteEntry, list[str]]]:
    """Targeted steps on the margin, unless gradients are useless, then queries."""
    entries: list[tuple[SuiteEntry, list[str]]] = []
    if adaptation.reasons and ("surrogate" in adaptation.args or not subject.is_black_box):
        args = {**margin_attack_args(subject), **adaptation.args}
        entry = SuiteEntry("adaptive-pgd", "pgd", subject.threat, args)
        entries.append((entry, adaptation.reasons))
    if adaptation.query_reasons:
        args = {k: v for k, v in adaptation.args.items() if k != "surrogate"}
        entry = SuiteEntry(
            "adaptive-square", "square", subject.threat, {"queries": QUERIES, **args}
        )
        entries.append((entry, adaptation.query_reasons))
    return entries
