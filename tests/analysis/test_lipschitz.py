"""Lipschitz constants against maps whose constants are known."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from buttress.analysis import AnalysisSubject
from buttress.analysis.lipschitz import LipschitzResult, lipschitz
from buttress.analysis.methods.gaussian_bound import convolution_bound, dense_bound, gaussian_bound
from buttress.analysis.methods.lipschitz_bound import lipschitz_upper_bounds, max_derivative
from buttress.analysis.methods.lipschitz_ratio import (
    LOGITS,
    OutputHooks,
    RatioAscent,
    RatioMeasurements,
    create_measurement,
    measure_ratios,
)
from buttress.analysis.methods.spectral_norms import (
    LayerCall,
    SpectralNorms,
    layer_norms,
    matrix_norm,
    operator_norm,
)
from buttress.attacks.core import create_attack
from buttress.data import Dataset, load_dataset
from buttress.errors import UserError
from buttress.models import create_model, list_models, network_blocks
from buttress.threats.norm_ball import NormBall


def flat(shape: tuple[int, int, int], n: int = 3, classes: int = 4) -> Dataset:
    """Grey images, from which every direction is free."""
    x, y = torch.full((n, *shape), 0.5), torch.arange(n) % classes
    return Dataset.from_arrays(x, y, classes=[str(k) for k in range(classes)])


def linear(weight: Tensor, bias: float = 0.3) -> nn.Sequential:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.fill_(bias)
    return nn.Sequential(nn.Flatten(), layer).eval()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def subject(
    model: nn.Module, shape: tuple[int, int, int], threat: str = "Linf:0.1"
) -> AnalysisSubject:
    return AnalysisSubject(model, flat(shape), NormBall.parse(threat))


def dense(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """The explicit matrix of an affine map, column by column."""
    basis = torch.eye(math.prod(shape)).view(-1, *shape)
    with torch.no_grad():
        return (layer(basis) - layer(torch.zeros(1, *shape))).flatten(1).T


def test_a_linear_map_in_l1_over_linf() -> None:
    weight = drawn(4, 8)
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=8)))
    exact = float((signs @ weight.T).abs().sum(1).max())  # a convex function: best at a corner
    result = lipschitz(subject(linear(weight), (2, 2, 2))).logits.l1_linf
    assert 0.9 * exact <= result.largest <= exact * (1 + 1e-4)
    assert result.at_attack_result <= result.attack_max * (1 + 1e-5)
    positive = linear(weight.abs())
    result = lipschitz(subject(positive, (2, 2, 2))).logits.l1_linf
    assert result.ascent_max == pytest.approx(float(weight.abs().sum()), rel=1e-4)


@pytest.mark.parametrize("threat", ["Linf:0.1", "L2:0.2", "L1:1"])
def test_a_linear_map_in_l2_has_its_spectral_norm(threat: str) -> None:
    weight = drawn(4, 12)
    exact = float(torch.linalg.matrix_norm(weight, 2))
    result = lipschitz(subject(linear(weight), (3, 2, 2), threat))
    assert 0.99 * exact <= result.logits.l2_l2.largest <= exact * (1 + 1e-4)
    assert result.logits.bound_log10 == pytest.approx(math.log10(exact), abs=1e-6)
    assert result.layers[0].spectral == pytest.approx(exact, rel=1e-6)
    assert result.bound_unavailable == ""


def test_orthogonal_layers_have_the_constant_one() -> None:
    layers: list[nn.Module] = [nn.Flatten()]
    for seed in range(3):
        turn = nn.Linear(12, 12)
        with torch.no_grad():
            turn.weight.copy_(torch.linalg.qr(drawn(12, 12, seed=seed)).Q)
        layers.append(turn)
    model = nn.Sequential(*layers).eval()
    result = lipschitz(subject(model, (3, 2, 2)))
    for place in result.blocks:  # every layer is a block here
        assert place.l2_l2.largest == pytest.approx(1, abs=1e-3)
        assert place.l2_l2.at_attack_result == pytest.approx(1, abs=1e-3)
        assert place.bound_log10 == pytest.approx(0, abs=1e-5)
    assert result.layers[-1].product_log10 == pytest.approx(0, abs=1e-5)


CONVOLUTIONS = [
    nn.Conv2d(3, 5, 3, padding=1),
    nn.Conv2d(3, 4, 3, stride=2, padding=1),
    nn.Conv2d(4, 6, 3, padding=1, groups=2),
    nn.Conv2d(2, 3, 3, padding=2, dilation=2),
    nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
    nn.Conv2d(3, 8, 2, stride=2),
    nn.Conv2d(3, 2, (1, 3), padding="same"),
]


@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=repr)
def test_a_convolution_has_the_norm_of_its_explicit_matrix(layer: nn.Conv2d) -> None:
    shape = (layer.in_channels, 6, 6)
    with torch.no_grad():
        layer.weight.copy_(drawn(*layer.weight.shape))
    norms = SpectralNorms(layer, torch.zeros(1))
    exact = float(torch.linalg.matrix_norm(dense(layer, shape), 2))
    assert norms.norm(LayerCall("", layer, shape)) == pytest.approx(exact, rel=1e-3)
    norm = nn.BatchNorm2d(layer.out_channels).eval()
    with torch.no_grad():
        assert norm.running_var is not None
        norm.running_var.uniform_(0.1, 3, generator=torch.Generator().manual_seed(1))
        norm.weight.copy_(drawn(layer.out_channels))
    both = nn.Sequential(layer, norm)
    exact = float(torch.linalg.matrix_norm(dense(both, shape), 2))
    assert norms.norm(LayerCall("", layer, shape), norm) == pytest.approx(exact, rel=1e-3)


def test_a_batchnorm_is_folded_where_it_follows_and_a_row_where_it_does_not() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4),
        nn.Flatten(), nn.Linear(64, 3),
    ).eval()  # fmt: skip
    x = torch.zeros(1, 3, 4, 4)
    rows = layer_norms(model, x, SpectralNorms(model, x))
    assert [(r.name, r.kind, r.batchnorm) for r in rows] == [
        ("0", "convolution", "1"), ("3", "norm", ""), ("5", "linear", ""),
    ]  # fmt: skip
    first, second, third = rows
    assert first.spectral_with_batchnorm == pytest.approx(
        first.spectral * (1 + 1e-5) ** -0.5, rel=1e-4
    )
    assert second.gaussian is None
    assert first.spectral_with_batchnorm is not None
    product = first.spectral_with_batchnorm * second.spectral * third.spectral
    assert third.product_log10 == pytest.approx(math.log10(product))
    assert first.gaussian is not None
    assert third.gaussian is not None
    assert third.gaussian_log10 == pytest.approx(math.log10(first.gaussian * third.gaussian))
    bound = lipschitz_upper_bounds(model, x, SpectralNorms(model, x), {})[0][""]
    assert bound == pytest.approx(math.log(product))  # a plain chain: the product is the bound


@pytest.mark.parametrize(("inputs", "outputs"), [(10, 300), (200, 200), (400, 20)])
def test_the_gaussian_bound_of_dense_layers_holds_and_is_near(inputs: int, outputs: int) -> None:
    result = [matrix_norm(0.3 * drawn(outputs, inputs, seed=s)) for s in range(5)]
    bound = dense_bound(inputs, outputs, 0.3)
    assert 0.9 * bound <= sum(result) / 5 <= bound


@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize("channels", [(3, 8), (16, 16), (32, 8)])
def test_the_gaussian_bound_of_convolutions_holds(size: int, channels: tuple[int, int]) -> None:
    layer = nn.Conv2d(*channels, 3, padding=1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(0.2 * drawn(*layer.weight.shape))
    norm = operator_norm(layer, torch.zeros(1, channels[0], size, size))
    bound = gaussian_bound(layer, (channels[0], size, size))
    sigma = float(layer.weight.detach().square().mean().sqrt())
    assert bound == pytest.approx(convolution_bound(*channels, [size + 2] * 2, [3, 3], sigma))
    assert bound / (size + 2) < norm <= bound  # it grows with the map, the layer does not


def test_without_its_padding_the_gaussian_bound_fails_on_small_maps() -> None:
    layer = nn.Conv2d(64, 64, 3, padding=1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(drawn(64, 64, 3, 3))
    norm = operator_norm(layer, torch.zeros(1, 64, 2, 2))
    assert convolution_bound(64, 64, [2, 2], [3, 3], 1.0) < norm
    assert norm < gaussian_bound(layer, (64, 2, 2))


class Residual(nn.Module):
    """x + relu(Wx), joined with x / 2, averaged over places."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = x + F.relu(self.branch(x))
        return self.head(torch.cat([y, 2 * x / 4], 1).mean((2, 3)))


