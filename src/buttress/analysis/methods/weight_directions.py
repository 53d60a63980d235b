"""Filter-normalized directions in weight space, and moving along them.

Filter normalization: Li et al., "Visualizing the Loss Landscape of Neural Nets", arXiv:1712.09913.
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
WeightMove = Callable[..., None]  # takes steps, all from the center

NORM_EPSILON = 1e-10  # in the published normalization: a direction of length zero stays zero


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
            "the model has no weight tensor with two or more dimensions to move"
        )
    return parameters


def filter_norms(weight: Tensor) -> Tensor:
    """(F, 1, ...) the Euclidean length of each filter."""
    lengths = weight.detach().flatten(1).norm(dim=1)
    return lengths.view(-1, *[1] * (weight.ndim - 1))


def normalize_filters(direction: WeightDirection, weights: WeightDirection) -> dict[str, Tensor]:
    """Rescale each filter of a direction to the norm of the model's own filter."""
    return {
        name: direction[name] * (filter_norms(w) / (filter_norms(direction[name]) + NORM_EPSILON))
        for name, w in weights.items()
    }


def random_direction(weights: WeightDirection, *purpose: int | str) -> dict[str, Tensor]:
    """A Gaussian direction, filter-normalized; deterministic per purpose and model."""
    gaussian = {
        name: torch.randn(w.shape, generator=make_generator(*purpose, name)).to(w)
        for name, w in weights.items()
    }
    return normalize_filters(gaussian, weights)


def clip_to_filter_ball(
    offset: WeightDirection, weights: WeightDirection, radius: float
) -> dict[str, Tensor]:
    """Clip each filter of an offset to ``radius`` times the norm of the model's own filter."""
    return {
        name: offset[name]
        * (radius * filter_norms(w) / (filter_norms(offset[name]) + NORM_EPSILON)).clamp_max(1)
        for name, w in weights.items()
    }


@contextlib.contextmanager
def movable_weights(weights: Mapping[str, nn.Parameter]) -> Iterator[WeightMove]:
    """Yield a function that moves the weights along directions.

    They are restored bit for bit afterwards, also after an error or Ctrl-C.
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
