"""Adversarial training (Madry et al., arXiv:1706.06083)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from buttress.attacks.pgd import PGD
from buttress.training.objectives.core import OBJECTIVES, Loss, Objective, Step, cross_entropy
from buttress.training.objectives.inner import worst_images


@OBJECTIVES.register("pgd_at", paper="arXiv:1706.06083", tags=("adversarial",))
@dataclass(frozen=True)
class PGDAT(Objective):
    r"""Cross-entropy on the worst images that PGD finds in the ball.

    .. math:: \max_{x' \in B_\epsilon(x)} \mathrm{CE}(f(x'), y)

    The attack sees the network in evaluation mode, so it moves no BatchNorm statistics; the
    adversarial batch then passes once in training mode. Any norm.
    """

    needs_threat = True
    steps: int = 10
    rel_step: float = 0.25

    def loss(self, model: nn.Module, step: Step) -> Loss:
        logits = model(worst_images(model, step, PGD(steps=self.steps, rel_step=self.rel_step)))
        return Loss(cross_entropy(logits, step), logits.detach())
