"""Adversarial logit pairing (Kannan et al., arXiv:1803.06373)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from buttress.attacks.targets import Target
from buttress.training.objectives.core import (
    OBJECTIVES,
    Found,
    Loss,
    Step,
    cross_entropy,
    images_of,
)
from buttress.training.objectives.inner import Adversarial, worst_images


@OBJECTIVES.register("alp", paper="arXiv:1803.06373", tags=("adversarial",))
@dataclass(frozen=True)
class ALP(Adversarial):
    r"""Cross-entropy on clean and attacked images, and their logits pulled together.

    .. math:: \tfrac12\bigl(\mathrm{CE}(f(x), y) + \mathrm{CE}(f(x'), y)\bigr)
              + \lambda\, \overline{(f(x) - f(x'))^2}

    The mean is over batch and classes. Both batches pass together in training mode, so BatchNorm
    statistics move once. The authors attack with a random target: ``target="random"``.
    """

    weight: float = 0.5
    target: Target = "none"

    def search(self, model: nn.Module, step: Step) -> Found:
        return Found(worst_images(model, step, self.pgd(step, target=self.target)))

    def loss(self, model: nn.Module, step: Step, found: Found | None) -> Loss:
        clean, moved = model(torch.cat([step.x, images_of(found)])).chunk(2)
        both = cross_entropy(clean, step) + cross_entropy(moved, step)
        total = both / 2 + self.weight * (clean - moved).square().mean()
        return Loss(total, moved.detach())
