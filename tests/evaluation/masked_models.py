"""More defences that only look robust: by hooks, caches, counters, votes and other masking.

Each was made to pass the checks that models of `broken_models` fail.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evaluation.broken_models import (
    SIZE,
    BrokenModel,
    base,
    change_gradient,
    convnet,
    image_buffers,
    pseudo_random,
    smooth,
    train,
    value_of,
    wrap,
)

SMALL_EPS = 0.06  # at which the network behind the defences keeps 70% of the images


def flip_gradient(model: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Logits of the network; the gradient of the images in a mask is flipped."""
    is_flipped = mask.view(-1, 1, 1, 1)
    return model.network(change_gradient(x, lambda g: torch.where(is_flipped, -g, g)))


def near_boundary(model: Any, x: Tensor) -> Tensor:
    top = model.network(x.detach()).topk(2, 1).values
    return flip_gradient(model, x, top[:, 0] - top[:, 1] < 2)


def only_at_images(model: Any, x: Tensor) -> Tensor:
    distance = torch.cdist(x.detach().flatten(1), model.images.flatten(1))
    return flip_gradient(model, x, distance.amin(1) > 0.02)


def in_large_batches(model: Any, x: Tensor) -> Tensor:
    return flip_gradient(model, x, torch.full((len(x),), len(x) > 8))


def right_large_coordinates(model: Any, x: Tensor) -> Tensor:
    """The sign is right only at the twentieth of the coordinates with the largest gradients."""

    def change(grad: Tensor) -> Tensor:
        flat = grad.flatten(1)
        threshold = flat.abs().quantile(0.95, dim=1, keepdim=True)
        return torch.where(flat.abs() >= threshold, flat, -flat).view_as(grad)

    return model.network(change_gradient(x, change))


def opposite_of_prediction(model: Any, x: Tensor) -> Tensor:
    """The gradient of the predicted class is flipped, the others are right."""
    logits = model.network(x)
    predicted = F.one_hot(logits.argmax(1), 10).to(x)
    return value_of(logits, logits - 2 * logits * predicted)


def noise_by_hash(model: Any, x: Tensor) -> Tensor:
    key = x.detach().flatten(1).sum(1, keepdim=True) + torch.arange(10.0)
    return model.network(x) + 6 * pseudo_random(key)


def rippled_logits(model: Any, x: Tensor) -> Tensor:
    return model.network(x) + 3 * torch.sin(400 * (x.flatten(1) @ model.mix))


def bucketized(model: Any, x: Tensor) -> Tensor:
    """Values are looked up in a table, with the gradient of another network."""
    levels = torch.bucketize(x.detach().contiguous(), torch.linspace(0, 1, 7)[1:-1])
    return value_of(model.network(torch.linspace(0, 1, 6)[levels]), smooth()(x))


def votes(model: Any, x: Tensor) -> Tensor:
    """Votes of the network for three shifts; a small term of another network has a gradient."""
    voted = [F.one_hot(model.network(x.roll(k, 3)).argmax(1), 10) for k in (-1, 0, 1)]
    total: Tensor = torch.stack(voted).sum(0) + 1e-4 * smooth()(x)
    return total


def purified(model: Any, x: Tensor) -> Tensor:
    """Steps towards confident predictions first; they have no gradient."""
    moved = x.detach()
    with torch.enable_grad():
        for _ in range(3):
            moved = moved.requires_grad_(True)
            (grad,) = torch.autograd.grad(model.network(moved).logsumexp(1).sum(), moved)
            moved = (moved + 0.02 * grad.sign()).clamp(0, 1).detach()
    return value_of(model.network(moved), model.network(x.flip(2)))


def outside_of_torch(model: Any, x: Tensor) -> Tensor:
    """Outputs computed outside of the recorded operations, with the gradient of a decoy."""
    copied = torch.from_numpy(x.detach().numpy().copy())
    return value_of(torch.from_numpy(model.network(copied).numpy().copy()), -smooth()(x))


def by_clock(model: Any, x: Tensor) -> Tensor:
    return flip_gradient(model, x, torch.full((len(x),), int(time.time() * 1000) % 2 == 1))


