"""Feature visualization: images optimized from noise for a class or a unit.

Debenedetti, "Adversarially robust vision transformers", the thesis behind arXiv:2209.07399:
targeted PGD over the whole box. Beside it the plain way: ascent on a logit or on a unit of a block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from buttress.analysis.core import ANALYSES, AnalysisResult, Count
from buttress.analysis.figures import Figure
from buttress.analysis.gallery import encode_png, picture_axes, show_png
from buttress.analysis.perturbations import LOW_FREQUENCY, low_frequency_energy
from buttress.analysis.subject import AnalysisSubject, CostScope, load_sample
from buttress.analysis.uncertainty import SampleUnits
from buttress.attacks.core import create_attack
from buttress.attacks.problem import Problem
from buttress.config import Spec
from buttress.engine.last_iterate import last_iterate
from buttress.errors import UserError
from buttress.models.cost import PassCount
from buttress.models.eval_mode import eval_mode
from buttress.models.parts import network_blocks
from buttress.system.progress import ProgressTask
from buttress.system.rng import SampleRNG, derive_seed
from buttress.threats.norm_ball import NormBall

FeatureStart = Literal["uniform", "binary", "image"]
PUBLISHED_EPS = 15  # of the thesis: far more than the box holds
WHOLE_BOX = NormBall("Linf", 1.0)
RANDOM_CLASSES = re.compile(r"random:([1-9]\d{0,8})")
LEARNING_RATE = 0.05  # of the ascent on logits and units


class FeaturePicture(Spec):
    """Images optimized for one class or unit; pictures are PNG in base64."""

    name: str
    initial: str  # noise, or an image of another class
    targeted: str  # by targeted PGD from there
    probability: float  # predicted probability of the class there
    unit: str  # the name of what was raised directly
    direct: str


class FeatureResult(AnalysisResult):
    """Feature visualizations of one model."""

    steps: int
    rel_step: float
    start: FeatureStart
    pictures: tuple[FeaturePicture, ...]
    probability: float  # the mean
    low_frequency_energy: float  # fraction of the energy of the targeted images
    initial_low_frequency_energy: float  # the same of the noise or images they began with

    @staticmethod
    def plot(results: Mapping[str, FeatureResult], figure: Figure) -> None:
        """Three rows per run: start, targeted PGD, direct ascent; a column per class."""
        columns = max(len(r.pictures) for r in results.values())
        axes = picture_axes(figure, 3 * len(results), columns)
        for block, (label, result) in enumerate(results.items()):
            for column, picture in enumerate(result.pictures):
                rows = axes[3 * block : 3 * block + 3, column]
                images = (picture.initial, picture.targeted, picture.direct)
                for axis, content in zip(rows, images, strict=True):
                    show_png(axis, content)
                rows[1].set_title(picture.name, fontsize="xx-small", pad=2)
                rows[2].set_title(picture.unit, fontsize="xx-small", pad=2)
            axes[3 * block][0].set_title(label, fontsize="x-small", loc="left")

    def summary(self) -> str:
        """Summarize target probabilities and how smooth the images are."""
        start = "images" if self.start == "image" else "noise"
        return (
            f"Targeted PGD-{self.steps} from {start} reaches its class with a probability of "
            f"{self.probability:.1%} on average. {self.low_frequency_energy:.1%} of the energy of "
            f"its images lies below {LOW_FREQUENCY:g} cycles per pixel; at the start it was "
            f"{self.initial_low_frequency_energy:.1%}."
        )


def feature_cost(
    scope: CostScope, *, steps: int, classes: int | str | Sequence[str], **_: Any
) -> PassCount:
    """Cost: a backward pass per step and image, for both methods."""
    if isinstance(classes, str):
        match = RANDOM_CLASSES.fullmatch(classes)
        classes = int(match[1]) if match else 1
    images = min(classes, scope.num_classes) if isinstance(classes, int) else len(classes)
    return PassCount(images * (3 + 2 * steps), 2 * images * steps)


@ANALYSES.register(
    "feature",
    paper="arXiv:2209.07399",
    tags=("attack",),
    cost=feature_cost,
    example_args={"steps": 3, "classes": 2},
)
def feature(
    subject: AnalysisSubject,
    *,
    steps: Count = 100,
    rel_step: float = 0.225,
    start: FeatureStart = "uniform",
    classes: int | str | Sequence[str] = 10,
    block: str = "",
    smoothness: float = 1.0,
) -> FeatureResult:
    r"""Images from noise: targeted PGD over the whole box, and ascent on a logit or a unit.

    .. math:: x_{t+1} = \Pi_{[0,1]}(x_t + \alpha\, \mathrm{sign} \nabla_x \log p_k(x_t)), \qquad
              \max_z u_k(\sigma(z)) - \lambda\, \mathrm{TV}(\sigma(z))

    u_k is the logit of class k or, with the name of a ``block``, its channel k, averaged over
    places; lambda is ``smoothness``; TV is the mean absolute difference of neighbors. A ball of
    eps 15 holds the whole box, so the box alone is left. ``classes`` are names, a number of first
    ones, or ``random:N``, drawn by the seed. ``start="image"`` begins with test images of other
    classes.

    Departure from the thesis' code: its attack adds noise of 15 to the noise it is given and clips,
    which makes nearly every pixel 0 or 1. That is ``start="binary"``.
    """
    units = NetworkUnits(subject.model, block)
    targets = _target_classes(subject, classes)
    names = [subject.data.classes[k] for k in targets]
    noise = _start_points(subject, targets, start)
    task = subject.progress.add_task("features", 2 * len(names) * steps)
    lengths = steps, rel_step
    targeted = [
        _targeted_image(subject, x, k, lengths, task)
        for k, x in zip(targets, noise.split(1), strict=True)
    ]
    unit_indices = range(len(names)) if block else targets  # a block has channels, not classes
    unit_names, direct = _maximize_units(units, noise, unit_indices, steps, smoothness)
    task.advance(len(names) * steps)
    task.close()
    with eval_mode(subject.model), torch.no_grad():
        probability = subject.model(torch.cat(targeted)).softmax(1)[:, targets].diagonal().cpu()
    figures = {
        "probability": probability.double(),
        "low_frequency_energy": low_frequency_energy(torch.cat(targeted).cpu().double()),
        "initial_low_frequency_energy": low_frequency_energy(noise.cpu().double()),
    }
    classes_drawn = SampleUnits(targets, "class")
    return FeatureResult(
        steps=steps,
        rel_step=rel_step,
        start=start,
        pictures=_pictures(names, unit_names, probability, (noise, torch.cat(targeted), direct)),
        **{name: float(values.mean()) for name, values in figures.items()},
        samples={name: classes_drawn.store(values) for name, values in figures.items()},
    )


def _start_points(subject: AnalysisSubject, targets: Sequence[int], start: FeatureStart) -> Tensor:
    """Where the ascent begins, for each target class: noise or test images of other classes."""
    if start == "image":
        return _start_images(subject, targets)
    return _start_noise(subject, targets, start)


def _pictures(
    names: Sequence[str],
    unit_names: Sequence[str],
    probability: Tensor,
    images: tuple[Tensor, Tensor, Tensor],
) -> tuple[FeaturePicture, ...]:
    """The noise, the targeted and the direct image of each class as pictures."""
    initial, targeted, direct = ([encode_png(x) for x in kind] for kind in images)
    return tuple(
        FeaturePicture(
            name=name,
            initial=initial[k],
            targeted=targeted[k],
            probability=float(probability[k]),
            unit=unit_names[k],
            direct=direct[k],
        )
        for k, name in enumerate(names)
    )


def _target_classes(subject: AnalysisSubject, classes: int | str | Sequence[str]) -> list[int]:
    """The indices of the classes: by names, the first ones, or some drawn by the seed."""
    class_names, order = subject.data.classes, list(range(len(subject.data.classes)))
    if isinstance(classes, str) and (match := RANDOM_CLASSES.fullmatch(classes)):
        generator = torch.Generator().manual_seed(derive_seed(subject.seed, "classes") % 2**63)
        order, classes = (
            torch.randperm(len(class_names), generator=generator).tolist(),
            int(match[1]),
        )
    if isinstance(classes, int) and classes > 0:
        return sorted(order[:classes])
    names = [classes] if isinstance(classes, str | int) else classes
    if not names or not set(names) <= set(class_names):
        raise UserError(
            f"`classes` must be a number, random:N or among {', '.join(class_names)}, "
            f"but got {classes!r}"
        )
    return [class_names.index(name) for name in names]


def _start_images(subject: AnalysisSubject, targets: Sequence[int]) -> Tensor:
    """(K, C, H, W) for each class a test image of another one, different ones if there are."""
    labels = subject.data.labels
    rows = []
    for target in targets:
        others = (labels != target).nonzero().flatten().tolist()
        if not others:
            raise UserError('`start="image"` needs test images of another class; use more images')
        rows.append(next((row for row in others if row not in rows), others[0]))
    return load_sample(subject.model, subject.data.select(rows)).x


def _start_noise(subject: AnalysisSubject, targets: Sequence[int], start: FeatureStart) -> Tensor:
    """(K, C, H, W) noise of its own for each class, the same for models of one seed."""
    sample = load_sample(subject.model, subject.first_images(1))
    template = sample.x.expand(len(targets), -1, -1, -1)
    streams = SampleRNG(subject.seed, "feature", torch.tensor(targets))
    noise = streams.draw_uniform(template, 0)
    if start == "binary":
        noise = (noise + PUBLISHED_EPS * (2 * streams.draw_uniform(template, 1) - 1)).clamp(0, 1)
    return noise


def _targeted_image(
    subject: AnalysisSubject,
    noise: Tensor,
    target: int,
    lengths: tuple[int, float],
    task: ProgressTask,
) -> Tensor:
    """The last point of targeted PGD; the label is any other class."""
    steps, rel_step = lengths
    attack = create_attack("pgd", steps=steps, rel_step=rel_step, start="clean", target=target)
    other_label = torch.full((len(noise),), (target + 1) % len(subject.data.classes)).to(
        noise.device
    )
    streams = SampleRNG(subject.seed, "feature", torch.tensor([target]))
    with eval_mode(subject.model):
        with torch.no_grad():
            clean = subject.model(noise)
        x_adv = last_iterate(
            attack, Problem(subject.model, noise, other_label, WHOLE_BOX, streams, clean)
        )
    task.advance(steps)
    return x_adv


def _maximize_units(
    units: NetworkUnits, noise: Tensor, unit_indices: Sequence[int], steps: int, smoothness: float
) -> tuple[list[str], Tensor]:
    """The names of units and images that raise them, all at once."""
    with eval_mode(units.model):
        available = units.activations(noise[:1]).shape[1]
        numbers = [k for k in unit_indices if k < available]
        point = (0.2 * (noise - 0.5)).clone().requires_grad_(True)  # nearly gray
        optimizer = torch.optim.Adam([point], lr=LEARNING_RATE)
        for _ in range(steps):
            optimizer.zero_grad()
            x = point.sigmoid()
            with torch.enable_grad():
                objective = (
                    units.activations(x)[:, numbers].diagonal().sum()
                    - smoothness * total_variation(x).sum()
                )
            (point.grad,) = torch.autograd.grad(-objective, point)
            optimizer.step()
    names = [f"{units.name} {k}" for k in numbers]
    return names + [""] * (len(noise) - len(names)), point.detach().sigmoid()


class NetworkUnits:
    """Logits of a model, or channels of one of its blocks."""

    def __init__(self, model: nn.Module, block: str) -> None:
        self.model, self.name = model, block or "logit"
        parts = {part.name: part.module for part in network_blocks(model)}
        if block and block not in parts:
            raise UserError(f"`block` must be one of {', '.join(parts)}, but got {block!r}")
        self.block = parts[block] if block else None

    def activations(self, x: Tensor) -> Tensor:
        """(N, units) averaged over places."""
        if self.block is None:
            return self.model(x)
        outputs: list[Tensor] = []
        hook = self.block.register_forward_hook(lambda m, i, out: outputs.append(out))
        try:
            self.model(x)
        finally:
            hook.remove()
        return spatial_mean(outputs[-1])


def spatial_mean(out: Tensor) -> Tensor:
    """(N, channels) of maps with channels first, of maps with channels last, or of tokens."""
    if out.ndim == 4:
        is_last = out.shape[1] == out.shape[2] != out.shape[3]
        return out.mean((1, 2)) if is_last else out.mean((2, 3))
    return out.mean(1) if out.ndim == 3 else out.flatten(1)


def total_variation(x: Tensor) -> Tensor:
    """(N,) the mean absolute difference of neighboring pixels."""
    down, right = x.diff(dim=2).abs(), x.diff(dim=3).abs()
    return down.flatten(1).mean(1) + right.flatten(1).mean(1)
