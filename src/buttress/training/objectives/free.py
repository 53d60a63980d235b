"""Free adversarial training (Shafahi et al., arXiv:1904.12843): one backward pass for both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from buttress.attacks.core import at_least_one
from buttress.training.objectives.core import (
    OBJECTIVES,
    Found,
    Loss,
    Objective,
    Step,
    cross_entropy,
    images_of,
)

DELTA = "delta"


@OBJECTIVES.register("free", paper="arXiv:1904.12843", tags=("adversarial",))
@dataclass(frozen=True)
class Free(Objective):
    r"""Cross-entropy on perturbed images; the gradient that moves the weights moves them too.

    .. math:: \delta \leftarrow \Pi\bigl(\delta + \epsilon\, s(\nabla_\delta
              \mathrm{CE}(f(x + \delta), y))\bigr)

    Each batch is repeated ``repeats`` times, and the next batch begins with the perturbations of
    the last one. So an epoch costs ``repeats`` passes: train for as many epochs less. BatchNorm
    statistics move at every repeat.
    """

    needs_threat = True
    repeats: int = 8
    rel_step: float = 1.0

    def __post_init__(self) -> None:
        at_least_one(repeats=self.repeats)

    def search(self, model: nn.Module, step: Step) -> Found:
        assert step.threat is not None
        kept = step.memory.get(DELTA)
        delta = torch.zeros_like(step.x) if kept is None else kept[_places(step)].to(step.x)
        x_adv = step.threat.project(step.x, step.x + delta)
        return Found(x_adv.detach().requires_grad_(True))

    def loss(self, model: nn.Module, step: Step, found: Found | None) -> Loss:
        logits = model(images_of(found))
        return Loss(cross_entropy(logits, step), logits.detach())

    def learn(self, step: Step, found: Found | None) -> None:
        assert step.threat is not None
        x_adv = images_of(found)
        assert x_adv.grad is not None
        with torch.no_grad():
            move = step.threat.ascent(x_adv, x_adv.grad)
            moved = step.threat.project(step.x, x_adv + self.rel_step * step.threat.eps * move)
            _keep(step, moved - step.x)


def _places(step: Step) -> Tensor:
    return torch.arange(len(step.x)) if step.places is None else step.places.cpu()


def _keep(step: Step, delta: Tensor) -> None:
    """Perturbations by the place of an image in the batch; the room grows as it is needed."""
    places, kept = _places(step), step.memory.get(DELTA)
    room = int(places.max()) + 1
    if kept is None or len(kept) < room:
        more = torch.zeros(room - (0 if kept is None else len(kept)), *delta.shape[1:])
        kept = more if kept is None else torch.cat([kept, more])
    kept[places] = delta.float().cpu()
    step.memory[DELTA] = kept
