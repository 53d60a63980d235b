"""Adversarial training in several threat models (Tramer and Boneh, arXiv:1904.13000)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.attacks.core import broadcast_to_images
from buttress.errors import UserError
from buttress.models.cost import PassCount
from buttress.models.eval_mode import eval_mode
from buttress.system.rng import derive_seed
from buttress.threats.core import Threat
from buttress.training.objectives.core import (
    OBJECTIVES,
    AdversarialBatch,
    TrainingBatch,
)
from buttress.training.objectives.inner_maximization import AdversarialObjective, run_inner_attack


@OBJECTIVES.register(
    "multi_norm",
    paper="arXiv:1904.13000",
    tags=("adversarial",),
    example_args={"threats": ["Linf:0.06", "L2:0.5", "L1:5"], "combine": "avg"},
)
@dataclass(frozen=True)
class MultiNorm(AdversarialObjective):
    r"""Cross-entropy on the worst adversarial images of several threat models.

    With ``combine="max"`` each image is the one of the threat model with the largest loss, with
    ``"avg"`` the loss is the mean over threat models, with ``"random"`` each batch is attacked in
    one of them, drawn from the samples in it. They may be of any kind, such as ``patch:5``. The
    eps of ``threats`` warm up as that of the recipe does. BatchNorm statistics are updated once;
    with ``avg`` all images pass together.
    """

    threats: Sequence[str] = ("Linf:8/255", "L2:0.5", "L1:12")
    combine: Literal["max", "avg", "random"] = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.combine not in ("max", "avg", "random"):
            raise UserError(f"`combine` must be max, avg or random, but got {self.combine!r}")
        if not self.threats:
            raise UserError("`threats` must name at least one threat model, but is empty")
        for text in self.threats:
            Threat.parse(text)

    @property
    def attack_passes(self) -> PassCount:
        attacks = 1 if self.combine == "random" else len(self.threats)
        selection = attacks if self.combine == "max" else 0
        return PassCount(attacks * self.steps + selection, attacks * self.steps)

    @property
    def loss_passes(self) -> int:
        return len(self.threats) if self.combine == "avg" else 1

    def find_adversarial(self, model: nn.Module, batch: TrainingBatch) -> AdversarialBatch:
        threats = [Threat.parse(text).scaled(batch.eps_fraction) for text in self.threats]
        if self.combine == "random":
            ids = "/".join(map(str, batch.streams.ids.tolist()))
            seed = derive_seed(batch.streams.seed, batch.streams.purpose, "norm", ids)
            threats = [threats[seed % len(threats)]]
        candidates = [
            run_inner_attack(model, batch, self.create_attack(batch), threat=threat)
            for threat in threats
        ]
        if self.combine == "max":
            candidates = [_select_worst(model, batch.with_attack_labels(), candidates)]
        return AdversarialBatch(torch.cat(candidates))


def _select_worst(model: nn.Module, batch: TrainingBatch, candidates: Sequence[Tensor]) -> Tensor:
    """Select for each image the attack with the largest loss."""
    worst_x, worst_loss = candidates[0], None
    with eval_mode(model), torch.no_grad():
        for x_adv in candidates:
            loss = F.cross_entropy(model(x_adv), batch.y, reduction="none")
            if worst_loss is None:
                worst_loss = loss
                continue
            worst_x = torch.where(broadcast_to_images(loss > worst_loss), x_adv, worst_x)
            worst_loss = worst_loss.maximum(loss)
    return worst_x
