"""The loss around images: along the way an attack takes, and along one that it does not.

Tramer et al., "Ensemble Adversarial Training", arXiv:1705.07204, look at such a plane along a
gradient; ours is along what an attack found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from buttress.analysis.arguments import whole
from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import Passes
from buttress.analysis.plane import (
    Rows,
    check_finite,
    draw_contours,
    draw_hill,
    halves,
    legend_above,
    levels_of,
    names_of,
    steps_of,
)
from buttress.analysis.ready import ready
from buttress.analysis.sample import BATCH, Sample, attacked, sample_of
from buttress.analysis.subject import DoesNotApply, Subject
from buttress.attacks.freeze import frozen
from buttress.data import Dataset
from buttress.errors import UserError
from buttress.spec import Spec
from buttress.streams import Streams
from buttress.threat import TINY, Threat

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class InputLandscape(Spec):
    """Loss and accuracy over a plane around images; a step of 1 on the first axis is eps."""

    steps: tuple[float, ...]
    attack: str
    threat: str
    images: int
    image: int | None  # the id, if it is around one image
    unmoved: int  # images that the attack left where they were: they have no first axis
    loss: Rows  # mean over images; [i][j]: i along the attack, j along a random direction
    accuracy: Rows

    def cut(self, plane: Rows, *, attack: bool) -> tuple[float, ...]:
        """Along one axis, with 0 on the other."""
        middle = len(self.steps) // 2
        return tuple(row[middle] for row in plane) if attack else plane[middle]

    def near(self, step: float) -> int:
        """The position of the point nearest to a step."""
        return min(range(len(self.steps)), key=lambda i: abs(self.steps[i] - step))


def plot_input_landscape(results: Mapping[str, InputLandscape], figure: Figure) -> None:
    """Both axes as curves for all runs; below, each run's plane."""
    left, right = halves(figure, len(results), 2)
    _draw_cuts(results, left.subplots(2, 1))
    titles, columns = names_of(results), len(results)
    levels = levels_of([r.loss for r in results.values()])
    for column, result in enumerate(results.values()):
        axes = right.add_subplot(2, columns, column + 1)
        draw_contours(axes, result.steps, result.loss, levels)
        axes.set_title(titles[column], fontsize="small")
        axes.set_xlabel("along the attack, eps", fontsize="x-small")
        axes.set_ylabel("random", fontsize="x-small")
        place = (2, columns, columns + column + 1)
        draw_hill(right, place, result.steps, result.loss, levels)
    right.suptitle("around images: contours of loss, log10 of it", fontsize="small")


def _draw_cuts(results: Mapping[str, InputLandscape], axes: Any) -> None:
    upper: Axes
    upper, lower = axes
    for number, (label, result) in enumerate(results.items()):
        for attack, style in ((True, "-"), (False, ":")):
            name = f"{label} " * bool(label) + ("attack" if attack else "random")
            loss, right = (result.cut(p, attack=attack) for p in (result.loss, result.accuracy))
            upper.plot(result.steps, loss, style, color=f"C{number}", label=name)
            lower.plot(result.steps, right, style, color=f"C{number}")
    upper.set(ylabel="cross-entropy", yscale="log")
    lower.set(ylabel="accuracy", xlabel="step, in eps", ylim=(0, 1))
    legend_above(upper)


def cost_input_landscape(
    subject: Subject,
    *,
    points: int,
    limit: int,
    image: int | None,
    steps: int,
    **_: Any,
) -> Passes:
    """The attack, and a look at each point for each image."""
    whole(1, limit=limit, steps=steps)
    images = 1 if image is not None else min(limit, len(subject.data))
    return Passes(images * (len(steps_of(1.0, points)) ** 2 + 2), images * steps)


def says_input_landscape(result: InputLandscape) -> str:
    """What one eps does along each axis."""
    i, middle = result.near(1.0), len(result.steps) // 2
    losses = (result.loss[middle][middle], result.loss[i][middle], result.loss[middle][i])
    before, along, beside = losses
    around = f"image {result.image}" if result.image is not None else f"{result.images} images"
    return (
        f"Around {around} a step of {result.steps[i]:.3g} eps ({result.threat}) along the attack "
        f"({result.attack}) takes the loss from {before:.3g} to {along:.3g}, a step as long in a "
        f"random direction to {beside:.3g}."
    )


