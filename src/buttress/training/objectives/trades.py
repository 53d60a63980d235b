"""TRADES (Zhang et al., arXiv:1901.08573): accuracy and stability as two terms."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from buttress.attacks.losses import kl
from buttress.attacks.pgd import Start
from buttress.training.objectives.core import (
    OBJECTIVES,
    Found,
    Loss,
    Step,
    cross_entropy,
    images_of,
)
from buttress.training.objectives.inner import Adversarial, worst_images


@OBJECTIVES.register("trades", paper="arXiv:1901.08573", tags=("adversarial",))
@dataclass(frozen=True)
class TRADES(Adversarial):
    r"""Cross-entropy on the images, and beta times how far predictions can be moved.

    .. math:: \mathrm{CE}(f(x), y) + \beta\, \mathrm{KL}(p(x) \,\Vert\, p(x'))

    x' maximises the same KL from a start with Gaussian noise of 0.001. Both batches pass once in
    training mode, so BatchNorm statistics move twice. The accuracy that is logged is the clean one.
    """

    start: Start = "gaussian"
    beta: float = 6.0

    def search(self, model: nn.Module, step: Step) -> Found:
        return Found(worst_images(model, step, self.pgd(step, loss="kl")))

    def loss(self, model: nn.Module, step: Step, found: Found | None) -> Loss:
        clean = model(step.x)
        apart = kl(model(images_of(found)), clean).mean()
        return Loss(cross_entropy(clean, step) + self.beta * apart, clean.detach())
