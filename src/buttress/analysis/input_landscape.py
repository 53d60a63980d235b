"""Loss landscape around images: along the attack direction and a random one.

Tramer et al., "Ensemble Adversarial Training", arXiv:1705.07204, look at such a plane along a
gradient; ours is along what an attack found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from buttress.analysis.core import ANALYSES, AnalysisResult, Count, PositiveFloat
from buttress.analysis.figures import Axes, Figure
from buttress.analysis.methods.loss_plane import (
    LossPlane,
    add_legend_above,
    draw_contours,
    draw_surface,
    log_levels,
    plot_titles,
    require_finite,
    split_figure,
    symmetric_grid,
)
from buttress.analysis.subject import (
    SAMPLE_BATCH,
    AnalysisNotApplicable,
    AnalysisSubject,
    CostScope,
    ImageSample,
    attack_sample,
    load_sample,
)
from buttress.analysis.uncertainty import SampleUnits, StoredSamples, UncertaintyNote
from buttress.data import Dataset
from buttress.engine.fast_model import FastModel
from buttress.engine.processes import map_in_processes
from buttress.errors import UserError
from buttress.models.cost import PassCount
from buttress.models.eval_mode import eval_mode
from buttress.system.progress import fraction_callback
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import TINY, NormBall


class InputLandscapeResult(AnalysisResult):
    """Loss and accuracy over a plane around images; a step of 1 on the first axis is eps."""

    steps: tuple[float, ...]
    attack: str
    threat: str
    images: int
    image: int | None  # the id, if it is around one image
    unperturbed: int  # images that the attack did not change: they have no first axis
    loss: LossPlane  # mean over images; [i][j]: i along the attack, j along a random direction
    accuracy: LossPlane

    def slice_along(self, plane: LossPlane, *, attack: bool) -> tuple[float, ...]:
        """The values of a plane along the attack direction, or along the random one."""
        middle = len(self.steps) // 2
        return tuple(row[middle] for row in plane) if attack else plane[middle]

    def nearest_index(self, step: float) -> int:
        """The position of the point nearest to a step."""
        return min(range(len(self.steps)), key=lambda i: abs(self.steps[i] - step))

    @staticmethod
    def plot(results: Mapping[str, InputLandscapeResult], figure: Figure) -> None:
        """Plot both axes as curves for all runs; below, each run's plane."""
        left, right = split_figure(figure, len(results), 2)
        _draw_slices(results, left.subplots(2, 1))
        titles, columns = plot_titles(results), len(results)
        levels = log_levels([r.loss for r in results.values()])
        for column, result in enumerate(results.values()):
            axes = right.add_subplot(2, columns, column + 1)
            draw_contours(axes, result.steps, result.loss, levels)
            axes.set_title(titles[column], fontsize="small")
            axes.set_xlabel("along the attack, eps", fontsize="x-small")
            axes.set_ylabel("random", fontsize="x-small")
            place = (2, columns, columns + column + 1)
            draw_surface(right, place, result.steps, result.loss, levels)
        right.suptitle("around images: contours of loss, log10 of it", fontsize="small")

    def summary(self) -> str:
        """Summarize the loss at one eps along each axis."""
        i, middle = self.nearest_index(1.0), len(self.steps) // 2
        losses = (self.loss[middle][middle], self.loss[i][middle], self.loss[middle][i])
        clean_loss, attack_loss, random_loss = losses
        images_phrase = f"image {self.image}" if self.image is not None else f"{self.images} images"
        return (
            f"Around {images_phrase} a step of {self.steps[i]:.3g} eps ({self.threat}) along the "
            f"attack ({self.attack}) takes the loss from {clean_loss:.3g} to {attack_loss:.3g}, "
            f"a step as long in a random direction to {random_loss:.3g}."
        )


def _draw_slices(results: Mapping[str, InputLandscapeResult], axes: Any) -> None:
    upper: Axes
    upper, lower = axes
    for number, (label, result) in enumerate(results.items()):
        for attack, style in ((True, "-"), (False, ":")):
            name = f"{label} " * bool(label) + ("attack" if attack else "random")
            loss, right = (
                result.slice_along(p, attack=attack) for p in (result.loss, result.accuracy)
            )
            upper.plot(result.steps, loss, style, color=f"C{number}", label=name)
            lower.plot(result.steps, right, style, color=f"C{number}")
    upper.set(ylabel="cross-entropy", yscale="log")
    lower.set(ylabel="accuracy", xlabel="step, in eps", ylim=(0, 1))
    add_legend_above(upper)


OFF_THE_AXES = UncertaintyNote(
    pattern="*",
    varies_by="none",
    reason="the values of single images are kept along the two axes only",
)


def input_landscape_cost(
    scope: CostScope, *, points: int, limit: int, image: int | None, steps: int, **_: Any
) -> PassCount:
    """Cost: the attack, and a forward pass per grid point and image."""
    images = 1 if image is not None else min(limit, scope.num_images)
    num_points = len(symmetric_grid(1.0, points)) ** 2
    return PassCount(images * (num_points + 2 + steps), images * steps)


