"""Directions among weights whose length means the same in every network, and moving along them.

Filter normalisation: Li et al., "Visualizing the Loss Landscape of Neural Nets", arXiv:1712.09913.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from buttress.analysis.subject import AnalysisNotApplicable
from buttress.system.rng import make_generator

WeightDirection = Mapping[str, Tensor]  # by the name of the parameter
WeightStep = tuple[float, WeightDirection]  # how far along which direction
WeightMove = Callable[..., None]  # takes steps, all from the centre

NORM_EPSILON = 1e-10  # in the published normalisation: a direction of length zero stays zero


def filter_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that directions move: those with filters, not biases, scales or norms.

    A filter is what one output unit of a layer multiplies its input with: a row of the parameter.
    A parameter with one number per row is a scale, whatever its shape.
    """
    parameters = {
        name: p
        for name, p in model.named_parameters()
        if p.ndim >= 2 and p.numel() > p.shape[0] and p.is_floating_point()
    }
    if not parameters:
        raise AnalysisNotApplicable(
            "the network has no kernel or matrix whose weights could be moved"
        )
    return parameters


def filter_norms(weight: Tensor) -> Tensor:
    """(F, 1, ...) the Euclidean length of each filter."""
    lengths = weight.detach().flatten(1).norm(dim=1)
    return lengths.view(-1, *[1] * (weight.ndim - 1))


def normalize_filters(direction: WeightDirection, weights: WeightDirection) -> dict[str, Tensor]:
    """The direction with each filter stretched to the length of the network's own filter."""
    return {
        name: direction[name] * (filter_norms(w) / (filter_norms(direction[name]) + NORM_EPSILON))
        for name, w in weights.items()
    }


def random_direction(weights: WeightDirection, *purpose: int | str) -> dict[str, Tensor]:
    """A Gaussian direction, filter-normalised; one purpose and one network give the same one."""
    gaussian = {
        name: torch.randn(w.shape, generator=make_generator(*purpose, name)).to(w)
        for name, w in weights.items()
    }
    return normalize_filters(gaussian, weights)


def clip_to_filter_ball(
    offset: WeightDirection, weights: WeightDirection, radius: float
) -> dict[str, Tensor]:
    """The offset with each filter no longer than ``radius`` times the network's own filter."""
    return {
        name: offset[name]
        * (radius * filter_norms(w) / (filter_norms(offset[name]) + NORM_EPSILON)).clamp_max(1)
        for name, w in weights.items()
    }


@contextlib.contextmanager
def movable_weights(weights: Mapping[str, nn.Parameter]) -> Iterator[WeightMove]:
    """Gives a function that puts the weights anywhere around where they are now.

    They are back where they were afterwards, bit for bit, also after an error or Ctrl-C.
    """
    center = {name: p.detach().clone() for name, p in weights.items()}

    def move(*steps: WeightStep) -> None:
        with torch.no_grad():
            for name, p in weights.items():
                p.copy_(center[name])
                for length, direction in steps:
                    p.add_(direction[name], alpha=length)

    try:
        yield move
    finally:
        move()