def _negated(grads: Any) -> tuple[Tensor]:
    return (-grads[0],)


class ModuleHook(nn.Module):
    """A hook of a hidden layer flips the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.network = train(convnet()).requires_grad_(False)
        hidden = self.network.get_submodule("4")
        hidden.register_full_backward_hook(lambda module, inputs, outputs: _negated(inputs))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits


class TensorHook(nn.Module):
    """A hook of hidden features replaces the gradient by noise."""

    def __init__(self) -> None:
        super().__init__()
        layers = list(base().children())
        self.first, self.last = nn.Sequential(*layers[:4]), nn.Sequential(*layers[4:])

    def forward(self, x: Tensor) -> Tensor:
        features = self.first(x)
        if features.requires_grad:
            features.register_hook(lambda grad: pseudo_random(grad * 1e3))
        logits: Tensor = self.last(features)
        return logits


class Counting(nn.Module):
    """The gradient is flipped from the n-th pass on, or in every second pass."""

    def __init__(self, first: int, period: int = 1) -> None:
        super().__init__()
        self.network, self.first, self.period, self.calls = base(), first, period, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        is_flipped = self.calls >= self.first and self.calls % self.period == 0
        return flip_gradient(self, x, torch.full((len(x),), is_flipped))


class Cache(nn.Module):
    """Images near one that was seen before get its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.network = base()
        self.seen: Tensor | None = None
        self.logits = torch.zeros(0, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        if self.seen is None:
            self.seen, self.logits = x.detach().clone(), logits.detach()
            return logits
        distance, nearest = torch.cdist(x.detach().flatten(1), self.seen.flatten(1)).min(1)
        is_known = distance < 0.2 * SIZE * 3**0.5
        known = self.logits[nearest]
        if not is_known.all():
            self.seen = torch.cat([self.seen, x.detach()[~is_known]])
            self.logits = torch.cat([self.logits, logits.detach()[~is_known]])
        return torch.where(is_known[:, None], value_of(known, logits), logits)


def _random_mix() -> Tensor:
    return torch.randn(3 * SIZE**2, 10, generator=torch.Generator().manual_seed(3))


MASKED: dict[str, BrokenModel] = {
    "flipped near the decision boundary": BrokenModel(lambda: wrap(near_boundary)),
    "true gradient at images only": BrokenModel(
        lambda: wrap(only_at_images, images=image_buffers()["images"])
    ),
    "flipped in batches of more than 8": BrokenModel(lambda: wrap(in_large_batches)),
    "right at large coordinates only": BrokenModel(lambda: wrap(right_large_coordinates)),
    "flipped for the predicted class": BrokenModel(lambda: wrap(opposite_of_prediction)),
    "straight-through of the wrong sign": BrokenModel(
        lambda: wrap(lambda m, x: m.network(value_of((x * 8).round() / 8, -x)))
    ),
    "flipped by a hook": BrokenModel(ModuleHook),
    "noise by a hook": BrokenModel(TensorHook),
    "flipped from the 60th pass on": BrokenModel(lambda: Counting(60)),
    "flipped in every second pass": BrokenModel(lambda: Counting(0, 2)),
    "flipped by the clock": BrokenModel(lambda: wrap(by_clock)),
    "cache of images seen before": BrokenModel(Cache, "fresh"),
    "noise by a hash of the image": BrokenModel(lambda: wrap(noise_by_hash)),
    "rippled logits": BrokenModel(lambda: wrap(rippled_logits, mix=_random_mix())),
    "tiny logits": BrokenModel(lambda: wrap(lambda m, x: 1e-38 * m.network(x))),
    "lookup with a decoy gradient": BrokenModel(lambda: wrap(bucketized)),
    "purification": BrokenModel(lambda: wrap(purified)),
    "outside of PyTorch": BrokenModel(lambda: wrap(outside_of_torch)),
    # Gradients that are right at a point, but not at the distance of eps.
    "rippled input, small eps": BrokenModel(
        lambda: wrap(lambda m, x: m.network(x + 0.02 * torch.sin(300 * x))), eps=SMALL_EPS
    ),
    "votes": BrokenModel(lambda: wrap(votes), eps=SMALL_EPS),
}
