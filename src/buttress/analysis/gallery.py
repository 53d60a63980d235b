"""A few attacked images to look at: clean, perturbation, adversarial."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import Passes, passes_of
from buttress.analysis.subject import Subject
from buttress.attacks.call import How, create_attack, run_attack
from buttress.attacks.freeze import frozen, on_device_of
from buttress.spec import Spec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Example(Spec):
    """One image before and after an attack; pictures are PNG in base64."""

    id: int
    label: int
    clean_prediction: int
    adversarial_prediction: int
    clean_confidence: float
    adversarial_confidence: float
    distance: float
    clean: str
    perturbation: str
    adversarial: str


class Gallery(Spec):
    """Attacked images of one model."""

    attack: str
    threat: str
    classes: tuple[str, ...]
    examples: tuple[Example, ...]


def plot_gallery(results: Mapping[str, Gallery], figure: Figure) -> None:
    """Three rows of pictures per run."""
    rows = 3 * len(results)
    columns = max(len(r.examples) for r in results.values())
    figure.set_size_inches(1.1 * max(columns, 3), 1.1 * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for block, (label, result) in enumerate(results.items()):
        for column, example in enumerate(result.examples):
            pictures = (example.clean, example.perturbation, example.adversarial)
            for row, picture in enumerate(pictures):
                show(axes[3 * block + row][column], picture)
            said = result.classes[example.adversarial_prediction]
            axes[3 * block + 2][column].set_title(said, fontsize="x-small")
        axes[3 * block][0].set_title(label, fontsize="small", loc="left")


def cost_gallery(subject: Subject, *, attack: str, count: int, steps: int) -> Passes:
    """The attack, and a look at each image before and after."""
    images = min(count, len(subject.data.classes))
    return passes_of(create_attack(attack, steps=steps), subject, images) + Passes(2 * images)


def says_gallery(result: Gallery) -> str:
    """How many of the images are named otherwise after the attack, and how surely."""
    shown = result.examples
    turned = [e for e in shown if e.adversarial_prediction != e.clean_prediction]
    sure = sum(e.adversarial_confidence for e in turned) / max(len(turned), 1)
    how = f", with a confidence of {sure:.1%} on average" if turned else ""
    return (
        f"{result.attack} in {result.threat} changes what the network says about {len(turned)} of "
        f"{len(shown)} images{how}."
    )


@ANALYSES.register(
    "gallery",
    tags=("attack",),
    result=Gallery,
    plot=plot_gallery,
    cost=cost_gallery,
    says=says_gallery,
)
def gallery(subject: Subject, *, attack: str = "pgd", count: int = 8, steps: int = 20) -> Gallery:
    """Clean image, perturbation (grey is no change, each in full contrast) and attacked image.

    One image per class from the front of the test images, so that two models show the same ones.
    """
    chosen = create_attack(attack, steps=steps)
    rows = one_per_class(subject.data.labels, count)
    x, y, ids = subject.data.take(rows)
    x = on_device_of(subject.model, x)
    y = y.to(x.device)
    out = run_attack(chosen, subject.model, x, y, subject.threat, ids=ids, how=How(subject.seed))
    with frozen(subject.model), torch.no_grad():
        before, after = (subject.model(p).softmax(1).max(1) for p in (x, out.x_adv))
    delta = out.x_adv - x
    scale = delta.abs().flatten(1).amax(1).clamp_min(1e-12).view(-1, 1, 1, 1)
    distances = subject.threat.distance(x, out.x_adv)
    examples = [
        Example(
            id=int(ids[i]),
            label=int(y[i]),
            clean_prediction=int(before.indices[i]),
            adversarial_prediction=int(after.indices[i]),
            clean_confidence=float(before.values[i]),
            adversarial_confidence=float(after.values[i]),
            distance=float(distances[i]),
            clean=png(x[i]),
            perturbation=png((delta / scale)[i] / 2 + 0.5),
            adversarial=png(out.x_adv[i]),
        )
        for i in range(len(x))
    ]
    return Gallery(
        attack=attack,
        threat=str(subject.threat),
        classes=subject.data.classes,
        examples=tuple(examples),
    )


def one_per_class(labels: Tensor, count: int) -> Tensor:
    """Where the first image of each class is, for the first classes."""
    first = [int((labels == k).nonzero()[0]) for k in labels.unique().tolist()]
    return torch.tensor(first[:count])


def png(image: Tensor) -> str:
    """A (C, H, W) image in [0, 1] as PNG in base64."""
    pixels = (image.detach().cpu().float().clamp(0, 1) * 255).round().to(torch.uint8)
    array = pixels.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def show(axes: Axes, picture: str, cmap: str = "gray") -> None:
    """Draws a PNG in base64, pixel by pixel: so an SVG holds its pixels and no more."""
    image = Image.open(io.BytesIO(base64.b64decode(picture)))
    axes.imshow(image, cmap=cmap, interpolation="none")
