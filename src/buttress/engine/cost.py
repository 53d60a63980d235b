"""The passes of an attack for one sample, as the attack declares them."""

from __future__ import annotations

from buttress.attacks.core import Attack
from buttress.models.cost import PassCount
from buttress.threats.norm_ball import Threat


def attack_passes(
    attack: Attack, threat: Threat, num_classes: int, *, expected: bool = False
) -> PassCount:
    """Passes for a sample that stays robust, with the clean prediction; others take fewer.

    With ``expected``, stages that an ensemble skips for most samples count by their usual fraction.
    The few queries of Square that are tried twice are not counted.
    """
    passes = PassCount(attack.eot_samples)
    for number, stage in enumerate(attack.stages(threat, num_classes)):
        fraction = attack.expected_fraction(number, threat.norm) if expected else 1.0
        passes += stage_passes(stage, threat, num_classes) * fraction
    return passes


def stage_passes(attack: Attack, threat: Threat, num_classes: int) -> PassCount:
    """Passes of all runs of a single attack."""
    num_runs = attack.num_runs(num_classes) * attack.eot_samples
    return attack.passes_per_run(threat.norm, num_classes) * num_runs
