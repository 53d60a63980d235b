"""What adversarial perturbations look like, as images and by frequency.

Debenedetti, "Adversarially robust vision transformers", the thesis behind arXiv:2209.07399: robust
networks are attacked by smooth shapes that a person can read, standard ones by noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from buttress.analysis.arguments import whole
from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import Passes, passes_of
from buttress.analysis.gallery import one_per_class, png, show
from buttress.analysis.sample import BATCH, sample_of
from buttress.analysis.semantics import as_images
from buttress.analysis.subject import DoesNotApply, Subject
from buttress.attacks.call import How, create_attack, run_attack
from buttress.attacks.core import Attack
from buttress.progress import by_share
from buttress.spec import Spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

STEPS = 20
LOW = 0.25  # cycles per pixel: half of the highest frequency along an axis
TINY = 1e-12


class Perturbation(Spec):
    """One perturbation d = x - x'; pictures are PNG in base64."""

    id: int
    label: int
    grey: str  # the mean over channels, over its own largest value
    colour: str  # no change is grey, eps either way black or white


class Perturbations(Spec):
    """Perturbations of one model and their energy by frequency, averaged over images."""

    attack: str
    threat: str
    images: int  # that the attack changed
    classes: tuple[str, ...]
    examples: tuple[Perturbation, ...]
    spectrum: str  # PNG: the mean of the log-magnitude, frequency 0 in the middle
    frequency: tuple[float, ...]  # of each ring, in cycles per pixel
    energy: tuple[float, ...]  # the share of each ring
    image_energy: tuple[float, ...]  # the same of the clean images, without their mean
    white_energy: tuple[float, ...]  # the same of white noise
    low: float  # the share below LOW
    image_low: float
    white_low: float


def plot_perturbations(results: Mapping[str, Perturbations], figure: Figure) -> None:
    """Perturbations and their spectrum in two rows per run; beside them energy by frequency."""
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(2.2, 1))[0]
    _draw_pictures(results, left)
    axes = right.subplots()
    for label, result in results.items():
        axes.plot(result.frequency, result.energy, marker=".", label=label or "perturbations")
    first = next(iter(results.values()))
    axes.plot(first.frequency[1:], first.image_energy[1:], "k--", lw=1, label="clean images")
    axes.plot(first.frequency, first.white_energy, "k:", lw=1, label="white noise")
    axes.set(xlabel="cycles per pixel", ylabel="share of energy", yscale="log")
    axes.legend(fontsize="x-small")