@ANALYSES.register(
    "input_landscape",
    paper="arXiv:1705.07204",
    tags=("attack",),
    result=InputLandscape,
    plot=plot_input_landscape,
    cost=cost_input_landscape,
    says=says_input_landscape,
)
def input_landscape(
    subject: Subject,
    *,
    radius: float = 2.0,
    points: int = 21,
    limit: int = 32,
    image: int | None = None,
    attack: str = "pgd",
    steps: int = 10,
) -> InputLandscape:
    r"""The loss at x + eps (a s + b r), cut by the box [0, 1], over a grid of a and b.

    s is what the attack added to the image, stretched to norm 1; r is drawn from random signs, made
    orthogonal to s and as long as s in the Euclidean norm. The mean over the first ``limit`` test
    images, or around the one with the id ``image``. ``radius`` is in eps.
    """
    whole(1, limit=limit, steps=steps)
    grid = steps_of(radius, points)
    if subject.threat.eps == 0:
        raise DoesNotApply(f"the threat {subject.threat} leaves no room around an image")
    sample = sample_of(subject.model, _chosen(subject, limit, image))
    axes = axes_of(sample, attacked(subject, sample, steps, attack).x, subject.threat, subject.seed)
    loss, accuracy = _look(subject, sample, axes, grid)
    check_finite([v for row in loss for v in row], "image")
    return InputLandscape(
        steps=grid,
        attack=f"{attack}-{steps}",
        threat=str(subject.threat),
        images=len(sample),
        image=image,
        unmoved=int((axes.attack.flatten(1).abs().amax(1) == 0).sum()),
        loss=loss,
        accuracy=accuracy,
    )


class Axes2(NamedTuple):
    """The two directions around each image, both (N, C, H, W)."""

    attack: Tensor
    random: Tensor


def axes_of(sample: Sample, x_adv: Tensor, threat: Threat, seed: int) -> Axes2:
    """The direction of an attack with norm 1, and one orthogonal to it of the same length."""
    shape = (-1, *[1] * (sample.x.ndim - 1))
    delta = x_adv - sample.x
    along = delta / threat.length(delta).clamp_min(TINY).view(shape)
    signs = Streams(seed, "input_landscape", sample.ids).uniform(sample.x).sub_(0.5).sign()
    flat, beside = along.flatten(1).double(), signs.flatten(1).double()
    square = (flat * flat).sum(1, keepdim=True)
    beside = beside - (beside * flat).sum(1, keepdim=True) / square.clamp_min(TINY) * flat
    beside = beside * (square.sqrt() / beside.norm(dim=1, keepdim=True).clamp_min(TINY))
    return Axes2(along, beside.to(along.dtype).view_as(along))


def _chosen(subject: Subject, limit: int, image: int | None) -> Dataset:
    if image is None:
        return subject.first(limit)
    rows = (subject.data.ids == image).nonzero()[:, 0]
    if len(rows) == 0:
        raise UserError(
            f"there is no test image with the id {image!r}; ids go from "
            f"{int(subject.data.ids.min())} to {int(subject.data.ids.max())}"
        )
    return subject.data.select(rows[:1])


def _look(
    subject: Subject, sample: Sample, axes: Axes2, grid: tuple[float, ...]
) -> tuple[Rows, Rows]:
    """Mean loss and accuracy at every point of the grid."""
    model, eps = ready(subject.model, sample.x[:2]), subject.threat.eps
    ways = torch.cartesian_prod(torch.tensor(grid), torch.tensor(grid)).to(sample.x)  # (P², 2)
    total = ways.new_zeros(len(ways), 2, dtype=torch.float64)
    task = subject.progress.task("points around images", len(sample))
    with frozen(model), torch.no_grad():
        for x, y, s, r in zip(sample.x, sample.y, *axes, strict=True):
            parts = []
            for some in ways.split(BATCH):
                a, b = (some[:, k].view(-1, 1, 1, 1) for k in (0, 1))
                logits = model((x + eps * (a * s + b * r)).clamp_(0, 1)).double()
                label = y.expand(len(some))
                loss = F.cross_entropy(logits, label, reduction="none")
                parts.append(torch.stack([loss, (logits.argmax(1) == label).double()], dim=1))
            total += torch.cat(parts)
            task.advance()
    task.close()
    mean = (total / len(sample)).view(len(grid), len(grid), 2).cpu()
    loss_rows, right_rows = (tuple(map(tuple, mean[:, :, k].tolist())) for k in (0, 1))
    return loss_rows, right_rows
