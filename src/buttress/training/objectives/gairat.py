"""GAIRAT (Zhang et al., arXiv:2010.01736): weights by how soon an attack succeeds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from buttress.attacks.problem import Seen
from buttress.training.objectives.core import (
    OBJECTIVES,
    Found,
    Loss,
    Step,
    cross_entropy,
    images_of,
)
from buttress.training.objectives.inner import Adversarial, worst_images


@OBJECTIVES.register("gairat", paper="arXiv:2010.01736", tags=("adversarial",))
@dataclass(frozen=True)
class GAIRAT(Adversarial):
    r"""Weighted cross-entropy on attacked images; images that fall early weigh most.

    .. math:: \overline{w\, \mathrm{CE}(f(x'), y)}, \quad
              w \propto \tfrac12\bigl(1 + \tanh(\lambda + 5\,(1 - 2\kappa / K))\bigr)

    :math:`\kappa` is the number of the K points of PGD, before each step, that are still right;
    weights average one. Before the epoch ``burn_in`` all weights are one. BatchNorm statistics move
    once. It resists PGD better than stronger attacks: see its evaluations by others.
    """

    shift: float = -1.0
    burn_in: float = 60.0

    def search(self, model: nn.Module, step: Step) -> Found:
        kappa = torch.zeros_like(step.y)

        def count(seen: Seen) -> Tensor | None:
            kappa.add_((seen.logits.argmax(1) == step.y).long())
            return None

        x_adv = worst_images(model, step, self.pgd(step), stay=count)
        weight = 1 + torch.tanh(self.shift + 5 * (1 - 2 * kappa.to(x_adv.dtype) / self.steps))
        return Found(x_adv, weight / weight.mean())

    def loss(self, model: nn.Module, step: Step, found: Found | None) -> Loss:
        logits = model(images_of(found))
        each = cross_entropy(logits, step, "none")
        if step.epoch >= self.burn_in:
            assert found is not None
            assert found.weight is not None
            each = each * found.weight
        return Loss(each.mean(), logits.detach())
