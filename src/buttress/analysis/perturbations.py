"""Adversarial perturbations as images, and their energy by frequency.

Debenedetti, "Adversarially robust vision transformers", the thesis behind arXiv:2209.07399: robust
models have smooth, interpretable perturbations, standard ones noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from buttress.analysis.core import ANALYSES, AnalysisResult, Count
from buttress.analysis.cost import attack_passes
from buttress.analysis.figures import Figure, SubFigure
from buttress.analysis.gallery import encode_png, first_image_per_class, picture_axes, show_png
from buttress.analysis.semantics import perturbations_as_images
from buttress.analysis.subject import (
    SAMPLE_BATCH,
    AnalysisNotApplicable,
    AnalysisSubject,
    CostScope,
    load_sample,
)
from buttress.analysis.uncertainty import FORMULA, SampleUnits
from buttress.attacks.core import Attack, create_attack
from buttress.config import Spec
from buttress.engine.options import AttackOptions
from buttress.models.cost import PassCount
from buttress.system.progress import fraction_callback

DEFAULT_STEPS = 20
LOW_FREQUENCY = 0.25  # cycles per pixel: half of the highest frequency along an axis
TINY = 1e-12


class PerturbationExample(Spec):
    """One perturbation d = x - x'; pictures are PNG in base64."""

    id: int
    label: int
    original: str  # the clean image
    gray: str  # the mean over channels, over its own largest value
    color: str  # no change is gray, eps either way black or white


class PerturbationsResult(AnalysisResult):
    """Perturbations of one model and their energy by frequency, averaged over images."""

    attack: str
    threat: str
    images: int  # that the attack changed
    classes: tuple[str, ...]
    examples: tuple[PerturbationExample, ...]
    spectrum: str  # PNG: the mean of the log-magnitude, frequency 0 in the middle
    frequency: tuple[float, ...]  # of each ring, in cycles per pixel
    energy: tuple[float, ...]  # the share of each ring
    image_energy: tuple[float, ...]  # the same of the clean images, without their mean
    white_noise_energy: tuple[float, ...]  # the same of white noise
    low_frequency_energy: float  # the fraction below LOW_FREQUENCY
    image_low_frequency_energy: float
    white_noise_low_frequency_energy: float

    @staticmethod
    def plot(results: Mapping[str, PerturbationsResult], figure: Figure) -> None:
        """Images above their perturbations and spectrum; beside them energy by frequency."""
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(2.2, 1))[0]
        _draw_pictures(results, left)
        axes = right.subplots()
        for label, result in results.items():
            axes.plot(result.frequency, result.energy, marker=".", label=label or "perturbations")
        first = next(iter(results.values()))
        axes.plot(first.frequency[1:], first.image_energy[1:], "k--", lw=1, label="clean images")
        axes.plot(first.frequency, first.white_noise_energy, "k:", lw=1, label="white noise")
        axes.set(xlabel="cycles per pixel", ylabel="share of energy", yscale="log")
        axes.legend(fontsize="x-small")

    def summary(self) -> str:
        """Summarize the energy at low frequencies."""
        return (
            f"{self.low_frequency_energy:.1%} of the energy of the perturbations ({self.attack} in "
            f"{self.threat}, {self.images} images) lies below {LOW_FREQUENCY:g} cycles per pixel; "
            f"in white noise it is {self.white_noise_low_frequency_energy:.1%}, in the images "
            f"themselves {self.image_low_frequency_energy:.1%}."
        )


def _draw_pictures(results: Mapping[str, PerturbationsResult], figure: SubFigure) -> None:
    columns = max(len(r.examples) for r in results.values()) + 1
    axes = picture_axes(figure, 3 * len(results), columns)
    for block, (label, result) in enumerate(results.items()):
        top, above, below = axes[3 * block : 3 * block + 3]
        for column, example in enumerate(result.examples):
            show_png(top[column], example.original)
            show_png(above[column], example.gray)
            show_png(below[column], example.color)
            below[column].set_title(result.classes[example.label], fontsize="xx-small", pad=2)
        show_png(above[-1], result.spectrum, "magma")
        above[-1].set_title("spectrum", fontsize="xx-small", pad=2)
        top[0].set_title(label, fontsize="x-small", loc="left")


WHITE_NOISE = FORMULA.model_copy(update={"pattern": "white_noise*"})


def perturbations_cost(
    scope: CostScope, *, attack: str, args: Mapping[str, Any] | None, limit: int, **_: Any
) -> PassCount:
    return attack_passes(_create_attack(attack, args), scope, min(limit, scope.num_images))


