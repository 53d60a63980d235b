"""Does a weak attack tell another story than a strong one?"""

from __future__ import annotations

from buttress.evaluation.doctor.core import CHECKS, Chart, finding, tagged, tags_of
from buttress.records.diagnosis import Finding
from buttress.records.evaluation import AttackRecord

HELD = 0.5  # of the images right without an attack: one step leaves at least this much ...
LOST = 0.2  # ... and a strong attack at most this much of what one step leaves
OVERSTATED = 0.1  # of all images: sound networks in the tests stay below it


@CHECKS.register("catastrophic_overfitting", tags=("records",), paper="arXiv:2001.03994")
def catastrophic_overfitting(chart: Chart) -> Finding | None:
    """One step leaves most images and many steps almost none: training learned to deceive it."""
    clean = chart.clean
    for threat, group in chart.groups.items():
        if threat.startswith("L1"):  # one step in L1 is weak against every model
            continue
        step = _weakest(tagged(group, "one_step"))
        strong = _strongest(tagged(group, "iterative", "ensemble"))
        if clean is None or step is None or strong is None or not clean.correct.any():
            continue
        if step.accuracy < HELD * clean.accuracy or strong.accuracy > LOST * step.accuracy:
            continue
        return finding(
            catastrophic_overfitting,
            "untrustworthy",
            f"catastrophic overfitting: {step.name} leaves {step.accuracy:.1%}, but {strong.name} "
            f"leaves {strong.accuracy:.1%} ({threat}); the model deceives attacks of one step",
            "do not report the accuracy under one step; train with more steps or "
            "on_collapse: rollback",
            {"one_step": step.accuracy, "strong": strong.accuracy, "clean": clean.accuracy},
        )
    return None


@CHECKS.register("weak_attack", tags=("records",), paper="arXiv:2003.01690")
def weak_attack(chart: Chart) -> Finding | None:
    """Plain steps leave far more than a strong ensemble does."""
    for threat, group in chart.groups.items():
        plain = _weakest([r for r in tagged(group, "white_box") if "iterative" in tags_of(r)])
        strong = _strongest(tagged(group, "ensemble"))
        if plain is None or strong is None or plain.accuracy - strong.accuracy < OVERSTATED:
            continue
        return finding(
            weak_attack,
            "warning",
            f"{plain.name} leaves {plain.accuracy:.1%}, but {strong.name} leaves "
            f"{strong.accuracy:.1%} ({threat}): the plain attack overstates the robustness",
            "report the strong attack, or the worst case",
            {"plain": plain.accuracy, "strong": strong.accuracy},
        )
    return None


def _weakest(records: list[AttackRecord]) -> AttackRecord | None:
    return max(records, key=lambda r: r.accuracy, default=None)


def _strongest(records: list[AttackRecord]) -> AttackRecord | None:
    return min(records, key=lambda r: r.accuracy, default=None)