@ANALYSES.register(
    "input_landscape",
    paper="arXiv:1705.07204",
    tags=("attack",),
    cost=input_landscape_cost,
    example_args={"points": 5, "limit": 4, "steps": 2},
    uncertainty=(OFF_THE_AXES,),
)
def input_landscape(
    subject: AnalysisSubject,
    *,
    radius: PositiveFloat = 2.0,
    points: Count = 21,
    limit: Count = 32,
    image: int | None = None,
    attack: str = "pgd",
    steps: Count = 10,
) -> InputLandscapeResult:
    r"""The loss at x + eps (a s + b r), cut by the box [0, 1], over a grid of a and b.

    s is what the attack added to the image, stretched to norm 1; r is drawn from random signs, made
    orthogonal to s and as long as s in the Euclidean norm. The mean over the first ``limit`` test
    images, or around the one with the id ``image``. ``radius`` is in eps.
    """
    grid = symmetric_grid(radius, points)
    if subject.threat.eps == 0:
        raise AnalysisNotApplicable(
            f"the threat model {subject.threat} has eps = 0, so there "
            "is no landscape around an image"
        )
    sample = load_sample(subject.model, _select_images(subject, limit, image))
    axes = landscape_axes(
        sample, attack_sample(subject, sample, steps, attack).x, subject.threat, subject.seed
    )
    values = _evaluate_grid(subject, sample, axes, grid)
    total = values.new_zeros(values.shape[1:])
    for image_values in values:
        total += image_values
    loss, accuracy = (tuple(map(tuple, plane.tolist())) for plane in total / len(sample))
    require_finite([v for row in loss for v in row], "image")
    return InputLandscapeResult(
        steps=grid,
        attack=f"{attack}-{steps}",
        threat=str(subject.threat),
        images=len(sample),
        image=image,
        unperturbed=int((axes.attack.flatten(1).abs().amax(1) == 0).sum()),
        loss=loss,
        accuracy=accuracy,
        samples=_axis_samples(values, SampleUnits(sample.ids)),
    )


def _axis_samples(values: Tensor, units: SampleUnits) -> dict[str, StoredSamples]:
    """Loss and accuracy of each image along the two axes; values are (N, 2, points, points)."""
    middle = values.shape[-1] // 2
    points = [(i, middle) for i in range(values.shape[-1])]
    points += [(middle, i) for i in range(values.shape[-1])]
    return {
        f"{name}[{i}][{j}]": units.store(values[:, k, i, j])
        for k, name in enumerate(("loss", "accuracy"))
        for i, j in points
    }


class LandscapeAxes(NamedTuple):
    """The two directions around each image, both (N, C, H, W)."""

    attack: Tensor
    random: Tensor


def landscape_axes(
    sample: ImageSample, x_adv: Tensor, threat: NormBall, seed: int
) -> LandscapeAxes:
    """The direction of an attack with norm 1, and one orthogonal to it of the same length."""
    shape = (-1, *[1] * (sample.x.ndim - 1))
    delta = x_adv - sample.x
    attack_direction = delta / threat.norm_of(delta).clamp_min(TINY).view(shape)
    signs = SampleRNG(seed, "input_landscape", sample.ids).draw_uniform(sample.x).sub_(0.5).sign()
    flat, random_direction = attack_direction.flatten(1).double(), signs.flatten(1).double()
    square = (flat * flat).sum(1, keepdim=True)
    random_direction = (
        random_direction
        - (random_direction * flat).sum(1, keepdim=True) / square.clamp_min(TINY) * flat
    )
    random_direction = random_direction * (
        square.sqrt() / random_direction.norm(dim=1, keepdim=True).clamp_min(TINY)
    )
    return LandscapeAxes(
        attack_direction, random_direction.to(attack_direction.dtype).view_as(attack_direction)
    )


def _select_images(subject: AnalysisSubject, limit: int, image: int | None) -> Dataset:
    if image is None:
        return subject.first_images(limit)
    rows = (subject.data.ids == image).nonzero()[:, 0]
    if len(rows) == 0:
        raise UserError(
            f"`image` must be the id of a test image ({int(subject.data.ids.min())} to "
            f"{int(subject.data.ids.max())}), but got image={image!r}"
        )
    return subject.data.select(rows[:1])


def _evaluate_grid(
    subject: AnalysisSubject, sample: ImageSample, axes: LandscapeAxes, grid: tuple[float, ...]
) -> Tensor:
    """(N, 2, points, points) loss and accuracy of each image at every point of the grid."""
    model = FastModel.keep_parameters(subject.model, sample.x[:2]).module
    eps = subject.threat.eps
    steps = torch.tensor(grid).to(sample.x)
    coefficients = torch.cartesian_prod(steps, steps)
    images = list(zip(sample.x, sample.y, *axes, strict=True))
    task = subject.progress.add_task("points around images", len(images))

    def evaluate_image(image: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        x, y, s, r = image
        parts = []
        for chunk in coefficients.split(SAMPLE_BATCH):
            a, b = (chunk[:, k].view(-1, 1, 1, 1) for k in (0, 1))
            logits = model((x + eps * (a * s + b * r)).clamp_(0, 1)).double()
            label = y.expand(len(chunk))
            loss = F.cross_entropy(logits, label, reduction="none")
            parts.append(torch.stack([loss, (logits.argmax(1) == label).double()]))
        return torch.cat(parts, 1).view(2, len(grid), len(grid)).cpu()

    with eval_mode(model), torch.no_grad():
        on_progress = fraction_callback(task, len(images))
        values = map_in_processes(evaluate_image, images, sample.x.device, on_progress)
    task.close()
    return torch.stack(values)
