"""Does an attack that should be weak break what stronger ones leave?

The signs of masked gradients in arXiv:1802.00420 and arXiv:1902.06705, read from verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from buttress.evaluation.doctor.core import CHECKS, Chart, Check, finding, tagged, tags_of
from buttress.records.diagnosis import Finding, Severity
from buttress.records.evaluation import AttackRecord

LEAST = 3  # images: one or two may be luck
SLIP = 0.01  # of all images: sound networks in the tests stay below it
GRAVE = 0.05  # of all images: more than attacks of different strength usually differ
ENSEMBLE = 0.002  # of all images: AutoAttack's own threshold for Square after three other attacks


@CHECKS.register("black_box_beats_white_box", tags=("records",), paper="arXiv:1802.00420")
def black_box_beats_white_box(chart: Chart) -> Finding | None:
    """A search without gradients breaks images that gradient attacks leave."""
    found = _ensembles(chart)
    for threat, group in chart.groups.items():
        strong = _gradient_attacks(group)
        weak = [r for r in tagged(group, "black_box") if r.meta.get("attack") != "noise"]
        found.append(_slipped(black_box_beats_white_box, threat, strong, weak))
    return _gravest(found)


@CHECKS.register("one_step_beats_many", tags=("records",), paper="arXiv:1802.00420")
def one_step_beats_many(chart: Chart) -> Finding | None:
    """One step breaks images that many steps leave."""
    found = []
    for threat, group in chart.groups.items():
        strong, weak = _gradient_attacks(group), tagged(group, "one_step")
        found.append(_slipped(one_step_beats_many, threat, strong, weak))
    return _gravest(found)


@CHECKS.register("noise_beats_gradients", tags=("records",), paper="arXiv:1902.06705")
def noise_beats_gradients(chart: Chart) -> Finding | None:
    """Random points break images that gradient attacks leave."""
    found = []
    for threat, group in chart.groups.items():
        weak = [r for r in group if r.meta["attack"] == "noise"]
        strong = _gradient_attacks(group)
        found.append(_slipped(noise_beats_gradients, threat, strong, weak))
    return _gravest(found)


def _gradient_attacks(group: Sequence[AttackRecord]) -> list[AttackRecord]:
    """Attacks of many steps along gradients, and of nothing else."""
    return [r for r in tagged(group, "white_box") if "one_step" not in tags_of(r)]


def _slipped(
    check: Check, threat: str, strong: Sequence[AttackRecord], weak: Sequence[AttackRecord]
) -> Finding | None:
    if not strong or not weak:
        return None
    left = np.logical_and.reduce([r.correct for r in strong])
    broken = left & ~np.logical_and.reduce([r.correct for r in weak])
    count, n = int(broken.sum()), len(left)
    if count < LEAST or count < SLIP * n:
        return None
    names = [", ".join(r.name for r in records) for records in (weak, strong)]
    return _said(check, threat, names, count, n)


def _said(check: Check, threat: str, names: Sequence[str], count: int, n: int) -> Finding:
    weak, strong = names
    severity: Severity = "untrustworthy" if count >= GRAVE * n else "warning"
    return finding(
        check,
        severity,
        f"{weak} breaks {count} of {n} images that {strong} leaves ({threat}): gradients are "
        "hidden or the gradient attack is too weak, so its number is too high",
        "use the worst case over all attacks, a stronger suite (fast, autoattack), and look for "
        "randomness, rounding or saturation in the model",
        {"broken": count, "images": n, "share": count / n, "weak": weak, "strong": strong},
    )


def _ensembles(chart: Chart) -> list[Finding | None]:
    """What square broke after the other parts of an ensemble, from the counts in its record."""
    found: list[Finding | None] = []
    for record in tagged(chart.records, "ensemble"):
        parts, n = record.meta.get("parts") or [], len(record)
        if len(parts) < 2 or parts[-1][0] != "square":
            continue
        (name, attacked, spared), before = parts[-1], parts[0][0]
        count = attacked + spared - int(record.correct.sum())
        if count >= max(LEAST, ENSEMBLE * n):
            names = f"{name} in {record.name}", f"{before} and the other parts before it"
            threat = str(record.meta.get("threat", ""))
            found.append(_said(black_box_beats_white_box, threat, names, count, n))
    return found


def _gravest(found: Sequence[Finding | None]) -> Finding | None:
    seen = [f for f in found if f is not None]
    return max(seen, key=lambda f: float(f.evidence["share"])) if seen else None
