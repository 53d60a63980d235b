"""Adversarial training (Madry et al., arXiv:1706.06083)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from buttress.training.objectives.core import (
    OBJECTIVES,
    Found,
    Loss,
    Step,
    cross_entropy,
    images_of,
)
from buttress.training.objectives.inner import Adversarial


@OBJECTIVES.register("pgd_at", paper="arXiv:1706.06083", tags=("adversarial",))
@dataclass(frozen=True)
class PGDAT(Adversarial):
    r"""Cross-entropy on the worst images that PGD finds in the ball.

    .. math:: \max_{x' \in B_\epsilon(x)} \mathrm{CE}(f(x'), y)

    The attack sees the network in evaluation mode, so it moves no BatchNorm statistics; the
    adversarial batch then passes once in training mode. Any norm.
    """

    def loss(self, model: nn.Module, step: Step, found: Found | None) -> Loss:
        logits = model(images_of(found))
        return Loss(cross_entropy(logits, step), logits.detach())
