"""Landscapes of weights and of images against closed forms, and that nothing is left changed."""

from __future__ import annotations

import copy
import inspect
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.analysis import ANALYSES, AnalysisNotApplicable, AnalysisSubject
from buttress.analysis.core import resolve_args
from buttress.analysis.input_landscape import input_landscape, landscape_axes
from buttress.analysis.landscape import (
    LandscapeResult,
    landscape,
    landscape_cost,
)  # fmt: skip
from buttress.analysis.methods.weight_directions import (
    clip_to_filter_ball,
    filter_norms,
    filter_weights,
    movable_weights,
    random_direction,
)
from buttress.analysis.subject import attack_sample, load_sample
from buttress.data import Dataset, load_dataset
from buttress.engine.fast_model import FastModel
from buttress.errors import UserError
from buttress.models import create_model
from buttress.threats.norm_ball import Norm, NormBall
from known_curvature import bowl, normed, rescaled

MINE = ("landscape", "input_landscape", "sharpness")
SMALL = {"points": 5, "limit": 8, "steps": 2}


def subject(name: str = "resnet_tiny", limit: int = 12) -> AnalysisSubject:
    model = create_model(name, seed=0).eval()
    return AnalysisSubject(
        model, load_dataset("digits", "test", limit=limit), NormBall("Linf", 0.1)
    )


def test_a_bowl_has_the_landscape_of_its_formula() -> None:
    result = landscape(bowl(), radius=0.8, points=5, directions=2, adversarial_mode="none")
    square = 25 + 1 + 4  # of the length of every filter-normalised direction
    curve = [math.log1p(math.exp(square * a * a)) for a in (-0.8, -0.4, 0.0, 0.4, 0.8)]
    for row in result.clean.curves:
        assert row == pytest.approx(curve, rel=1e-5)
    assert result.clean.rise == pytest.approx(curve[1] - math.log(2), rel=1e-5)
    assert result.rise_radius == pytest.approx(0.4)
    assert result.adversarial is None
    plane = torch.tensor(result.clean.plane)
    assert torch.allclose(plane, plane.flip(0, 1))  # F(a, b) = F(-a, -b)
    assert plane[2].tolist() == pytest.approx(result.clean.curves[1])  # a = 0: the second direction
    assert plane[:, 2].tolist() == pytest.approx(result.clean.curves[0])


def test_rescaled_filters_before_batchnorm_change_no_curve() -> None:
    first, second = normed(), rescaled(normed())
    x = load_dataset("digits", "test", limit=4).images
    assert torch.allclose(first(x), second(x), atol=1e-5)
    data, threat = load_dataset("digits", "test", limit=8), NormBall("Linf", 0.1)
    one, other = (
        landscape(AnalysisSubject(m, data, threat), points=5, steps=2) for m in (first, second)
    )
    for kind in ("clean", "adversarial"):
        a, b = getattr(one, kind), getattr(other, kind)
        for left, right in zip([*a.curves, *a.plane], [*b.curves, *b.plane], strict=True):
            assert left == pytest.approx(right, rel=2e-3)
    assert max(one.clean.curves[0]) > 1.2 * one.clean.center  # something moved


def test_the_center_is_the_plain_loss_and_nothing_is_left_changed() -> None:
    given = subject()
    given.model.train()
    before = {name: t.clone() for name, t in given.model.state_dict().items()}
    state = torch.get_rng_state()
    result = {name: ANALYSES.create(name, {"subject": given, **_small(name)}) for name in MINE}
    assert torch.equal(torch.get_rng_state(), state)
    assert given.model.training
    assert all(p.requires_grad and p.grad is None for p in given.model.parameters())
    assert all(torch.equal(t, before[name]) for name, t in given.model.state_dict().items())
    given.model.eval()
    x, y, _ = given.data.take(torch.arange(8))
    with torch.no_grad():
        plain = float(F.cross_entropy(given.model(x), y))
    assert result["landscape"].clean.center == pytest.approx(plain, rel=1e-5)
    assert result["sharpness"].clean.loss == pytest.approx(plain, rel=1e-5)
    assert result["input_landscape"].loss[2][2] == pytest.approx(plain, rel=1e-5)
    worse = attack_sample(given, load_sample(given.model, given.first_images(8)), 2)
    with torch.no_grad():
        attacked_loss = float(F.cross_entropy(given.model(worse.x), y))
    assert result["landscape"].adversarial.center == pytest.approx(attacked_loss, rel=1e-5)
    assert attacked_loss > plain


def _small(name: str) -> dict[str, int]:
    return {k: v for k, v in SMALL.items() if k in inspect.signature(ANALYSES.get(name)).parameters}


