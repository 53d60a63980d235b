"""A few images with their labels on the network's device, clean or attacked, and their loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.analysis.subject import Subject
from buttress.attacks.call import How, check_logits, create_attack, run_attack
from buttress.attacks.freeze import frozen, on_device_of
from buttress.data import Dataset
from buttress.errors import UserError

BATCH = 128


@dataclass(frozen=True)
class Sample:
    """Images on the device of the network."""

    x: Tensor  # (N, C, H, W)
    y: Tensor  # (N,)
    ids: Tensor  # (N,)

    def __len__(self) -> int:
        return len(self.x)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.x.split(BATCH), self.y.split(BATCH), strict=True)


def sample_of(model: nn.Module, data: Dataset) -> Sample:
    """All images of a data set."""
    if len(data) == 0:
        raise UserError("need at least one image, but there is none; give a larger `limit`")
    x, y, ids = data.take(torch.arange(len(data)))
    x = on_device_of(model, x)
    with frozen(model):
        check_logits(model, x[:1], y)
    return Sample(x, y.to(x.device), ids)


def attacked(subject: Subject, sample: Sample, steps: int, attack: str = "pgd") -> Sample:
    """The same images after an attack on the network as it is now."""
    chosen = create_attack(attack, steps=steps)
    out = run_attack(
        chosen,
        subject.model,
        sample.x,
        sample.y,
        subject.threat,
        ids=sample.ids,
        how=How(subject.seed, BATCH, workers=1),
    )
    return replace(sample, x=out.x_adv)


def mean_loss(model: nn.Module, sample: Sample) -> float:
    """The mean cross-entropy of a network in evaluation mode."""
    total = 0.0
    with torch.no_grad():
        for x, y in sample.batches():
            total += float(F.cross_entropy(model(x).double(), y, reduction="sum"))
    return total / len(sample)
