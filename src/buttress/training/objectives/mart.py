"""MART (Wang et al., ICLR 2020): more weight on images that are hard without an attack."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from buttress.attacks.pgd import Start
from buttress.training.objectives.core import (
    OBJECTIVES,
    Found,
    Loss,
    Step,
    images_of,
)
from buttress.training.objectives.inner import Adversarial

TINY = 1e-12


@OBJECTIVES.register("mart", tags=("adversarial",))
@dataclass(frozen=True)
class MART(Adversarial):
    r"""A boosted cross-entropy on attacked images, and a KL weighted by clean mistakes.

    .. math:: -\log p_y(x') - \log\bigl(1 - \max_{k \ne y} p_k(x')\bigr)
              + \lambda\, \mathrm{KL}(p(x) \,\Vert\, p(x'))\,(1 - p_y(x))

    x' is PGD's on the cross-entropy from a start with Gaussian noise of 0.001. BatchNorm statistics
    move twice: for x' and for x. The constants that keep logarithms finite are the authors'.
    """

    start: Start = "gaussian"
    weight: float = 6.0

    def loss(self, model: nn.Module, step: Step, found: Found | None) -> Loss:
        clean, moved = model(step.x), model(images_of(found))
        p, q, y = clean.softmax(1), moved.softmax(1), step.y[:, None]
        wrong = q.scatter(1, y, -1.0).amax(1)  # the largest probability of another class
        boosted = -moved.log_softmax(1).gather(1, y)[:, 0] - torch.log(1.0001 - wrong + TINY)
        apart = (p * (torch.log(p + TINY) - torch.log(q + TINY))).sum(1)
        miss = 1.0000001 - p.gather(1, y)[:, 0]
        total = boosted.mean() + self.weight * (apart * miss).mean()
        return Loss(total, moved.detach())