def test_attacks_made_anew_at_each_point_are_no_weaker() -> None:
    given = subject("mlp_mixer_tiny", 6)
    fixed, anew = (
        landscape(given, points=3, directions=1, radius=0.6, adversarial_mode=kind, steps=10)
        for kind in ("center", "each")
    )
    assert fixed.clean == anew.clean
    assert fixed.clean.plane == ()
    assert fixed.adversarial is not None
    assert anew.adversarial is not None
    assert anew.adversarial.center == pytest.approx(fixed.adversarial.center)
    for here, there in zip(fixed.adversarial.curves[0], anew.adversarial.curves[0], strict=True):
        assert there >= here - 1e-3
    assert anew.adversarial.curves[0][0] > fixed.adversarial.curves[0][0]


@pytest.mark.parametrize("name", ["wrn_tiny", "coatnet_tiny", "vit_tiny"])
def test_the_copy_in_another_layout_is_the_same_model(name: str) -> None:
    model, x = create_model(name, seed=0).eval(), load_dataset("digits", "test", limit=4).images
    made = FastModel.keep_parameters(model, x[:2]).module
    assert (made is model) == (name == "vit_tiny")
    torch.testing.assert_close(made(x), model(x), rtol=1e-4, atol=1e-4)
    assert list(filter_weights(made)) == list(filter_weights(model))
    if made is not model:
        assert not {id(p) for p in made.parameters()} & {id(p) for p in model.parameters()}
        kernel = next(p for p in made.parameters() if p.ndim == 4 and p.shape[1] > 1)
        assert kernel.is_contiguous(memory_format=torch.channels_last)


