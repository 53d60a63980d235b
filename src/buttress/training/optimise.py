"""Optimisers and learning-rate schedules, made from a recipe."""

from __future__ import annotations

import math

import torch
from torch import nn

from buttress.records.spec import Optimiser, Schedule


def build_optimiser(model: nn.Module, spec: Optimiser) -> torch.optim.Optimizer:
    """SGD or AdamW; 1-d tensors are left out of weight decay if the recipe says so."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trainable if spec.decay_vectors or p.ndim > 1]
    exempt = [p for p in trainable if not spec.decay_vectors and p.ndim <= 1]
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
    share = (epoch - spec.warmup_epochs) / max(epochs_down - spec.warmup_epochs, 1e-9)
    return spec.final + (1 - spec.final) * (1 + math.cos(math.pi * min(share, 1.0))) / 2
