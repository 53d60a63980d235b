"""Free adversarial training (Shafahi et al., arXiv:1904.12843): one backward pass for both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from buttress.attacks.core import check_positive
from buttress.errors import UserError
from buttress.threats.core import SearchSet
from buttress.training.objectives.core import (
    OBJECTIVES,
    AdversarialBatch,
    LossOutput,
    Objective,
    TrainingBatch,
    adversarial_images,
    cross_entropy,
)

PERTURBATION_KEY = "delta"


@OBJECTIVES.register(
    "free", paper="arXiv:1904.12843", tags=("adversarial",), example_args={"repeats": 4}
)
@dataclass(frozen=True)
class FreeAT(Objective):
    r"""Cross-entropy on perturbed images; one gradient updates weights and perturbations.

    .. math:: \delta \leftarrow \Pi\bigl(\delta + \epsilon\, s(\nabla_\delta
              \mathrm{CE}(f(x + \delta), y))\bigr)

    Each batch is repeated ``repeats`` times, and the next batch begins with the perturbations of
    the last one. So an epoch costs ``repeats`` passes: divide the number of epochs by it. BatchNorm
    statistics are updated at every repeat.
    """

    needs_threat = True
    repeats: int = 8
    rel_step: float = 1.0

    def __post_init__(self) -> None:
        check_positive(repeats=self.repeats)

    def find_adversarial(self, model: nn.Module, batch: TrainingBatch) -> AdversarialBatch:
        threat = _search_set(batch)
        stored = batch.memory.get(PERTURBATION_KEY)
        delta = (
            torch.zeros_like(batch.x)
            if stored is None
            else stored[_batch_positions(batch)].to(batch.x)
        )
        x_adv = threat.project(batch.x, batch.x + delta)
        return AdversarialBatch(x_adv.detach().requires_grad_(True))

    def loss(
        self, model: nn.Module, batch: TrainingBatch, adversarial: AdversarialBatch | None
    ) -> LossOutput:
        logits = model(adversarial_images(adversarial))
        return LossOutput(cross_entropy(logits, batch), logits.detach())

    def after_backward(self, batch: TrainingBatch, adversarial: AdversarialBatch | None) -> None:
        threat = _search_set(batch)
        x_adv = adversarial_images(adversarial)
        assert x_adv.grad is not None
        with torch.no_grad():
            direction = threat.step_direction(x_adv, x_adv.grad)
            next_x_adv = threat.project(batch.x, x_adv + self.rel_step * threat.radius * direction)
            _store_perturbations(batch, next_x_adv - batch.x)


def _search_set(batch: TrainingBatch) -> SearchSet:
    """The threat model, if its changes can be kept from one image to the next."""
    if not isinstance(batch.threat, SearchSet):
        raise UserError(
            "objective free keeps changes of pixels, so the threat model must be one of Linf, L2, "
            f"L1, L0 and patch, but got {batch.threat}; use pgd_at"
        )
    return batch.threat


def _batch_positions(batch: TrainingBatch) -> Tensor:
    return (
        torch.arange(len(batch.x)) if batch.batch_positions is None else batch.batch_positions.cpu()
    )


def _store_perturbations(batch: TrainingBatch, delta: Tensor) -> None:
    """Store perturbations by position in the batch; the buffer grows as needed."""
    positions, stored = _batch_positions(batch), batch.memory.get(PERTURBATION_KEY)
    num_rows = int(positions.max()) + 1
    if stored is None or len(stored) < num_rows:
        new_rows = torch.zeros(num_rows - (0 if stored is None else len(stored)), *delta.shape[1:])
        stored = new_rows if stored is None else torch.cat([stored, new_rows])
    stored[positions] = delta.float().cpu()
    batch.memory[PERTURBATION_KEY] = stored
