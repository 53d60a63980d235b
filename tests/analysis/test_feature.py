"""Images from noise, against linear networks whose best image is known."""

from __future__ import annotations

import base64
import io
from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from buttress.analysis import AnalysisSubject
from buttress.analysis.feature import (
    FeatureStart,
    feature,
    spatial_mean,
    total_variation,
)
from buttress.data import Dataset
from buttress.errors import UserError
from buttress.models import create_model, list_models
from buttress.models.parts import network_blocks
from buttress.threats.norm_ball import NormBall


class Linear(nn.Module):
    """Class 0 is a pattern of light and dark, class 1 its opposite."""

    def __init__(self) -> None:
        super().__init__()
        signs = torch.randn(36, generator=torch.Generator().manual_seed(0)).sign()
        self.weight = nn.Parameter(0.2 * torch.stack([signs, -signs]))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T


def subject(model: nn.Module) -> AnalysisSubject:
    channels = getattr(model, "in_channels", 1)
    x = torch.rand(4, channels, 6, 6) if channels == 1 else torch.rand(4, channels, 32, 32)
    data = Dataset.from_arrays(x, torch.arange(4) % 2, classes=["a", "b"])
    return AnalysisSubject(model.eval(), data, NormBall("Linf", 0.1))


def pixels(picture: str) -> Tensor:
    return torch.tensor(list(Image.open(io.BytesIO(base64.b64decode(picture))).tobytes())) / 255


def test_a_linear_network_is_shown_its_weights() -> None:
    model = Linear()
    result = feature(subject(model), steps=5, smoothness=0.0)
    for row, picture in zip(model.weight, result.pictures, strict=True):
        best = (row > 0).float()
        torch.testing.assert_close(pixels(picture.targeted), best)  # five steps of 0.225 cross it
        assert ((pixels(picture.direct) > 0.5).float() == best).all()
        assert picture.probability == pytest.approx(float((0.4 * best.sum()).sigmoid()), abs=1e-5)
    assert f"{result.probability:.1%}" in result.summary()


class Wary(Linear):
    """Gives the label of the attack little at the start: what counts is the target alone."""

    def forward(self, x: Tensor) -> Tensor:
        plain = super().forward(x)
        third = -50 * (x.flatten(1).mean(1, keepdim=True) - 0.5).square() - 5
        return torch.cat([plain[:, :1], third, plain[:, 1:]], 1)


def test_the_last_point_is_shown_even_if_the_label_of_the_attack_gains() -> None:
    x = torch.rand(3, 1, 6, 6)
    data = Dataset.from_arrays(x, torch.arange(3), classes=["a", "b", "c"])
    result = feature(AnalysisSubject(Wary().eval(), data, NormBall("Linf", 0.1)), steps=5)
    assert all(p.targeted != p.initial for p in result.pictures)


def test_the_step_is_that_of_the_thesis() -> None:
    result = feature(subject(Linear()), steps=1)
    picture = result.pictures[0]
    moved = pixels(picture.targeted) - pixels(picture.initial)
    assert moved.abs().max() == pytest.approx(0.225, abs=0.005)


@pytest.mark.parametrize(("start", "share"), [("uniform", 0.0), ("binary", 1.0)])
def test_the_published_start_is_nearly_black_and_white(start: FeatureStart, share: float) -> None:
    result = feature(subject(Linear()), steps=1, start=start)
    noise = torch.cat([pixels(p.initial) for p in result.pictures])
    assert ((noise == 0) | (noise == 1)).float().mean() == pytest.approx(share, abs=0.15)


def test_classes_by_name_at_random_and_from_images() -> None:
    data = Dataset.from_arrays(torch.rand(6, 1, 6, 6), torch.arange(6) % 3, classes=list("abc"))
    chosen = AnalysisSubject(Wary().eval(), data, NormBall("Linf", 0.1))
    result = feature(chosen, steps=2, classes=["c", "a"], start="image")
    assert [p.name for p in result.pictures] == ["c", "a"]
    assert [p.unit for p in result.pictures] == ["logit 2", "logit 0"]
    for picture, row in zip(result.pictures, (0, 1), strict=True):  # the first images of others
        torch.testing.assert_close(
            pixels(picture.initial), data.images[row].flatten(), atol=0.003, rtol=0
        )
    by_number = feature(chosen, steps=2)
    by_name = feature(chosen, steps=2, classes=["c"])
    for kind in ("name", "initial", "targeted"):  # the same class, noise and image
        assert getattr(by_name.pictures[0], kind) == getattr(by_number.pictures[2], kind)
    drawn = {
        feature(replace(chosen, seed=s), steps=1, classes="random:1").pictures[0].name
        for s in range(8)
    }
    assert len(drawn) > 1
    for classes in (["x"], [], "x", "random:0"):
        with pytest.raises(UserError, match="among a, b, c"):
            feature(chosen, steps=1, classes=classes)


def test_smoothness_smooths() -> None:
    rough, smooth = (
        pixels(feature(subject(Linear()), steps=40, smoothness=s).pictures[0].direct)
        for s in (0.0, 100.0)
    )
    rough, smooth = (p.view(1, 1, 6, 6) for p in (rough, smooth))
    assert total_variation(smooth) < 0.2 * total_variation(rough)


def test_units_of_a_block_are_raised() -> None:
    model = create_model("vit_tiny", num_classes=2, image_size=32, seed=0)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    block = network_blocks(model)[0].name
    result = feature(subject(model), steps=2, block=block)
    assert [p.unit for p in result.pictures] == [f"{block} 0", f"{block} 1"]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    with pytest.raises(UserError, match=r"net\.blocks\.0"):
        feature(subject(model), steps=1, block="nowhere")


def test_channels_wherever_they_are() -> None:
    values = torch.arange(3.0)
    for out in (values.view(1, 3, 1, 1).expand(2, 3, 4, 4), values.expand(2, 4, 4, 3),
                values.expand(2, 5, 3), values.expand(2, 3)):  # fmt: skip
        assert spatial_mean(out).tolist() == [[0, 1, 2]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", list_models("tiny"))
def test_every_family_makes_images_from_logits_and_blocks(name: str) -> None:
    model = create_model(name, num_classes=2, image_size=32, seed=0)
    for block in ("", network_blocks(model)[-1].name):
        result = feature(subject(model), steps=2, block=block)
        assert all(p.unit for p in result.pictures)
