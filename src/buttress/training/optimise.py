"""Optimisers and learning-rate schedules, made from a recipe."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from buttress.records.spec import Optimiser, Schedule


def build_optimiser(model: nn.Module, spec: Optimiser) -> torch.optim.Optimizer:
    """SGD or AdamW; the recipe says what weight decay leaves out."""
    decayed: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            is_free = weight.ndim <= 1 and not spec.decay_vectors
            is_free = is_free or any(part in name for part in spec.exempt)
            (exempt if is_free else decayed).append(weight)
    groups = [
        {"params": decayed, "weight_decay": spec.weight_decay},
        {"params": exempt, "weight_decay": 0.0},
    ]
    groups = [g for g in groups if g["params"]]
    if spec.name == "adamw":
        return torch.optim.AdamW(groups, lr=spec.lr, betas=spec.betas)
    return torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov)


def rate_factor(spec: Schedule, epoch: float, epochs: int) -> float:
    """The learning rate at a (fractional) epoch, as a factor of its peak."""
    if spec.by_epoch:
        epoch = math.floor(epoch)
    if spec.name == "points":
        at, factors = zip(*spec.points, strict=True)
        return float(np.interp(epoch, at, factors))
    epochs_down = max(epochs - spec.cooldown_epochs, spec.warmup_epochs)
    if spec.name == "cyclic":
        top = spec.peak * epochs_down
        return max(0.0, min(epoch / top, (epochs_down - epoch) / max(epochs_down - top, 1e-9)))
    if epoch < spec.warmup_epochs:
        return spec.warmup_from + (1 - spec.warmup_from) * epoch / spec.warmup_epochs
    if spec.name == "constant":
        return 1.0
    if spec.name == "step":
        return spec.factor ** sum(epoch >= milestone for milestone in spec.milestones)
    begin = 0.0 if spec.from_start else spec.warmup_epochs + spec.hold_epochs
    share = max(0.0, epoch - begin) / max(spec.horizon or epochs_down - begin, 1e-9)
    return spec.final + (1 - spec.final) * (1 + math.cos(math.pi * min(share, 1.0))) / 2
