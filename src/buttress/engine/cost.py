"""How many passes an attack takes for one image, known before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from buttress.attacks.core import ATTACKS, Attack
from buttress.attacks.problem import Problem
from buttress.system.rng import SampleRNG
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
    problem = _placeholder_problem(threat, num_classes)
    forward = backward = 0.0
    for number, stage in enumerate(attack_fn.stages(problem)):
        fraction = attack_fn.expected_fraction(number, threat.norm) if expected else 1.0
        gradient_steps = (
            fraction * stage.num_runs(problem) * max(stage.max_steps, 1) * stage.eot_samples
        )
        forward += (
            gradient_steps + fraction * stage.num_runs(problem) * stage.eot_samples
        )  # and one at the last point
        backward += gradient_steps if stage.needs_grad else 0
    return PassEstimate(forward, backward)


def _placeholder_problem(threat: Threat, num_classes: int) -> Problem:
    """A problem of one image of which only the threat and the number of classes are looked at."""
    label, x = torch.zeros(1, dtype=torch.long), torch.zeros(1, 1, 1, 1)
    streams = SampleRNG(0, "plan", label)
    return Problem(nn.Identity(), x, label, threat, streams, torch.zeros(1, num_classes))


def surviving_sample_cost(attack: Attack, problem: Problem) -> float:
    """Passes of an attack for a sample that survives it, a backward pass counted as two."""
    return sum(stage_cost(stage_attack, problem) for stage_attack in attack.stages(problem))


def stage_cost(attack: Attack, problem: Problem) -> float:
    """The same of one stage."""
    passes_per_step = 3 if attack.needs_grad else 1
    return float(
        attack.num_runs(problem) * (attack.max_steps + 1) * passes_per_step * attack.eot_samples
    )
