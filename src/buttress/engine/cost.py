"""How many passes an attack takes for one image, known before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from buttress.attacks.core import ATTACKS, Attack
from buttress.threats.norm_ball import Threat


class PassEstimate(NamedTuple):
    """Forward and backward passes of single images, as records count them."""

    forward: float
    backward: float = 0.0

    def scaled(self, factor: float) -> PassEstimate:
        return PassEstimate(self.forward * factor, self.backward * factor)


def max_passes(
    attack: str, args: Mapping[str, Any], threat: Threat | None, num_classes: int
) -> PassEstimate:
    """The passes for an image that nothing breaks; broken ones take fewer.

    Square may try some queries twice: those are not in it.
    """
    return _estimate_passes(attack, args, threat, num_classes, expected=False)


def expected_passes(
    attack: str, args: Mapping[str, Any], threat: Threat | None, num_classes: int
) -> PassEstimate:
    """The same on average: an ensemble may spare most images some of its parts."""
    return _estimate_passes(attack, args, threat, num_classes, expected=True)


def _estimate_passes(
    attack: str, args: Mapping[str, Any], threat: Threat | None, num_classes: int, *, expected: bool
) -> PassEstimate:
    if threat is None:
        return PassEstimate(1)
    attack_fn = cast(Attack, ATTACKS.create(attack, args))
    forward = backward = 0.0
    for number, stage in enumerate(attack_fn.stages(threat, num_classes)):
        fraction = attack_fn.expected_fraction(number, threat.norm) if expected else 1.0
        num_runs = stage.num_runs(num_classes)
        num_steps = fraction * num_runs * max(stage.max_steps, 1) * stage.eot_samples
        forward += num_steps + fraction * num_runs * stage.eot_samples  # one at the last point
        backward += num_steps if stage.needs_grad else 0
    return PassEstimate(forward, backward)


def surviving_sample_cost(attack: Attack, threat: Threat, num_classes: int) -> float:
    """Passes of an attack for a sample that stays robust, a backward pass counted as two."""
    return sum(stage_cost(stage, num_classes) for stage in attack.stages(threat, num_classes))


def stage_cost(attack: Attack, num_classes: int) -> float:
    """The same of one stage of an ensemble."""
    passes_per_step = 3 if attack.needs_grad else 1
    num_evaluations = attack.num_runs(num_classes) * (attack.max_steps + 1) * attack.eot_samples
    return float(num_evaluations * passes_per_step)
