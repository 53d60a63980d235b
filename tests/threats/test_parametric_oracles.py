"""Flow, color, snow and gabor: images and worst cases of linear models that are known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import buttress as bt
from buttress.attacks.losses import margin
from buttress.threats import Threat
from buttress.threats.color import GRID
from buttress.threats.flow import smooth
from buttress.threats.gabor import gabor_kernels
from buttress.threats.parametric import ParametricThreat
from conftest import Linear

PGD = {"steps": 60, "rel_step": 0.05, "loss": "margin"}


def threat(text: str) -> ParametricThreat:
    parsed = Threat.parse(text)
    assert isinstance(parsed, ParametricThreat)
    return parsed


def linear_case(side: int, low: float, high: float) -> tuple[Linear, Tensor, Tensor]:
    """A linear model that is never fooled, and images whose values lie inside of [0, 1]."""
    model = Linear(3 * side * side, 2, seed=0).double()
    with torch.no_grad():
        model.bias[0] = 60.0
    x = torch.rand(3, 3, side, side, generator=torch.Generator().manual_seed(1)).double()
    return model, low + (high - low) * x, torch.zeros(3, dtype=torch.int64)


def rise(model: Linear, x: Tensor, x_adv: Tensor) -> Tensor:
    y = torch.zeros(len(x), dtype=torch.int64)
    with torch.no_grad():
        return margin(model(x_adv), y[: len(x_adv)]) - margin(model(x), y)


def attacked_rise(text: str, case: tuple[Linear, Tensor, Tensor], **args: Any) -> Tensor:
    model, x, y = case
    return rise(model, x, bt.attack("pgd", model, x, y, threat=text, **{**PGD, **args}))


def exhaustive_rise(text: str, case: tuple[Linear, Tensor, Tensor], levels: int) -> Tensor:
    """The largest rise over a grid of all parameters, for each image."""
    model, x, _ = case
    shape = threat(text).parameter_shape((3, *x.shape[2:]))
    axes = [torch.linspace(0, 1, levels, dtype=x.dtype)] * (shape[0] * shape[1] * shape[2])
    points = torch.cartesian_prod(*axes).view(-1, *shape)
    best = []
    for image in x.split(1):
        images = image.expand(len(points), *image.shape[1:])
        best.append(rise(model, images, threat(text).apply(images, points)).max())
    return torch.stack(best)


def test_a_constant_flow_is_a_translation() -> None:
    x = linear_case(8, 0.0, 1.0)[1]
    points = torch.full((3, 2, 8, 8), 0.5, dtype=x.dtype)
    torch.testing.assert_close(threat("flow:1").apply(x, points), x)
    points[:, 0] = 1.0
    moved = torch.cat([x[..., 1:], x[..., -1:]], -1)
    torch.testing.assert_close(threat("flow:1").apply(x, points), moved)
    points[:, 0], points[:, 1] = 0.5, 0.0
    moved = torch.cat([x[..., :1, :], x[..., :-1, :]], -2)
    torch.testing.assert_close(threat("flow:1").apply(x, points), moved)


def test_a_flow_moves_no_pixel_farther_than_eps() -> None:
    fields = torch.randn(4, 2, 16, 16, generator=torch.Generator().manual_seed(0)).sign()
    assert set(fields.flatten().tolist()) == {-1.0, 1.0}
    assert float(smooth(fields).abs().max()) <= 1 + 1e-6


def test_the_worst_flow_of_a_linear_model_on_a_ramp() -> None:
    """On a ramp a displacement adds its own value, so the best field is the sign of a gradient.

    The weights at the border are zero: a pixel that would come from outside repeats the border.
    """
    model, x, y = linear_case(12, 0.0, 1.0)
    slopes = torch.tensor([0.07, -0.05, 0.02], dtype=x.dtype).view(3, 1, 1, 1)
    x = 0.5 + slopes * (torch.arange(12, dtype=x.dtype) - 5.5) + torch.zeros_like(x)
    is_inner = torch.zeros(12, 12, dtype=x.dtype)
    is_inner[:, 2:-2] = 1
    with torch.no_grad():
        model.weight.mul_(is_inner.expand(3, 12, 12).reshape(-1))
    weights = (model.weight[1] - model.weight[0]).detach().view(3, 12, 12).sum(0)
    field = torch.zeros(1, 1, 12, 12, dtype=x.dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad((weights * smooth(field)).sum(), field)
    best = slopes.abs().flatten() * gradient.abs().sum()
    found = attacked_rise("flow:1", (model, x, y))
    assert (found <= best + 1e-9).all()
    assert (found >= 0.999 * best).all()


def test_a_flow_is_no_weaker_than_the_best_translation() -> None:
    case = linear_case(8, 0.0, 1.0)
    model, x, _ = case
    moves = torch.cartesian_prod(*[torch.linspace(0, 1, 5, dtype=x.dtype)] * 2)
    rises = [
        rise(model, x, threat("flow:1").apply(x, move.view(1, 2, 1, 1).expand(3, 2, 8, 8)))
        for move in moves
    ]
    assert (attacked_rise("flow:1", case) >= torch.stack(rises).amax(0)).all()


def test_the_worst_color_map_of_a_linear_model() -> None:
    """Each corner moves by eps to the side that the pixels near it, by their weights, prefer."""
    case = linear_case(6, 0.2, 0.8)
    model, x, _ = case
    slope = (model.weight[1] - model.weight[0]).detach().view(3, 6, 6)
    corners = torch.arange(GRID, dtype=x.dtype)
    hats = (1 - ((GRID - 1) * x[..., None] - corners).abs()).clamp_min(0)
    weights = torch.einsum("nhwi,nhwj,nhwk->nhwijk", hats[:, 0], hats[:, 1], hats[:, 2])
    best = 0.06 * torch.einsum("nhwijk,chw->ncijk", weights, slope).abs().flatten(1).sum(1)
    found = attacked_rise("color:0.06", case)
    assert (found <= best + 1e-9).all()
    assert (found >= 0.999 * best).all()


def test_color_maps_of_equal_corners_shift_every_color() -> None:
    x = linear_case(6, 0.2, 0.8)[1]
    points = threat("color:0.1").center(x)
    assert torch.equal(threat("color:0.1").apply(x, points), x)
    torch.testing.assert_close(threat("color:0.1").apply(x, torch.ones_like(points)), x + 0.1)


def test_the_worst_snow_of_a_linear_model() -> None:
    """One flake of each kind: the image is linear in their intensities, so a corner is best."""
    case = linear_case(4, 0.0, 0.2)
    best = exhaustive_rise("snow:50", case, levels=2)
    found = attacked_rise("snow:50", case)
    assert (found <= best + 1e-9).all()
    assert (found >= best - 0.02 * best.abs()).all()


def test_the_worst_gabor_noise_of_a_linear_model() -> None:
    """One value of each orientation, nine levels each; several starts, each good by itself."""
    case = linear_case(4, 0.0, 0.5)
    best = exhaustive_rise("gabor:50", case, levels=9)
    assert (attacked_rise("gabor:50", case, restarts=4) >= 0.99 * best).all()
    assert (attacked_rise("gabor:50", case, restarts=4, schedule="cosine") >= best).all()
    single = [attacked_rise("gabor:50", case, schedule="cosine", seed=seed) for seed in range(4)]
    assert (torch.stack(single) >= 0.95 * best).all()


def test_snow_that_harms_the_attack_is_taken_away_again() -> None:
    """Every pixel counts against the attack, so the best snow is none, also from all of it."""
    threat_model = threat("snow:50")
    x = torch.full((1, 3, 8, 8), 0.1, dtype=torch.float64)
    points = torch.ones_like(threat_model.center(x), requires_grad=True)
    (gradient,) = torch.autograd.grad(-threat_model.apply(x, points).sum(), points)
    assert (gradient < 0).all()
    (gradient,) = torch.autograd.grad(threat_model.apply(x, points).sum(), points)
    assert float(gradient.sum().abs()) < 1e-9  # more snow than the bound is not to be had


@pytest.mark.parametrize("orientation", range(4))
def test_one_value_of_gabor_noise_is_its_kernel(orientation: int) -> None:
    x = torch.zeros(1, 3, 4, 4, dtype=torch.float64)
    points = threat("gabor:51").center(x)
    points[:, orientation] = 1.0
    kernel = gabor_kernels(11)[orientation, 0, 5:9, 5:9]
    expected = 0.2 * (kernel - kernel.min()) / (kernel.max() - kernel.min())
    torch.testing.assert_close(threat("gabor:51").apply(x, points)[0], expected.expand(3, 4, 4))
