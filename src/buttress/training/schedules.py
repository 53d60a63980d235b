"""Optimizers and learning-rate schedules, made from a recipe."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from buttress.errors import UserError
from buttress.results.run_spec import LRScheduleSpec, OptimizerSpec, Recipe, ValidationSpec


def build_optimizer(
    model: nn.Module, spec: OptimizerSpec, *, fused: bool = True
) -> torch.optim.Optimizer:
    """Build SGD or AdamW with the recipe's exemptions from weight decay."""
    decay: list[nn.Parameter] = []
    no_decay: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            is_exempt = weight.ndim <= 1 and not spec.decay_1d_parameters
            is_exempt = is_exempt or any(substring in name for substring in spec.no_weight_decay)
            (no_decay if is_exempt else decay).append(weight)
    groups = [
        {"params": decay, "weight_decay": spec.weight_decay},
        {"params": no_decay, "weight_decay": 0.0},
    ]
    groups = [g for g in groups if g["params"]]
    if spec.name == "adamw":
        return torch.optim.AdamW(groups, lr=spec.lr, betas=spec.betas, fused=fused)
    return torch.optim.SGD(
        groups, lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, fused=fused
    )


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a checkpoint's state, laid out in memory as the weights are.

    Fused optimizers read weights, gradients and state in the order of memory, and check nothing.
    """
    optimizer.load_state_dict(state)
    for weight, tensors in optimizer.state.items():
        for name, value in tensors.items():
            if value is not None and value.shape == weight.shape:
                tensors[name] = torch.empty_like(weight).copy_(value)


def learning_rate_factor(spec: LRScheduleSpec, epoch: float, epochs: int) -> float:
    """Learning rate at a (fractional) epoch, relative to the base learning rate."""
    if spec.per_epoch:
        epoch = math.floor(epoch)
    if spec.name == "points":
        knots, factors = zip(*spec.points, strict=True)
        return float(np.interp(epoch, knots, factors))
    decay_epochs = max(epochs - spec.cooldown_epochs, spec.warmup_epochs)
    if spec.name == "cyclic":
        peak_epoch = spec.peak_position * decay_epochs
        return max(
            0.0,
            min(epoch / peak_epoch, (decay_epochs - epoch) / max(decay_epochs - peak_epoch, 1e-9)),
        )
    if epoch < spec.warmup_epochs:
        return (
            spec.warmup_start_factor + (1 - spec.warmup_start_factor) * epoch / spec.warmup_epochs
        )
    if spec.name == "constant":
        return 1.0
    if spec.name == "step":
        return spec.factor ** sum(epoch >= milestone for milestone in spec.milestones)
    decay_start = 0.0 if spec.cosine_from_start else spec.warmup_epochs + spec.hold_epochs
    progress = max(0.0, epoch - decay_start) / max(
        spec.cosine_epochs or decay_epochs - decay_start, 1e-9
    )
    return (
        spec.final_factor
        + (1 - spec.final_factor) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
    )


def scale_recipe_epochs(recipe: Recipe, epochs: int) -> Recipe:
    """Return the recipe with its whole schedule scaled to ``epochs``.

    The learning rate still decays fully and eps still warms up fully, so that models of short
    trainings can be compared with each other. About as many epochs are validated.
    """
    if not 1 <= epochs <= recipe.epochs:
        raise UserError(f"`1 <= epochs <= {recipe.epochs}` must hold, but got epochs={epochs}")
    if epochs == recipe.epochs:
        return recipe
    ratio = epochs / recipe.epochs
    updates = {
        "epochs": epochs,
        "eps_zero_epochs": recipe.eps_zero_epochs * ratio,
        "eps_warmup_epochs": recipe.eps_warmup_epochs * ratio,
        "schedule": _scale_schedule(recipe.schedule, ratio),
        "validation": _scale_validation(recipe.validation, ratio),
    }
    for name in ("weight_averaging", "awp"):
        part = getattr(recipe, name)
        if part is not None:
            updates[name] = part.model_copy(update={"from_epoch": part.from_epoch * ratio})
    return recipe.model_copy(update=updates)


def _scale_schedule(schedule: LRScheduleSpec, ratio: float) -> LRScheduleSpec:
    lengths = ("warmup_epochs", "hold_epochs", "cooldown_epochs")
    updates: dict[str, object] = {name: getattr(schedule, name) * ratio for name in lengths}
    updates["cosine_epochs"] = (
        None if schedule.cosine_epochs is None else schedule.cosine_epochs * ratio
    )
    updates["milestones"] = tuple(epoch * ratio for epoch in schedule.milestones)
    updates["points"] = tuple((epoch * ratio, factor) for epoch, factor in schedule.points)
    return schedule.model_copy(update=updates)


def _scale_validation(validation: ValidationSpec, ratio: float) -> ValidationSpec:
    interval = max(1, round(validation.every * ratio))
    return validation.model_copy(
        update={"every": interval, "from_epoch": int(validation.from_epoch * ratio)}
    )