def _draw_pictures(results: Mapping[str, Perturbations], figure: SubFigure) -> None:
    columns = max(len(r.examples) for r in results.values()) + 1
    axes = figure.subplots(2 * len(results), columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for block, (label, result) in enumerate(results.items()):
        above, below = axes[2 * block], axes[2 * block + 1]
        for column, example in enumerate(result.examples):
            show(above[column], example.grey)
            show(below[column], example.colour)
            below[column].set_title(result.classes[example.label], fontsize="xx-small", pad=2)
        show(above[-1], result.spectrum, "magma")
        above[-1].set_title("spectrum", fontsize="xx-small", pad=2)
        above[0].set_title(label, fontsize="x-small", loc="left")


def cost_perturbations(
    subject: Subject,
    *,
    attack: str,
    args: Mapping[str, Any] | None,
    limit: int,
    **_: Any,
) -> Passes:
    """The attack."""
    return passes_of(_attack(attack, args), subject, min(limit, len(subject.data)))


def says_perturbations(result: Perturbations) -> str:
    """How much of the energy is smooth."""
    return (
        f"{result.low:.1%} of the energy of the perturbations ({result.attack} in {result.threat}, "
        f"{result.images} images) lies below {LOW:g} cycles per pixel; in white noise it is "
        f"{result.white_low:.1%}, in the images themselves {result.image_low:.1%}."
    )


@ANALYSES.register(
    "perturbations",
    paper="arXiv:2209.07399",
    tags=("attack",),
    result=Perturbations,
    plot=plot_perturbations,
    cost=cost_perturbations,
    says=says_perturbations,
)
def perturbations(
    subject: Subject,
    *,
    attack: str = "pgd",
    args: Mapping[str, Any] | None = None,
    limit: int = 64,
    count: int = 6,
) -> Perturbations:
    r"""Perturbations d = x - x' as images, and their energy by frequency.

    .. math:: (d + \max|d|) / (2 \max|d|), \qquad (d + \epsilon) / (2 \epsilon)

    The first is shown in grey, the second in colour. Without ``args`` PGD takes 20 steps of
    1.5 eps over their number.

    Departures from the thesis: its grey pictures divide by max d, which leaves [0, 1] where the
    largest change is negative; it shows spectra of single images, here they are averaged.
    """
    whole(1, limit=limit, count=count)
    sample = sample_of(subject.model, subject.first(limit))
    task = subject.progress.task(f"perturbations of {attack}", len(sample))
    how = How(subject.seed, BATCH, on_step=by_share(task, len(sample)))
    chosen, model = _attack(attack, args), subject.model
    out = run_attack(
        chosen, model, sample.x, sample.y, subject.threat, ids=sample.ids, how=how
    )  # fmt: skip
    task.close()
    x, x_adv = sample.x.cpu().double(), out.x_adv.cpu().double()
    delta = x - x_adv
    moved = delta.flatten(1).abs().amax(1) > 0
    if not bool(moved.any()):
        raise DoesNotApply(f"{attack} changed no image: there are no perturbations to look at")
    rows = one_per_class(sample.y.cpu(), count)
    is_box = subject.threat.norm == "Linf"
    colour = as_images(x, x_adv, subject.threat.eps) if is_box else contrasted(delta)
    grey = contrasted(delta.mean(1, keepdim=True))
    shown = [
        Perturbation(
            id=int(sample.ids[i]),
            label=int(sample.y[i]),
            grey=png(grey[i]),
            colour=png(colour[i]),
        )
        for i in rows.tolist()
    ]
    return _result(subject, attack, shown, delta[moved], x)


def _attack(name: str, args: Mapping[str, Any] | None) -> Attack:
    usual = {"steps": STEPS, "rel_step": 1.5 / STEPS} if name == "pgd" else {}
    return create_attack(name, **(usual if args is None else args))


def _result(
    subject: Subject, attack: str, shown: list[Perturbation], delta: Tensor, x: Tensor
) -> Perturbations:
    rings = rings_of(delta)
    frequency = torch.arange(int(rings.max()) + 1) / min(delta.shape[-2:])
    image = ring_energy(x - x.mean((-2, -1), keepdim=True))
    white = torch.bincount(rings.flatten()).double() / rings.numel()
    energy = ring_energy(delta)
    is_low = frequency < LOW
    return Perturbations(
        attack=attack,
        threat=str(subject.threat),
        images=len(delta),
        classes=subject.data.classes,
        examples=tuple(shown),
        spectrum=png(_stretched(log_magnitude(delta))),
        frequency=tuple(frequency.tolist()),
        energy=tuple(energy.tolist()),
        image_energy=tuple(image.tolist()),
        white_energy=tuple(white.tolist()),
        low=float(energy[is_low].sum()),
        image_low=float(image[is_low].sum()),
        white_low=float(white[is_low].sum()),
    )


def contrasted(delta: Tensor) -> Tensor:
    """(N, C, H, W) perturbations in [0, 1]: each one's largest change is black or white."""
    largest = delta.flatten(1).abs().amax(1).clamp_min(TINY).view(-1, 1, 1, 1)
    return (delta + largest) / (2 * largest)


def log_magnitude(delta: Tensor) -> Tensor:
    """(1, H, W) the mean log-magnitude of grey images by frequency, 0 in the middle."""
    found = torch.fft.fft2(delta.mean(1)).abs().clamp_min(TINY).log().mean(0)
    return torch.fft.fftshift(found)[None]


def rings_of(x: Tensor) -> Tensor:
    """(H, W) the ring of each coefficient: its distance from frequency 0, in whole cycles."""
    high, wide = x.shape[-2:]
    down, right = torch.fft.fftfreq(high).double(), torch.fft.fftfreq(wide).double()
    radius = (down[:, None].square() + right[None].square()).sqrt()
    return (radius * min(high, wide)).round().long()


def ring_energy(x: Tensor) -> Tensor:
    """(R,) the share of the energy in each ring over all channels; every image weighs the same."""
    rings = rings_of(x).flatten()
    power = torch.fft.fft2(x).abs().square().sum(1).flatten(1)
    share = power / power.sum(1, keepdim=True).clamp_min(TINY)
    return torch.zeros(int(rings.max()) + 1, dtype=share.dtype).index_add_(0, rings, share.mean(0))


def low_energy(x: Tensor) -> float:
    """The share of the energy of images below LOW, without their mean."""
    energy = ring_energy(x - x.mean((-2, -1), keepdim=True))
    return float(energy[torch.arange(len(energy)) / min(x.shape[-2:]) < LOW].sum())


def _stretched(values: Tensor) -> Tensor:
    low, high = values.min(), values.max()
    return (values - low) / (high - low).clamp_min(TINY)
