"""Sharpness against dense Hessians, dense eigenvalues and a bowl whose figures are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from buttress.analysis import AnalysisNotApplicable, AnalysisSubject
from buttress.analysis.methods.hessian import LossHessian
from buttress.analysis.methods.lanczos import hutchinson, lanczos
from buttress.analysis.methods.weight_directions import filter_norms, filter_weights
from buttress.analysis.sharpness import SharpnessResult, sharpness
from buttress.analysis.subject import ImageSample, load_sample
from buttress.data import Dataset, load_dataset
from buttress.models import create_model
from buttress.threats.norm_ball import NormBall
from conftest import Linear
from known_curvature import bowl, normed, rescaled


def symmetric(size: int, seed: int = 0) -> Tensor:
    made = torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
    return (made + made.T) / 2


def drawn(size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("size", [1, 2, 60])
def test_lanczos_finds_the_ends_of_a_dense_spectrum(size: int) -> None:
    matrix = symmetric(size)
    values = torch.linalg.eigvalsh(matrix.double())
    result = lanczos(lambda v: matrix @ v, drawn(size), steps=60, tolerance=1e-6)
    assert result.largest == pytest.approx(float(values[-1]), rel=1e-4)
    assert result.lowest == pytest.approx(float(values[0]), rel=1e-2)
    assert result.num_products <= size


def test_an_early_end_of_lanczos_has_an_eigenvalue_within_its_residual() -> None:
    matrix = symmetric(200, seed=1)
    values = torch.linalg.eigvalsh(matrix.double())
    result = lanczos(lambda v: matrix @ v, drawn(200), steps=8, tolerance=0.0)
    assert result.num_products == 8
    assert result.largest <= float(values[-1]) + 1e-4
    assert float((values - result.largest).abs().min()) <= result.residual + 1e-4


def test_lanczos_of_nothing_is_zero() -> None:
    result = lanczos(torch.zeros_like, drawn(10), steps=5)
    assert (result.largest, result.lowest, result.residual) == (0.0, 0.0, 0.0)


def test_hutchinson_is_exact_for_a_diagonal_and_near_for_others() -> None:
    source = torch.Generator().manual_seed(0)
    diagonal = torch.tensor([1.0, -2.0, 4.0])
    assert hutchinson(lambda v: diagonal * v, 3, 1, source)[:2] == (3.0, None)
    matrix = symmetric(50, seed=2)
    result = hutchinson(lambda v: matrix @ v, 50, 400, source)
    assert result.error is not None
    assert abs(result.value - float(matrix.trace())) < 4 * result.error


class Logistic(nn.Module):
    """Two layers, so that the Hessian is not only that of a convex loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x.flatten(1))))