@ANALYSES.register(
    "perturbations",
    paper="arXiv:2209.07399",
    tags=("attack",),
    cost=perturbations_cost,
    example_args={"limit": 4, "examples": 2, "args": {"steps": 2}},
    uncertainty=(WHITE_NOISE,),
)
def perturbations(
    subject: AnalysisSubject,
    *,
    attack: str = "pgd",
    args: Mapping[str, Any] | None = None,
    limit: Count = 64,
    examples: Count = 6,
) -> PerturbationsResult:
    r"""Perturbations d = x - x' as images, and their energy by frequency.

    .. math:: (d + \max|d|) / (2 \max|d|), \qquad (d + \epsilon) / (2 \epsilon)

    The first is shown in gray, the second in color. Without ``args`` PGD takes 20 steps of
    1.5 eps over their number.

    Departures from the thesis: its gray pictures divide by max d, which leaves [0, 1] where the
    largest change is negative; it shows spectra of single images, here they are averaged.
    """
    sample = load_sample(subject.model, subject.first_images(limit))
    task = subject.progress.add_task(f"perturbations of {attack}", len(sample))
    options = AttackOptions(
        subject.seed, SAMPLE_BATCH, on_progress=fraction_callback(task, len(sample))
    )
    attacked = subject.attack(_create_attack(attack, args), sample, options).x_adv
    task.close()
    x, x_adv = sample.x.cpu().double(), attacked.cpu().double()
    delta = x - x_adv
    is_perturbed = delta.flatten(1).abs().amax(1) > 0
    if not bool(is_perturbed.any()):
        raise AnalysisNotApplicable(
            f"{attack} changed no image, so there are no perturbations to analyze"
        )
    rows = first_image_per_class(sample.y.cpu(), examples)
    is_box = subject.threat.norm == "Linf"
    color = (
        perturbations_as_images(x, x_adv, subject.threat.eps) if is_box else stretch_contrast(delta)
    )
    gray = stretch_contrast(delta.mean(1, keepdim=True))
    pictures = [
        PerturbationExample(
            id=int(sample.ids[i]),
            label=int(sample.y[i]),
            original=encode_png(x[i]),
            gray=encode_png(gray[i]),
            color=encode_png(color[i]),
        )
        for i in rows.tolist()
    ]
    return _build_result(subject, attack, pictures, x, delta, sample.ids)


def _create_attack(name: str, args: Mapping[str, Any] | None) -> Attack:
    default_args = (
        {"steps": DEFAULT_STEPS, "rel_step": 1.5 / DEFAULT_STEPS} if name == "pgd" else {}
    )
    return create_attack(name, **(default_args if args is None else args))


def _build_result(
    subject: AnalysisSubject,
    attack: str,
    examples: list[PerturbationExample],
    x: Tensor,
    delta: Tensor,
    ids: Tensor,
) -> PerturbationsResult:
    """Energies of the images that the attack changed."""
    is_perturbed = delta.flatten(1).abs().amax(1) > 0
    delta, ids_perturbed = delta[is_perturbed], ids[is_perturbed]
    rings = frequency_rings(delta)
    frequency = torch.arange(int(rings.max()) + 1) / min(delta.shape[-2:])
    images = energy_per_ring(x - x.mean((-2, -1), keepdim=True))
    white = torch.bincount(rings.flatten()).double() / rings.numel()
    energies = energy_per_ring(delta)
    is_low = frequency < LOW_FREQUENCY
    image, energy = images.mean(0), energies.mean(0)
    return PerturbationsResult(
        attack=attack,
        threat=str(subject.threat),
        images=len(delta),
        classes=subject.data.classes,
        examples=tuple(examples),
        spectrum=encode_png(_stretch_range(mean_log_magnitude(delta))),
        frequency=tuple(frequency.tolist()),
        energy=tuple(energy.tolist()),
        image_energy=tuple(image.tolist()),
        white_noise_energy=tuple(white.tolist()),
        low_frequency_energy=float(energy[is_low].sum()),
        image_low_frequency_energy=float(image[is_low].sum()),
        white_noise_low_frequency_energy=float(white[is_low].sum()),
        samples={
            "low_frequency_energy": SampleUnits(ids_perturbed).store(energies[:, is_low].sum(1)),
            "image_low_frequency_energy": SampleUnits(ids).store(images[:, is_low].sum(1)),
        },
    )


def stretch_contrast(delta: Tensor) -> Tensor:
    """(N, C, H, W) perturbations in [0, 1]: each one's largest change is black or white."""
    largest = delta.flatten(1).abs().amax(1).clamp_min(TINY).view(-1, 1, 1, 1)
    return (delta + largest) / (2 * largest)


def mean_log_magnitude(delta: Tensor) -> Tensor:
    """(1, H, W) the mean log-magnitude of gray images by frequency, 0 in the middle."""
    magnitude = torch.fft.fft2(delta.mean(1)).abs().clamp_min(TINY).log().mean(0)
    return torch.fft.fftshift(magnitude)[None]


def frequency_rings(x: Tensor) -> Tensor:
    """(H, W) the ring of each coefficient: its distance from frequency 0, in whole cycles."""
    high, wide = x.shape[-2:]
    down, right = torch.fft.fftfreq(high).double(), torch.fft.fftfreq(wide).double()
    radius = (down[:, None].square() + right[None].square()).sqrt()
    return (radius * min(high, wide)).round().long()


def energy_per_ring(x: Tensor) -> Tensor:
    """(N, R) the fraction of the energy of each image in each ring, over all channels."""
    rings = frequency_rings(x).flatten()
    power = torch.fft.fft2(x).abs().square().sum(1).flatten(1)
    fraction = power / power.sum(1, keepdim=True).clamp_min(TINY)
    empty = torch.zeros(len(x), int(rings.max()) + 1, dtype=fraction.dtype)
    return empty.index_add_(1, rings, fraction)


def low_frequency_energy(x: Tensor) -> Tensor:
    """(N,) the fraction of the energy of each image below LOW_FREQUENCY, without its mean."""
    energy = energy_per_ring(x - x.mean((-2, -1), keepdim=True))
    is_low = torch.arange(energy.shape[1]) / min(x.shape[-2:]) < LOW_FREQUENCY
    return energy[:, is_low].sum(1)


def _stretch_range(values: Tensor) -> Tensor:
    low, high = values.min(), values.max()
    return (values - low) / (high - low).clamp_min(TINY)
