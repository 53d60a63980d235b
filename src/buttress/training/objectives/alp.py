"""Adversarial logit pairing (Kannan et al., arXiv:1803.06373)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from buttress.attacks.pgd import PGD
from buttress.attacks.targets import Target
from buttress.training.objectives.core import OBJECTIVES, Loss, Objective, Step, cross_entropy
from buttress.training.objectives.inner import worst_images


@OBJECTIVES.register("alp", paper="arXiv:1803.06373", tags=("adversarial",))
@dataclass(frozen=True)
class ALP(Objective):
    r"""Cross-entropy on clean and attacked images, and their logits pulled together.

    .. math:: \tfrac12\bigl(\mathrm{CE}(f(x), y) + \mathrm{CE}(f(x'), y)\bigr)
              + \lambda\, \overline{(f(x) - f(x'))^2}

    The mean is over batch and classes. Both batches pass together in training mode, so BatchNorm
    statistics move once. The authors attack with a random target: ``target="random"``.
    """

    needs_threat = True
    weight: float = 0.5
    steps: int = 10
    rel_step: float = 0.25
    target: Target = "none"

    def loss(self, model: nn.Module, step: Step) -> Loss:
        attack = PGD(steps=self.steps, rel_step=self.rel_step, target=self.target)
        x_adv = worst_images(model, step, attack)
        clean, moved = model(torch.cat([step.x, x_adv])).chunk(2)
        both = cross_entropy(clean, step) + cross_entropy(moved, step)
        total = both / 2 + self.weight * (clean - moved).square().mean()
        return Loss(total, moved.detach())
