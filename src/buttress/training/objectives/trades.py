"""TRADES (Zhang et al., arXiv:1901.08573): accuracy and stability as two terms."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from buttress.attacks.losses import kl
from buttress.attacks.pgd import PGD
from buttress.training.objectives.core import OBJECTIVES, Loss, Objective, Step, cross_entropy
from buttress.training.objectives.inner import worst_images


@OBJECTIVES.register("trades", paper="arXiv:1901.08573", tags=("adversarial",))
@dataclass(frozen=True)
class TRADES(Objective):
    r"""Cross-entropy on the images, and beta times how far predictions can be moved.

    .. math:: \mathrm{CE}(f(x), y) + \beta\, \mathrm{KL}(p(x) \,\Vert\, p(x'))

    x' maximises the same KL from a start with Gaussian noise of 0.001. Both batches pass once in
    training mode, so BatchNorm statistics move twice. The accuracy that is logged is the clean one.
    """

    needs_threat = True
    beta: float = 6.0
    steps: int = 10
    rel_step: float = 0.25

    def loss(self, model: nn.Module, step: Step) -> Loss:
        attack = PGD(steps=self.steps, rel_step=self.rel_step, loss="kl", start="gaussian")
        x_adv = worst_images(model, step, attack)
        clean = model(step.x)
        apart = kl(model(x_adv), clean).mean()
        return Loss(cross_entropy(clean, step) + self.beta * apart, clean.detach())
