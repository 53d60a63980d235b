"""Threats beyond norm balls: the worst change of a linear model, and of a tiny image, is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import buttress as bt
from buttress.attacks.core import create_attack
from buttress.attacks.losses import margin
from buttress.engine.run import run_attack
from buttress.threats import Threat
from buttress.threats.patch import Patch
from buttress.threats.sparse import SparseChange
from buttress.threats.spatial import Spatial
from conftest import Linear, small_net

SIDE = 6


def linear_case(seed: int = 0) -> tuple[Linear, Tensor, Tensor, Tensor]:
    """A confident linear model of two classes, images, and what each value can add at most."""
    model = Linear(3 * SIDE * SIDE, 2, seed=seed).double()
    with torch.no_grad():
        model.bias[0] = 60.0  # never fooled, so that no attack has a reason to stop
    x = torch.rand(5, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed)).double()
    slope = (model.weight[1] - model.weight[0]).detach().view(1, 3, SIDE, SIDE)
    gain = torch.where(slope > 0, slope * (1 - x), -slope * x)
    return model, x, torch.zeros(5, dtype=torch.int64), gain


def rise(model: Linear, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return margin(model(x_adv), y) - margin(model(x), y)


@pytest.mark.parametrize("text", ["L0:4", "L0:7,values", "L0:1"])
@pytest.mark.parametrize(
    ("name", "args", "share"),
    [("pgd", {"steps": 40, "rel_step": 1000.0, "loss": "margin"}, 0.999),
     ("sparse_pgd", {"steps": 100}, 0.5),
     ("random_search", {"queries": 300}, 0.5)],
)  # fmt: skip
def test_sparse_changes_of_a_linear_model(
    text: str, name: str, args: dict[str, Any], share: float
) -> None:
    """The best change moves the pixels of the largest gains to their corners."""
    model, x, y, gain = linear_case()
    threat = Threat.parse(text)
    assert isinstance(threat, SparseChange)
    units = threat.sum_units(gain).flatten(1)
    best = units.topk(threat.count, dim=1).values.sum(1)
    found = rise(model, x, bt.attack(name, model, x, y, threat=threat, **args), y)
    assert (found <= best * (1 + 1e-9)).all()
    assert (found >= share * best).all()


@pytest.mark.parametrize("text", ["L0", "L0 values"])
@pytest.mark.parametrize("name", ["sigma_zero", "sparse_pgd", "pgd"])
def test_the_fewest_pixels_that_fool_a_linear_model(text: str, name: str) -> None:
    """With as many pixels as it takes an attack succeeds, with one less it cannot."""
    model, x, y, gain = linear_case(2)
    x, y, gain = x[:1], y[:1], gain[:1]
    by_value = text.endswith("values")
    needed = 9 if by_value else 5
    units = SparseChange(1, by_value).sum_units(gain).flatten()
    cumulative = units.sort(descending=True).values.cumsum(0)
    with torch.no_grad():  # the margin lies between the best of needed - 1 and of needed units
        target = 0.1 * cumulative[needed - 2] + 0.9 * cumulative[needed - 1]
        model.bias[0] += margin(model(x), y)[0] + target - 0.6 * units.sort().values[-needed]
    args: dict[str, Any] = {"steps": 200}
    if name == "pgd":
        args = {"steps": 40, "rel_step": 1000.0, "loss": "margin"}
    for count, is_fooled in ((needed - 1, False), (needed, True)):
        if is_fooled and name != "pgd":
            count += 1  # they need not find the very best pixels
        out = run_attack(create_attack(name, **args), model, x, y, SparseChange(count, by_value))
        assert bool(out.fooled[0]) == is_fooled, count


@pytest.mark.parametrize("text", ["patch:2", "patch:3", "patch:2,0,0,3,1"])
@pytest.mark.parametrize(
    ("name", "args", "share"),
    [("pgd", {"steps": 40, "rel_step": 1000.0, "loss": "margin"}, 0.999),
     ("patch_pgd", {"steps": 10, "restarts": 1}, 0.999), ("random_search", {"queries": 300}, 0.4)],
)  # fmt: skip
def test_patches_of_a_linear_model(
    text: str, name: str, args: dict[str, Any], share: float
) -> None:
    """Exhaustively over all places: the best content moves each value to its better corner."""
    model, x, y, gain = linear_case(1)
    threat = Threat.parse(text)
    assert isinstance(threat, Patch)
    side, n = threat.side, SIDE - threat.side + 1
    places = threat.places or [(i, j) for i in range(n) for j in range(n)]
    best = torch.stack(
        [gain[:, :, i : i + side, j : j + side].flatten(1).sum(1) for i, j in places]
    ).amax(0)
    found = rise(model, x, bt.attack(name, model, x, y, threat=threat, **args), y)
    assert (found <= best * (1 + 1e-9)).all()
    assert (found >= share * best).all()


def exhaustive(model: torch.nn.Module, x: Tensor, y: Tensor, threat: Spatial) -> Tensor:
    """(N,) the largest margin over the whole grid, one transformation after the other."""
    worst = margin(model(x), y)
    for point in threat.grid(31, 5).to(x):
        moved = threat.apply(x, point.expand(len(x), 3, 1, 1))
        worst = worst.maximum(margin(model(moved), y))
    return worst


def test_the_grid_search_is_exhaustive() -> None:
    model = small_net(size=8).double()
    x = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(4)).double()
    y, threat = model(x).argmax(1), Threat.parse("spatial:30,2")
    assert isinstance(threat, Spatial)
    with torch.no_grad():
        worst = exhaustive(model, x, y, threat)
        on_grid = bt.attack("grid", model, x, y, threat=threat, refine=0)
        refined = bt.attack("grid", model, x, y, threat=threat, refine=60)
        torch.testing.assert_close(margin(model(on_grid), y), worst, rtol=0, atol=1e-9)
        assert (margin(model(refined), y) >= worst - 1e-9).all()
        assert (margin(model(refined), y) > worst + 1e-6).any()


def test_a_quarter_turn_and_a_whole_move_are_exact() -> None:
    """Where no pixel falls between others, resampling is a permutation."""
    x = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    turn = Spatial(90.0, 0.0).apply(x, torch.tensor([1.0, 0.5, 0.5]).double().view(1, 3, 1, 1))
    assert torch.allclose(turn, x.rot90(1, (2, 3)), atol=1e-9) or torch.allclose(
        turn, x.rot90(-1, (2, 3)), atol=1e-9
    )
    move = Spatial(0.0, 2.0).apply(x, torch.tensor([0.5, 1.0, 0.5]).double().view(1, 3, 1, 1))
    torch.testing.assert_close(move[..., 2:], x[..., :-2], rtol=0, atol=1e-9)
    assert move[..., :2].max() < 1e-12, "what comes in is black"


def test_a_change_of_coefficients_is_that_of_a_jpeg_file() -> None:
    """A change by the quantization step of one coefficient is its cosine wave in the image."""
    jpeg = Threat.parse("jpeg:1")
    x = torch.full((1, 1, 16, 16), 0.5).double()
    points = jpeg.center(x)  # type: ignore[attr-defined]
    points[0, 0, 1, 2] = 1.0  # the first block of luminance: vertical frequency 1, horizontal 2
    change = (jpeg.apply(x, points) - x)[0, 0] * 255  # type: ignore[attr-defined]
    i = torch.arange(8).double()
    wave = [torch.cos((2 * i + 1) * k * torch.pi / 16) / 2 for k in (1, 2)]
    expected = 0.5 * 14 * wave[0][:, None] * wave[1][None, :]
    torch.testing.assert_close(change[:8, :8], expected, rtol=0, atol=1e-9)
    assert change[8:].abs().max() < 1e-9


def test_fog_is_a_plasma_fractal_between_zero_and_one() -> None:
    from buttress.threats.fog import plasma

    offsets = 2 * torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0)) - 1
    fog = plasma(offsets)
    assert torch.equal(fog.amin((1, 2)), torch.zeros(3))
    assert torch.equal(fog.amax((1, 2)), torch.ones(3))
    neighbors = (fog - fog.roll(1, 2)).abs().mean() / (fog - fog.roll(8, 2)).abs().mean()
    assert neighbors < 0.8, "near points are alike"
