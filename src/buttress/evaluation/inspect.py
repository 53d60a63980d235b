"""A quick look at a model before it is attacked: reasons to distrust what comes out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from buttress.attacks.freeze import frozen, gives_gradients
from buttress.attacks.losses import cross_entropy
from buttress.attacks.problem import gradient


def inspect_model(model: nn.Module, x: Tensor, y: Tensor) -> list[str]:
    """Warnings about a model, from a few images: each says what was seen and what it means."""
    found = []
    if any(m.training for m in model.modules()):
        found.append(
            "the model was in training mode; it was evaluated in evaluation mode and put back"
        )
    with frozen(model):
        with torch.no_grad():
            first, second = model(x), model(x)
        found += _outputs(first, second)
        if not gives_gradients(model):
            return found
        point = x.detach().clone().requires_grad_(True)
        with torch.enable_grad():
            slope = gradient(cross_entropy(model(point), y).sum(), point)
    flat = float((slope.flatten(1).abs().sum(1) == 0).float().mean())
    if flat > 0.1:
        found.append(
            f"the gradient of the loss is exactly zero for {flat:.0%} of the images looked at: "
            "gradient attacks cannot see, so the robust accuracy is likely too high"
        )
    return found


def _outputs(first: Tensor, second: Tensor) -> list[str]:
    found = []
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-5):
        found.append(
            "two passes over the same images differ: the model is randomised, and attacks that "
            "assume a fixed model are too weak"
        )
    sums = first.sum(1)
    if (first >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
        found.append(
            "the outputs are probabilities, not logits: losses saturate and attacks are too weak; "
            "remove the softmax"
        )
    if not first.isfinite().all():
        found.append("some outputs are not finite")
    return found