def test_branches_add_and_joined_parts_add_in_squares() -> None:
    model, x = Residual().eval(), torch.zeros(1, 3, 4, 4)
    norms = SpectralNorms(model, x)
    branch = norms.norm(LayerCall("", model.branch, (3, 4, 4)))
    head = norms.norm(LayerCall("", model.head, (6,)))
    result = math.exp(lipschitz_upper_bounds(model, x, norms, {})[0][""])
    assert result == pytest.approx(math.hypot(1 + branch, 0.5) / 4 * head)


def test_attention_and_products_of_activations_have_no_bound() -> None:
    result = lipschitz(
        AnalysisSubject(create_model("vit_tiny", seed=0).eval(), digits(2), NormBall("Linf", 0.1)),
        steps=2,
    )
    assert "attention" in result.bound_unavailable
    assert result.logits.bound_log10 is None
    assert "no upper bound" in result.summary()

    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * x).flatten(1)

    model, x = Square(), torch.rand(1, 3, 2, 2)
    bounds, reason = lipschitz_upper_bounds(model, x, SpectralNorms(model, x), {})
    assert (bounds, reason) == ({}, "the operation mul at mul has no known Lipschitz constant")


def test_what_comes_before_attention_keeps_its_bound() -> None:
    model, x = create_model("botnet_tiny", seed=0).eval(), digits(1).images
    places = OutputHooks(model, {p.name: p.module for p in network_blocks(model)})
    result, reason = lipschitz_upper_bounds(model, x, SpectralNorms(model, x), places.outputs(x))
    assert "attention" in reason
    assert 0 < len(result) < len(places.modules)
    assert next(iter(places.modules)) in result
    assert "" not in result


