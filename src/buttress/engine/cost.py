"""The passes of an attack for one sample, as the attack declares them."""

from __future__ import annotations

from buttress.attacks.core import Attack
from buttress.models.cost import PassCount
from buttress.threats.core import Threat


def attack_passes(
    attack: Attack, threat: Threat, num_classes: int, *, expected: bool = False
) -> PassCount:
    """Passes for a sample that stays robust, with the clean prediction; others take fewer.

    With ``expected``, stages that an ensemble skips for most samples count by their usual fraction.
    The few queries of Square that are tried twice are not counted.
    """
    passes = PassCount(attack.eot_samples)
    for number, stage in enumerate(attack.stages(threat, num_classes)):
        fraction = attack.expected_fraction(number, threat.space) if expected else 1.0
        stage_fraction = fraction * stage_eot_samples(attack, stage)
        passes += stage_passes(stage, threat, num_classes) * stage_fraction
    return passes


def stage_passes(attack: Attack, threat: Threat, num_classes: int) -> PassCount:
    """Passes of all runs of a single attack, of `stage_eot_samples` one."""
    return attack.passes_per_run(threat.space, num_classes) * attack.num_runs(num_classes)


def stage_eot_samples(attack: Attack, stage: Attack) -> int:
    """Passes averaged at each point in a stage of an attack."""
    return max(attack.eot_samples, stage.eot_samples)