def small_data(n: int = 6) -> Dataset:
    x = torch.rand(n, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    return Dataset.from_arrays(x, torch.arange(n) % 3)


def dense_hessian(model: nn.Module, sample: ImageSample, names: list[str]) -> Tensor:
    parameters = dict(model.named_parameters())
    sizes = [parameters[n].numel() for n in names]

    def loss(flat: Tensor) -> Tensor:
        pieces = flat.split(sizes)
        moved = {n: p.view_as(parameters[n]) for n, p in zip(names, pieces, strict=True)}
        return F.cross_entropy(functional_call(model, moved, (sample.x,)), sample.y)

    flat = torch.cat([parameters[n].detach().flatten() for n in names])
    return torch.autograd.functional.hessian(loss, flat)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("batch", [128, 4])
def test_products_are_those_of_the_dense_hessian(
    relative: bool, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buttress.analysis.subject.SAMPLE_BATCH", batch)
    model = Logistic().eval()
    sample = load_sample(model, small_data())
    weights = filter_weights(model) if relative else dict(model.named_parameters())
    dense = dense_hessian(model, sample, list(weights))
    if relative:
        units = torch.cat(
            [filter_norms(w).expand_as(w).flatten() for w in weights.values()]
        )  # fmt: skip
        dense = units[:, None] * dense * units
    curved = LossHessian(model, sample, weights, relative=relative)
    for k in range(3):
        vector = drawn(curved.size).roll(k)
        assert torch.allclose(curved.hessian_vector_product(vector), dense @ vector, atol=1e-5)


def test_the_largest_eigenvalue_is_redrawn_as_it_changes_without_an_image() -> None:
    """To first order: leaving an image out moves the eigenvalue as its own curvature says."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), nn.Tanh(), nn.Linear(16, 10)).eval()
    data = load_dataset("digits", "test", limit=8)

    def largest(rows: list[int]) -> SharpnessResult:
        given = AnalysisSubject(model, data.select(rows), NormBall("Linf", 0.1))
        return sharpness(given, steps=0, lanczos_steps=40, directions=1, radii=(0.01,))

    whole = largest(list(range(8)))
    samples = whole.samples["clean.hessian.largest"].load()
    order = np.argsort(data.ids.numpy()).tolist()
    weights = np.full((8, 8), 1 / 7)
    weights[np.arange(8), [order.index(row) for row in range(8)]] = 0.0
    without = [largest([r for r in range(8) if r != row]).clean.hessian.largest for row in range(8)]
    redrawn = samples.redraw(weights)
    assert redrawn == pytest.approx(without, rel=0.05)
    assert np.corrcoef(redrawn, without)[0, 1] > 0.9


def test_the_figures_are_those_of_the_dense_hessian() -> None:
    model = Logistic().eval()
    given = AnalysisSubject(model, small_data(), NormBall("Linf", 0.1))
    sample = load_sample(model, given.data)
    result = sharpness(given, steps=0, lanczos_steps=58, probes=300)
    dense = dense_hessian(model, sample, [n for n, _ in model.named_parameters()])
    values = torch.linalg.eigvalsh(dense)
    assert result.adversarial is None
    assert result.clean.hessian.largest == pytest.approx(float(values[-1]), rel=1e-3)
    assert result.clean.hessian.trace is not None
    assert result.clean.hessian.trace_error is not None
    gap = abs(result.clean.hessian.trace - float(dense.trace()))
    assert gap < 4 * result.clean.hessian.trace_error


def test_a_bowl_has_the_sharpness_of_its_formula() -> None:
    result = sharpness(bowl(), steps=0, radii=(0.1, 0.2), directions=2).clean
    # log(1 + exp(q)) with q = |v|^2 has the Hessian 2 * 1/2 at 0, and filters of lengths 5, 1, 2.
    assert result.hessian.largest == pytest.approx(1.0, rel=1e-4)
    assert result.filter_hessian.largest == pytest.approx(25.0, rel=1e-3)
    for rise, radius in zip(result.rises, (0.1, 0.2), strict=True):
        most = math.log1p(math.exp(30 * radius**2)) - math.log(2)
        assert rise.random_max == pytest.approx(most, rel=1e-3)
        assert rise.random_mean == pytest.approx(most, rel=1e-3)
        assert rise.ascent_max == pytest.approx(0, abs=1e-6)  # no gradient at the bottom


def test_rescaled_filters_change_the_plain_figure_only() -> None:
    data, threat = load_dataset("digits", "test", limit=8), NormBall("Linf", 0.1)
    args: dict[str, Any] = {"steps": 0, "radii": (0.05,), "directions": 3, "lanczos_steps": 40}
    one, other = (
        sharpness(AnalysisSubject(m, data, threat), **args).clean
        for m in (normed(), rescaled(normed()))
    )
    assert one.filter_hessian.largest == pytest.approx(other.filter_hessian.largest, rel=1e-2)
    assert one.rises[0].random_max == pytest.approx(other.rises[0].random_max, rel=1e-2, abs=1e-5)
    assert one.rises[0].ascent_max == pytest.approx(other.rises[0].ascent_max, rel=1e-2)
    assert one.hessian.largest != pytest.approx(other.hessian.largest, rel=0.2)


def test_ascent_finds_more_than_chance_and_rises_with_the_radius() -> None:
    model = create_model("vit_tiny", seed=0).eval()
    given = AnalysisSubject(model, load_dataset("digits", "test", limit=8), NormBall("Linf", 0.1))
    result = sharpness(given, radii=(0.05, 0.01), directions=2, lanczos_steps=4, steps=2)
    for figures in (result.clean, result.adversarial):
        assert figures is not None
        assert [r.radius for r in figures.rises] == [0.01, 0.05]
        assert all(r.largest == r.ascent_max > r.random_max for r in figures.rises)
        assert figures.rises[1].ascent_max > figures.rises[0].ascent_max
    said = result.summary()
    assert "clean loss" in said
    assert "attacked in Linf:25.5/255" in said


def test_ascent_finds_the_highest_loss_in_the_ball_of_a_linear_model() -> None:
    x, y = torch.rand(1, 1, 2, 3, generator=torch.Generator().manual_seed(4)), torch.tensor([1])
    model = Linear(6, 2).eval()
    given = AnalysisSubject(model, Dataset.from_arrays(x, y), NormBall("Linf", 0.1))
    result = sharpness(given, steps=0, radii=(0.3,), directions=50).clean
    lengths = model.weight.detach().norm(dim=1)
    z = model(x)[0].detach()
    # The wrong row moves along the image, the right one against it.
    gap = float(z[0] - z[1] + 0.3 * lengths.sum() * x.norm())
    highest = math.log1p(math.exp(gap)) - result.loss
    assert result.rises[0].ascent_max == pytest.approx(highest, rel=1e-4)
    assert result.rises[0].random_max < highest


def test_a_network_without_second_derivative_is_told_so() -> None:
    class Cut(Logistic):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cdist(super().forward(x), torch.eye(3), p=1)

    given = AnalysisSubject(Cut().eval(), small_data(), NormBall("Linf", 0.1))
    with pytest.raises(AnalysisNotApplicable, match="no second derivative"):
        sharpness(given, steps=0)
