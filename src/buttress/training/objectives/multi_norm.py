"""Adversarial training in several norms (Tramer and Boneh, arXiv:1904.13000)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.attacks.core import column
from buttress.attacks.freeze import frozen
from buttress.errors import UserError
from buttress.streams import seed_of
from buttress.threat import Threat
from buttress.training.objectives.core import (
    OBJECTIVES,
    Found,
    Loss,
    Step,
    cross_entropy,
    images_of,
)
from buttress.training.objectives.inner import Adversarial, worst_images


@OBJECTIVES.register("multi_norm", paper="arXiv:1904.13000", tags=("adversarial",))
@dataclass(frozen=True)
class MultiNorm(Adversarial):
    r"""Cross-entropy on the worst images of several balls.

    With ``how="max"`` each image is the one of the norm with the largest loss, with ``"avg"`` the
    loss is the mean over norms, with ``"random"`` each batch is attacked in one norm, drawn from
    the samples in it. The eps of ``threats`` warm up as that of the recipe does. BatchNorm
    statistics move once; with ``avg`` all images pass together.
    """

    threats: Sequence[str] = ("Linf:8/255", "L2:0.5", "L1:12")
    how: Literal["max", "avg", "random"] = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.how not in ("max", "avg", "random"):
            raise UserError(f"`how` must be max, avg or random, but got {self.how!r}")
        if not self.threats:
            raise UserError("`threats` must name at least one threat, but it is empty")
        for text in self.threats:
            Threat.parse(text)

    def search(self, model: nn.Module, step: Step) -> Found:
        threats = [Threat.parse(text).scaled(step.strength) for text in self.threats]
        if self.how == "random":
            ids = "/".join(map(str, step.streams.ids.tolist()))
            drawn = seed_of(step.streams.seed, step.streams.purpose, "norm", ids)
            threats = [threats[drawn % len(threats)]]
        found = [worst_images(model, step, self.pgd(step), threat=threat) for threat in threats]
        if self.how == "max":
            found = [_worst(model, step.attacked(), found)]
        return Found(torch.cat(found))

    def loss(self, model: nn.Module, step: Step, found: Found | None) -> Loss:
        logits = model(images_of(found))
        return Loss(cross_entropy(logits, step), logits.detach()[: len(step.y)])


def _worst(model: nn.Module, step: Step, found: Sequence[Tensor]) -> Tensor:
    """Each image from the attack under which its loss is largest."""
    best, top = found[0], None
    with frozen(model), torch.no_grad():
        for x_adv in found:
            loss = F.cross_entropy(model(x_adv), step.y, reduction="none")
            if top is None:
                top = loss
                continue
            best = torch.where(column(loss > top), x_adv, best)
            top = top.maximum(loss)
    return best