def test_a_model_with_other_outputs_in_another_layout_is_left_alone() -> None:
    class Odd(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            is_last = out.is_contiguous(memory_format=torch.channels_last)
            return out.mean((2, 3)) + (10 if is_last else 0)

    model = Odd(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    assert FastModel.keep_parameters(model, torch.rand(2, 3, 8, 8)).module is model


def test_weights_come_back_after_an_interruption() -> None:
    weights = filter_weights(model := create_model("resnet_tiny", seed=0))
    before = copy.deepcopy(model.state_dict())
    way = random_direction(weights, "test")

    def interrupted() -> None:
        with movable_weights(weights) as move:
            move((0.3, way), (0.1, way))
            assert not any(torch.equal(p, before[n]) for n, p in weights.items())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_filters_keep_their_lengths_in_directions_and_balls() -> None:
    weights = filter_weights(create_model("vit_tiny", seed=0))
    first, again, other = (random_direction(weights, "test", k) for k in (0, 0, 1))
    for name, weight in weights.items():
        assert torch.allclose(filter_norms(first[name]), filter_norms(weight), rtol=1e-4)
        assert torch.equal(first[name], again[name])
        assert weight.ndim >= 2
    assert not all(torch.equal(first[n], other[n]) for n in weights)
    far = {name: 5 * d for name, d in first.items()}
    for name, offset in clip_to_filter_ball(far, weights, 0.2).items():
        assert torch.allclose(filter_norms(offset), 0.2 * filter_norms(weights[name]), rtol=1e-4)
    near = {name: 0.1 * d for name, d in first.items()}
    kept = clip_to_filter_ball(near, weights, 0.2)
    assert all(torch.allclose(kept[n], near[n]) for n in weights)


def test_biases_scales_and_norms_do_not_move() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gamma = nn.Parameter(torch.ones(4, 1, 1))
            self.norm = nn.BatchNorm2d(4)
            self.layer = nn.Linear(4, 2)

    assert list(filter_weights(Odd())) == ["layer.weight"]
    with pytest.raises(AnalysisNotApplicable, match="no weight tensor"):
        filter_weights(nn.BatchNorm2d(4))


def linear(weight: Tensor) -> nn.Module:
    layer = nn.Linear(weight.shape[1], 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return nn.Sequential(nn.Flatten(), layer).eval()


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_around_images_a_linear_model_has_the_loss_of_its_formula(norm: Norm) -> None:
    pull = torch.randn(12, generator=torch.Generator().manual_seed(1))
    model = linear(torch.stack([pull, -pull]))
    data = Dataset.from_arrays(torch.full((1, 3, 2, 2), 0.5), torch.tensor([0]), classes=["a", "b"])
    given = AnalysisSubject(model, data, NormBall(norm, 0.1))
    result = input_landscape(given, points=5, steps=20)
    # What is best for the attacker is -sign(w), or -w over its length.
    slope = float(pull.abs().sum() if norm == "Linf" else pull.norm())
    margin = float(pull.sum()) * 0.5 * 2
    expected = [
        math.log1p(math.exp(-(margin - 2 * 0.1 * slope * a))) for a in (-2.0, -1.0, 0.0, 1.0, 2.0)
    ]
    assert result.slice_along(result.loss, attack=True) == pytest.approx(expected, rel=1e-3)
    if norm == "L2":  # the other axis is orthogonal to w: it changes nothing
        assert result.slice_along(result.loss, attack=False) == pytest.approx(
            [expected[2]] * 5, rel=5e-3
        )
    assert result.unperturbed == 0


def test_the_axes_around_images_are_orthogonal_and_of_one_length() -> None:
    given = subject(limit=6)
    sample = load_sample(given.model, given.data)
    axes = landscape_axes(sample, attack_sample(given, sample, 3).x, given.threat, 0)
    s, r = axes.attack.flatten(1), axes.random.flatten(1)
    assert torch.allclose(s.abs().amax(1), torch.ones(6), atol=1e-5)
    assert torch.allclose(s.norm(dim=1), r.norm(dim=1), rtol=1e-4)
    assert (s * r).sum(1).abs().max() < 1e-3 * s.square().sum(1).min()
    halved = landscape_axes(
        type(sample)(*(t[3:] for t in (sample.x, sample.y, sample.ids))),
        attack_sample(given, sample, 3).x[3:],
        given.threat,
        0,
    )
    assert torch.allclose(halved.random, axes.random[3:])  # noise belongs to the image


def test_the_landscape_of_one_image_and_of_many_agree() -> None:
    given = subject(limit=3)
    many = input_landscape(given, points=3, limit=3, steps=2)
    each = [
        input_landscape(given, points=3, image=int(i), steps=2) for i in given.data.ids.tolist()
    ]
    mean = torch.tensor([one.loss for one in each]).mean(0)
    assert torch.allclose(mean, torch.tensor(many.loss), rtol=1e-4)
    assert each[0].images == 1
    assert f"image {each[1].image}" in each[1].summary()
    with pytest.raises(UserError, match="but got image=999999"):
        input_landscape(given, image=999_999)


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("landscape", {"points": 4}, "odd"),
        ("landscape", {"radius": -1}, "`radius` must be a finite number above 0"),
        ("landscape", {"adversarial_mode": "some"}, "center, each, none"),
        ("landscape", {"limit": "many"}, "an integer"),
        ("landscape", {"radius": 1e30, "points": 3, "limit": 2, "steps": 1}, "smaller `radius`"),
        ("input_landscape", {"steps": 0}, "an integer"),
        ("sharpness", {"radii": [0.0]}, "above 0"),
        ("sharpness", {"probes": -1}, "at least 0"),
    ],
)
def test_mistakes_in_arguments_are_said(name: str, args: dict[str, object], said: str) -> None:
    given = subject(limit=2)
    with pytest.raises(UserError, match=said):
        ANALYSES.create(name, {"subject": given, **args})
    if "1e+30" not in str(args) and "radius" not in args:
        entry = ANALYSES.entry(name)
        with pytest.raises(UserError, match=said):  # the cost is asked for before
            ANALYSES.spec(entry.name).cost(given.scope, **resolve_args(entry, args))


class Counting(nn.Module):
    """Counts the images that pass."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.images = net, 0

    def forward(self, x: Tensor) -> Tensor:
        self.images += len(x)
        return self.net(x)


@pytest.mark.parametrize("adversarial", ["center", "each", "none"])
@pytest.mark.parametrize("directions", [1, 3])
def test_the_cost_of_a_landscape_is_what_it_takes(adversarial: str, directions: int) -> None:
    net = Counting(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)))
    given = AnalysisSubject(
        net.eval(), load_dataset("digits", "test", limit=4), NormBall("Linf", 0.1)
    )
    args: dict[str, Any]
    args = {"points": 5, "directions": directions, "limit": 4, "adversarial_mode": adversarial}
    said = landscape_cost(given.scope, steps=3, radius=1.0, **args)
    landscape(given, steps=3, **args)
    assert net.images == pytest.approx(said.forward, rel=0.1)


def test_the_picture_without_an_attack_and_without_a_plane(tmp_path: Path) -> None:
    clean = landscape(bowl(), points=3, directions=2, radius=0.3, adversarial_mode="none")
    line = landscape(bowl(), points=3, directions=1, radius=0.3, adversarial_mode="none")
    for results in ({"": clean}, {"": line}, {"a": clean, "b": line}):
        figure = Figure()
        LandscapeResult.plot(results, figure)
        figure.savefig(tmp_path / "x.png")
    assert "images attacked" not in clean.summary()
