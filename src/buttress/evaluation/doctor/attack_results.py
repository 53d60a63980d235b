"""Checks on records: disagreements between weak and strong attacks, chance accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from buttress.data.corruptions import CORRUPTIONS
from buttress.data.corruptions.frost import PHOTOGRAPH_VARIANT
from buttress.evaluation.doctor.core import (
    CHECKS,
    AttackRecords,
    CheckFunction,
    attack_tags,
    make_finding,
    with_attack_tags,
)
from buttress.results.attack_record import OTHER_GRADIENTS, AttackRecord, uses_official_images
from buttress.results.diagnosis import Finding, FindingSeverity

MIN_ONE_STEP_RATIO = 0.5  # of clean accuracy: robust accuracy under one step is at least this ...
MAX_STRONG_RATIO = 0.2  # ... and under a strong attack at most this fraction of it
MIN_ACCURACY_GAP = 0.1  # of all images: models without masking stay below it in tests


@CHECKS.register("catastrophic_overfitting", tags=("records",), paper="arXiv:2001.03994")
def catastrophic_overfitting(records: AttackRecords) -> Finding | None:
    """Robust accuracy is high under one-step and near zero under multi-step attacks.

    An ensemble is compared only where no attack with one loss and many steps was run: it may fool
    what neither one nor many steps do, also in an honest model.
    """
    clean = records.clean
    for threat, group in records.by_threat.items():
        if threat.startswith("L1"):  # one step in L1 is weak against every model
            continue
        step = _highest_accuracy(with_attack_tags(group, "one_step"))
        strong = _lowest_accuracy(
            with_attack_tags(group, "iterative") or with_attack_tags(group, "ensemble")
        )
        if clean is None or step is None or strong is None or not clean.correct.any():
            continue
        if (
            step.accuracy < MIN_ONE_STEP_RATIO * clean.accuracy
            or strong.accuracy > MAX_STRONG_RATIO * step.accuracy
        ):
            continue
        return make_finding(
            catastrophic_overfitting,
            "untrustworthy",
            f"catastrophic overfitting: robust accuracy is {step.accuracy:.1%} under {step.name}, "
            f"but {strong.accuracy:.1%} under {strong.name} ({threat}); the model is robust to "
            "single-step attacks only",
            "do not report single-step robust accuracy; train with more attack steps or "
            "on_collapse: rollback",
            {"one_step": step.accuracy, "strong": strong.accuracy, "clean": clean.accuracy},
        )
    return None


@CHECKS.register("weak_attack", tags=("records",), paper="arXiv:2003.01690")
def weak_attack(records: AttackRecords) -> Finding | None:
    """Robust accuracy under PGD is far above that under an ensemble."""
    for threat, group in records.by_threat.items():
        iterative = _highest_accuracy(
            [r for r in with_attack_tags(group, "white_box") if "iterative" in attack_tags(r)]
        )
        strong = _lowest_accuracy(with_attack_tags(group, "ensemble"))
        if (
            iterative is None
            or strong is None
            or iterative.accuracy - strong.accuracy < MIN_ACCURACY_GAP
        ):
            continue
        return make_finding(
            weak_attack,
            "warning",
            f"robust accuracy is {iterative.accuracy:.1%} under {iterative.name}, but "
            f"{strong.accuracy:.1%} under {strong.name} ({threat}): {iterative.name} "
            "overestimates robustness",
            "report the robust accuracy under the ensemble, or in the worst case",
            {"iterative": iterative.accuracy, "strong": strong.accuracy},
        )
    return None


def _highest_accuracy(records: list[AttackRecord]) -> AttackRecord | None:
    return max(records, key=lambda r: r.accuracy, default=None)


def _lowest_accuracy(records: list[AttackRecord]) -> AttackRecord | None:
    return min(records, key=lambda r: r.accuracy, default=None)


MIN_QUERIED = 2  # images that queries fool after gradient-based attacks
MIN_FOOLED = 3  # images: one or two may be chance
MIN_FRACTION = 0.01  # of all images: models without masking stay below it in tests
# Of all images: more than attacks of different strength usually differ.
UNTRUSTWORTHY_FRACTION = 0.05
# Of all images: AutoAttack's own threshold for Square after three other attacks.
SQUARE_FRACTION = 0.002


@CHECKS.register("black_box_beats_white_box", tags=("records",), paper="arXiv:1802.00420")
def black_box_beats_white_box(records: AttackRecords) -> Finding | None:
    """A black-box attack fools images that are robust to gradient-based attacks."""
    findings = _square_in_ensembles(records)
    for threat, group in records.by_threat.items():
        strong = _gradient_attacks(group)
        weak = [
            r for r in with_attack_tags(group, "black_box") if r.metadata.get("attack") != "noise"
        ]
        findings.append(_weaker_beats_stronger(black_box_beats_white_box, threat, strong, weak))
    return _most_severe(findings)


@CHECKS.register("one_step_beats_many", tags=("records",), paper="arXiv:1802.00420")
def one_step_beats_many(records: AttackRecords) -> Finding | None:
    """A one-step attack fools images that are robust to multi-step attacks."""
    findings = []
    for threat, group in records.by_threat.items():
        strong, weak = _gradient_attacks(group), with_attack_tags(group, "one_step")
        findings.append(_weaker_beats_stronger(one_step_beats_many, threat, strong, weak))
    return _most_severe(findings)


@CHECKS.register("noise_beats_gradients", tags=("records",), paper="arXiv:1902.06705")
def noise_beats_gradients(records: AttackRecords) -> Finding | None:
    """Random noise fools images that are robust to gradient-based attacks."""
    findings = []
    for threat, group in records.by_threat.items():
        weak = [r for r in group if r.metadata["attack"] == "noise"]
        strong = _gradient_attacks(group)
        findings.append(_weaker_beats_stronger(noise_beats_gradients, threat, strong, weak))
    return _most_severe(findings)


def _gradient_attacks(group: Sequence[AttackRecord]) -> list[AttackRecord]:
    """Records of multi-step white-box attacks."""
    return [r for r in with_attack_tags(group, "white_box") if "one_step" not in attack_tags(r)]


def _weaker_beats_stronger(
    check: CheckFunction, threat: str, strong: Sequence[AttackRecord], weak: Sequence[AttackRecord]
) -> Finding | None:
    if not strong or not weak:
        return None
    is_robust = np.logical_and.reduce([r.correct for r in strong])
    fooled = is_robust & np.logical_or.reduce([r.scores == 0 for r in weak])
    count, n = int(fooled.sum()), len(is_robust)
    if count < MIN_FOOLED or count < MIN_FRACTION * n:
        return None
    names = [", ".join(r.name for r in records) for records in (weak, strong)]
    return _order_finding(check, threat, names, count, n)


def _order_finding(
    check: CheckFunction, threat: str, names: Sequence[str], count: int, n: int
) -> Finding:
    weak, strong = names
    severity: FindingSeverity = (
        "untrustworthy" if count >= UNTRUSTWORTHY_FRACTION * n else "warning"
    )
    return make_finding(
        check,
        severity,
        f"{weak} fools {count} of {n} images that are robust to {strong} ({threat}): gradients are "
        f"masked or {strong} is too weak, so its robust accuracy is overestimated",
        "report the worst-case robust accuracy, use a stronger suite (fast, autoattack), and look "
        "for randomness, rounding or saturation in the model",
        {"fooled": count, "images": n, "fraction": count / n, "weak": weak, "strong": strong},
    )


def _square_in_ensembles(records: AttackRecords) -> list[Finding | None]:
    """Findings on images that only Square fooled in an ensemble, from the stage counts."""
    findings: list[Finding | None] = []
    for record in with_attack_tags(records.records, "ensemble"):
        stages, n = record.metadata.get("stages") or [], len(record)
        square_stages = [stage for stage in stages[1:] if stage[0] == "square"]
        if not square_stages:
            continue
        (name, attacked, skipped), first_stage = square_stages[0], stages[0][0]
        count = attacked + skipped - int(record.correct.sum())
        if count >= max(MIN_FOOLED, SQUARE_FRACTION * n):
            names = f"{name} in {record.name}", f"{first_stage} and the other stages before it"
            threat = str(record.metadata.get("threat", ""))
            findings.append(_order_finding(black_box_beats_white_box, threat, names, count, n))
    return findings


def _most_severe(findings: Sequence[Finding | None]) -> Finding | None:
    present = [f for f in findings if f is not None]
    return max(present, key=lambda f: float(f.evidence["fraction"])) if present else None


@CHECKS.register("queries_beat_gradients", tags=("records",), paper="arXiv:1902.06705")
def queries_beat_gradients(records: AttackRecords) -> Finding | None:
    """A few queries of Square fool images that are robust to gradient-based attacks."""
    record = records.records[-1] if records.records else None  # each is checked when it is the last
    summary = {} if record is None else record.metadata.get("cross_check") or {}
    count = len({*summary.get("fooled_ids", ())} - {*summary.get("transfer_fooled_ids", ())})
    images = int(summary.get("images", 0))
    if record is None or count < MIN_QUERIED or count < UNTRUSTWORTHY_FRACTION * images:
        return None
    return make_finding(
        queries_beat_gradients,
        "untrustworthy",
        f"{summary['queries']} queries of square fool {count} of {images} images that are robust "
        f"to {record.name}: its robust accuracy is overestimated; worst-case robust accuracy "
        "counts them as fooled",
        "use a stronger suite (fast, autoattack), and look for randomness, rounding, saturation or "
        "a wrong gradient in the model",
        {"fooled": count, "images": images, "queries": int(summary["queries"])},
    )


@CHECKS.register("transfer_beats_gradients", tags=("records",), paper="arXiv:1802.00420")
def transfer_beats_gradients(records: AttackRecords) -> Finding | None:
    """Examples of a smoothed copy of the model fool images robust to gradient-based attacks."""
    record = records.records[-1] if records.records else None  # each is checked when it is the last
    summary = {} if record is None else record.metadata.get("cross_check") or {}
    count = len(summary.get("transfer_fooled_ids", ()))
    images = int(summary.get("transfer_images", 0))
    if record is None or count < MIN_QUERIED or count < UNTRUSTWORTHY_FRACTION * images:
        return None
    contradicts = transfer_contradicts(attack_tags(record), summary)
    cause = (
        "the gradients of the model are not those of its operations"
        if contradicts
        else ("the attack is weak")
    )
    return make_finding(
        transfer_beats_gradients,
        "untrustworthy" if contradicts else "note",
        f"examples of a smoothed copy of the model fool {count} of {images} images that are robust "
        f"to {record.name}: {cause}, and robust accuracy is overestimated"
        f"{'; worst-case robust accuracy counts these images as fooled' if contradicts else ''}",
        "look for rounding, clamping, detach() or a backward pass of its own in the model"
        if contradicts
        else "use a stronger suite (fast, autoattack)",
        {"fooled": count, "images": images},
    )


def transfer_contradicts(tags: Sequence[str], summary: Mapping[str, Any]) -> bool:
    """Whether examples of a copy that fool a model mean that its gradients are wrong.

    With the gradients of the model they are those of ten more steps, which a weak attack does not
    make; ensembles make many more.
    """
    return summary.get("copy_gradients") == OTHER_GRADIENTS or "ensemble" in tags


@CHECKS.register("nonfinite_under_attack", tags=("records",), paper="arXiv:1902.06705")
def nonfinite_under_attack(records: AttackRecords) -> Finding | None:
    """Outputs, losses or gradients are not finite under an attack."""
    record = records.records[-1] if records.records else None  # each is checked when it is the last
    if record is None or not record.metadata.get("threat"):
        return None
    outputs, values = (
        int(record.metadata.get(key, 0)) for key in ("nonfinite_outputs", "nonfinite_images")
    )
    count, n = max(outputs, values), len(record)
    if not count:
        return None
    return make_finding(
        nonfinite_under_attack,
        "untrustworthy" if count >= UNTRUSTWORTHY_FRACTION * n else "warning",
        f"under {record.name} the outputs of {outputs} of {n} images are not finite, and losses or "
        f"gradients of {values}: such outputs count as fooled, and gradient steps fail there",
        "look for a division by zero, a logarithm of zero or an overflow in the model",
        {"outputs": outputs, "losses_or_gradients": values, "images": n},
    )


CHANCE_FACTOR = 1.5  # times chance level, as in the guard of training
MIN_CLEAN_IMAGES = 50  # images: with fewer, chance explains much


@CHECKS.register("near_chance_accuracy", tags=("records",))
def near_chance_accuracy(records: AttackRecords) -> Finding | None:
    """Clean accuracy is close to chance level."""
    clean = records.clean
    classes = len((clean.metadata.get("class_names") if clean is not None else None) or ())
    if clean is None or classes < 2 or len(clean) < MIN_CLEAN_IMAGES:
        return None
    if clean.accuracy > min(CHANCE_FACTOR / classes, 1 / classes + 0.05):
        return None
    return make_finding(
        near_chance_accuracy,
        "warning",
        f"clean accuracy is {clean.accuracy:.1%}; chance level is {1 / classes:.1%}",
        "check that the weights were loaded, that the label order matches training and that image "
        "size and range are right",
        {"accuracy": clean.accuracy, "chance_accuracy": 1 / classes, "images": len(clean)},
    )


@CHECKS.register("unofficial_corruptions", tags=("records",), paper="arXiv:1903.12261")
def unofficial_corruptions(records: AttackRecords) -> Finding | None:
    """Corrupted images are not generated as in the published dataset."""
    record = (
        records.records[-1] if records.records else None
    )  # each record is checked when it is the last
    if record is None or not record.is_corruption or uses_official_images(record):
        return None
    name = str(record.metadata["args"]["corruption"])
    reason = CORRUPTIONS.entry(name).metadata.get("note") if name in CORRUPTIONS else None
    source = str(record.metadata.get("corruption_source", ""))
    if reason is None or source.endswith(f" {PHOTOGRAPH_VARIANT}"):
        return None
    return make_finding(
        unofficial_corruptions,
        "note",
        f"{name} is not generated as in the published dataset ({reason})",
        "compare it with accuracies on generated images only, or install the photographs (`pip "
        "install --no-deps imagecorruptions`), or put the official images into the cache",
        {"corruption": name},
    )
