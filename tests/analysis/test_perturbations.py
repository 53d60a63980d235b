"""Perturbations as images and by frequency, against hand-made ones."""

from __future__ import annotations

import base64
import io
import math

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from buttress.analysis import AnalysisNotApplicable, AnalysisSubject
from buttress.analysis.gallery import encode_png
from buttress.analysis.perturbations import (
    energy_per_ring,
    frequency_rings,
    mean_log_magnitude,
    perturbations,
    stretch_contrast,
)
from buttress.data import Dataset
from buttress.threats.norm_ball import NormBall


def cosine(cycles: int, size: int = 16) -> Tensor:
    wave = torch.cos(2 * math.pi * cycles * torch.arange(size, dtype=torch.float64) / size)
    return wave.expand(1, 1, size, size)


def test_the_largest_change_is_black_or_white() -> None:
    delta = torch.tensor([0.0, 0.02, -0.04, 0.01]).view(1, 1, 2, 2)
    assert stretch_contrast(delta).flatten().tolist() == pytest.approx([0.5, 0.75, 0.0, 0.625])
    assert stretch_contrast(torch.zeros(1, 1, 2, 2)).unique().tolist() == [0.5]


@pytest.mark.parametrize("cycles", [0, 1, 3, 8])
def test_a_pure_cosine_has_all_its_energy_in_one_ring(cycles: int) -> None:
    (energy,) = energy_per_ring(cosine(cycles))
    assert energy[cycles] == pytest.approx(1.0)
    assert energy.sum() == pytest.approx(1.0)


def test_the_spectrum_has_its_peaks_at_the_cosine_around_the_middle() -> None:
    result = mean_log_magnitude(cosine(3))[0]
    peaks = (result > result.max() - 1).nonzero().tolist()
    assert peaks == [[8, 5], [8, 11]]


def test_every_image_weighs_the_same() -> None:
    both = torch.cat([cosine(1) * 100, cosine(4)])
    assert energy_per_ring(both).mean(0)[[1, 4]].tolist() == pytest.approx([0.5, 0.5])


def test_rings_of_a_wide_image_are_by_cycles_per_pixel() -> None:
    rings = frequency_rings(torch.zeros(1, 1, 8, 16))
    assert (int(rings[4, 0]), int(rings[0, 8]), int(rings[0, 2])) == (4, 4, 1)


class Wave(nn.Module):
    """Sees one cosine only: the attack adds its sign."""

    def __init__(self, cycles: int) -> None:
        super().__init__()
        self.wave = nn.Parameter(cosine(cycles).float())

    def forward(self, x: Tensor) -> Tensor:
        score = (x * self.wave).flatten(1).sum(1)
        return torch.stack([score, -score], 1)


def of_wave(cycles: int, eps: float = 0.1) -> AnalysisSubject:
    x = torch.full((4, 1, 16, 16), 0.5)
    data = Dataset.from_arrays(x, torch.tensor([0, 1, 0, 1]), classes=["a", "b"])
    return AnalysisSubject(Wave(cycles), data, NormBall("Linf", eps))


def test_perturbations_have_the_frequency_the_network_sees() -> None:
    smooth, rough = (perturbations(of_wave(cycles)) for cycles in (1, 7))
    assert smooth.low_frequency_energy > 0.8 > 0.2 > rough.low_frequency_energy
    assert (
        smooth.white_noise_low_frequency_energy
        == rough.white_noise_low_frequency_energy
        == pytest.approx(37 / 256)
    )  # points within 3.5
    assert [e.label for e in smooth.examples] == [0, 1]
    assert f"{smooth.low_frequency_energy:.1%}" in smooth.summary()


def test_what_the_attack_takes_away_is_bright() -> None:
    first, second = perturbations(of_wave(1)).examples  # of class 0, lowered, and of class 1
    assert first.original == second.original == encode_png(torch.full((1, 16, 16), 0.5))
    for picture, sign in ((first.color, 1), (second.color, -1), (first.gray, 1)):
        shown = torch.tensor(list(Image.open(io.BytesIO(base64.b64decode(picture))).tobytes()))
        away = cosine(1).flatten().abs() > 1e-6
        assert ((shown > 127) == (sign * cosine(1).flatten() > 0))[away].all()


def test_without_a_change_there_is_nothing_to_look_at() -> None:
    with pytest.raises(AnalysisNotApplicable, match="no image"):
        perturbations(of_wave(1, eps=0.0))
