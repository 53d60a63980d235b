"""Adversarial weight perturbation (Wu et al., arXiv:2004.05884), around any objective."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextlib.contextmanager
def perturbed_weights(
    model: nn.Module,
    loss: Callable[[], Tensor],
    gamma: float,
    all_reduce_mean: Callable[[Tensor], Tensor],
) -> Iterator[None]:
    r"""Move weights to :math:`w + \gamma\,\lVert w \rVert\, g / \lVert g \rVert`; restore them.

    g is the gradient of ``loss``, averaged over processes by ``all_reduce_mean``, for each tensor
    of more than one dimension; BatchNorm statistics stay as they are while it is computed. An
    optimizer step taken inside is kept: only the displacement is subtracted again.
    """
    weights = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    with frozen_batchnorm_statistics(model):
        grads = torch.autograd.grad(loss(), weights, allow_unused=True)
    steps = []
    with torch.no_grad():
        for weight, grad in zip(weights, grads, strict=True):
            gradient = torch.zeros_like(weight) if grad is None else all_reduce_mean(grad)
            gradient_norm = gradient.norm()
            step = (
                gradient * (gamma * weight.norm() / gradient_norm)
                if gradient_norm > 0
                else torch.zeros_like(weight)
            )
            weight.add_(step)
            steps.append(step)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, step in zip(weights, steps, strict=True):
                weight.sub_(step)


@contextlib.contextmanager
def frozen_batchnorm_statistics(model: nn.Module) -> Iterator[None]:
    """Let BatchNorm use the statistics of the batch without updating its running statistics."""
    batchnorms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    saved_state = [(m, m.track_running_stats, m.running_mean, m.running_var) for m in batchnorms]
    try:
        for norm in batchnorms:  # without running statistics it neither uses nor updates them
            norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
        yield
    finally:
        for norm, tracks_running_stats, average, variance in saved_state:
            norm.track_running_stats = tracks_running_stats
            norm.running_mean, norm.running_var = average, variance