def digits(n: int) -> Dataset:
    return load_dataset("digits", "test", limit=n)


CNNS = ["vgg_tiny", "wrn_tiny", "densenet_tiny", "mlp_mixer_tiny"]


@pytest.mark.parametrize("name", CNNS)
def test_no_block_moves_more_than_its_bound(name: str) -> None:
    model = create_model(name, seed=0)
    for module in model.modules():  # statistics as after training, not the identity
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_var is not None
            module.running_var.uniform_(0.05, 0.5)
    result = lipschitz(AnalysisSubject(model.eval(), digits(3), NormBall("Linf", 0.1)), steps=5)
    assert result.bound_unavailable == ""
    for place in result.blocks:
        assert place.bound_log10 is not None
        assert math.log10(place.l2_l2.largest) <= place.bound_log10 + 1e-4
        assert place.l1_linf.largest >= max(place.l1_linf.ascent_max, place.l1_linf.attack_max)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_models("tiny"))
def test_it_runs_on_every_family_and_leaves_it_as_it_was(name: str) -> None:
    model = create_model(name, seed=0).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    result = lipschitz(AnalysisSubject(model, digits(4), NormBall("Linf", 0.1)), steps=5)
    assert LipschitzResult.model_validate_json(result.model_dump_json()) == result
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())
    assert result.logits.l1_linf.ascent_max > 0
    assert bool(result.bound_unavailable) == (result.logits.bound_log10 is None)


def test_one_table_shows_that_every_bound_is_above_what_was_measured() -> None:
    """Gaussian weights and no branches: also the theorems' product holds at every block."""
    layers: list[nn.Module] = [nn.Flatten()]
    for seed, (inputs, outputs) in enumerate([(12, 30), (30, 20), (20, 4)]):
        layer = nn.Linear(inputs, outputs)
        with torch.no_grad():
            layer.weight.copy_(0.3 * drawn(outputs, inputs, seed=seed))
        layers += [layer, nn.ReLU()]
    result = lipschitz(subject(nn.Sequential(*layers[:-1]).eval(), (3, 2, 2)))
    header, rows = result.table()
    assert [row[0] for row in rows] == [p.name for p in result.blocks]
    assert all(len(row) == len(header) for row in rows)
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    for name in ("bound", "product of norms", "Gaussian weights"):
        limits = dict(zip(columns["up to"], columns[name], strict=True))
        for place, measured in zip(columns["up to"], columns["log10 of it"], strict=True):
            assert limits[place] == "-" or float(measured) <= float(limits[place]) + 0.01
        assert limits[LOGITS] != "-"


def test_the_ascent_finds_more_than_the_attack() -> None:
    model = create_model("resnet_tiny", seed=0).eval()
    result = lipschitz(AnalysisSubject(model, digits(3), NormBall("Linf", 0.1))).logits.l1_linf
    assert result.ascent_max > result.attack_max >= result.at_attack_result > 0
    with pytest.raises(UserError, match="radii"):
        RatioAscent(radii=(1.0, 2.0))


def test_images_do_not_depend_on_each_other() -> None:
    model = create_model("wrn_tiny", seed=0).eval()
    places = OutputHooks(model, {})

    def ratios(data: Dataset) -> RatioMeasurements:
        one = AnalysisSubject(model, data, NormBall("Linf", 0.1))
        measurement = create_measurement(one, create_attack("pgd"), 5, (1.0, 0.1))
        return measure_ratios(one, measurement, places, data)[LOGITS]

    together = ratios(digits(3))
    for row in range(3):
        alone = ratios(digits(3).select([row]))
        for part in ("at_attack_result", "attack_max", "ascent_max"):
            expected = getattr(together, part)[:, row : row + 1]
            torch.testing.assert_close(getattr(alone, part), expected, rtol=1e-3, atol=0)


def test_curves_have_their_known_slopes() -> None:
    gelu = (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi)  # at the root of 2
    assert max_derivative(nn.GELU()) == pytest.approx(gelu, rel=1e-6)
    assert max_derivative(nn.Sigmoid()) == 0.25
    assert max_derivative(nn.SiLU(inplace=True)) == pytest.approx(1.0998, abs=1e-4)


def test_an_image_that_the_attack_does_not_move_is_left_out() -> None:
    model = linear(torch.zeros(4, 12))
    result = lipschitz(subject(model, (3, 2, 2)))
    assert result.num_perturbed == 0
    assert result.logits.l1_linf.at_attack_result == result.logits.l1_linf.largest == 0
    assert result.logits.bound_log10 is None or result.logits.bound_log10 == -math.inf


def test_sigma_is_the_root_mean_square_of_the_weights_without_biases() -> None:
    model = linear(torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 4.0]]), bias=100.0)
    result = lipschitz(subject(model, (3, 1, 1)), limit=1, steps=1)
    assert result.weight_sigma == pytest.approx(math.sqrt(25 / 6))
