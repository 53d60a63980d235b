"""The inner problem of adversarial training: the worst images near those of a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from buttress.attacks.core import Attack
from buttress.attacks.freeze import frozen
from buttress.attacks.loop import Stay, last_point
from buttress.attacks.problem import Problem
from buttress.threat import Threat
from buttress.training.objectives.core import Step


def worst_images(
    model: nn.Module, step: Step, attack: Attack, *, threat: Threat | None = None, stay: Stay = None
) -> Tensor:
    """The last point of an attack on the frozen network in evaluation mode; ``x`` if eps is zero.

    The attack moves no BatchNorm statistics and leaves no gradients. ``threat`` stands for the
    step's own; ``stay`` sees each step and may hold samples where they are.
    """
    threat = threat or step.threat
    assert threat is not None
    if threat.eps == 0:
        return step.x
    with frozen(model):
        with torch.no_grad():
            clean = model(step.x) if getattr(attack, "loss", "") == "kl" else None
        problem = Problem(model, step.x, step.y, threat, step.streams, clean)
        return last_point(attack, problem, stay)
