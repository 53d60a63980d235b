"""Gallery of attacked images: clean, perturbation, adversarial."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from buttress.analysis.core import ANALYSES, AnalysisResult
from buttress.analysis.cost import attack_passes
from buttress.analysis.figures import Axes, Figure, SubFigure
from buttress.analysis.subject import AnalysisSubject, CostScope, load_sample
from buttress.analysis.uncertainty import UncertaintyNote
from buttress.attacks.core import create_attack
from buttress.config import Spec
from buttress.models.cost import PassCount
from buttress.models.eval_mode import eval_mode

EXAMPLES_ONLY = UncertaintyNote(
    pattern="*", varies_by="none", reason="it is a figure of single images, not an average"
)


class GalleryExample(Spec):
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


class GalleryResult(AnalysisResult):
    """Adversarial examples of one model."""

    attack: str
    threat: str
    classes: tuple[str, ...]
    examples: tuple[GalleryExample, ...]

    @staticmethod
    def plot(results: Mapping[str, GalleryResult], figure: Figure) -> None:
        """Plot three rows of pictures per run."""
        rows = 3 * len(results)
        columns = max(len(r.examples) for r in results.values())
        figure.set_size_inches(1.1 * max(columns, 3), 1.1 * rows)
        axes = picture_axes(figure, rows, columns)
        for block, (label, result) in enumerate(results.items()):
            for column, example in enumerate(result.examples):
                pictures = (example.clean, example.perturbation, example.adversarial)
                for row, picture in enumerate(pictures):
                    show_png(axes[3 * block + row][column], picture)
                predicted_class = result.classes[example.adversarial_prediction]
                axes[3 * block + 2][column].set_title(predicted_class, fontsize="x-small")
            axes[3 * block][0].set_title(label, fontsize="small", loc="left")

    def summary(self) -> str:
        """Summarize how many predictions change, and their confidence."""
        examples = self.examples
        changed = [e for e in examples if e.adversarial_prediction != e.clean_prediction]
        mean_confidence = sum(e.adversarial_confidence for e in changed) / max(len(changed), 1)
        confidence_note = (
            f", with a confidence of {mean_confidence:.1%} on average" if changed else ""
        )
        return (
            f"{self.attack} in {self.threat} changes the prediction of {len(changed)} of "
            f"{len(examples)} images{confidence_note}."
        )


def gallery_cost(scope: CostScope, *, attack: str, examples: int, steps: int) -> PassCount:
    """Cost: the attack, and a forward pass of each image before and after."""
    images = min(examples, scope.num_classes)
    return attack_passes(create_attack(attack, steps=steps), scope, images, looks=2)


@ANALYSES.register(
    "gallery",
    tags=("attack",),
    cost=gallery_cost,
    example_args={"examples": 2, "steps": 2},
    uncertainty=(EXAMPLES_ONLY,),
)
def gallery(
    subject: AnalysisSubject, *, attack: str = "pgd", examples: int = 8, steps: int = 20
) -> GalleryResult:
    """Clean image, perturbation (gray is no change, each in full contrast) and attacked image.

    One image per class from the front of the test images, so that two models show the same ones.
    """
    rows = first_image_per_class(subject.data.labels, examples)
    sample = load_sample(subject.model, subject.data.select(rows))
    x, x_adv = sample.x, subject.attack(create_attack(attack, steps=steps), sample).x_adv
    with eval_mode(subject.model), torch.no_grad():
        clean, adversarial = (subject.model(p).softmax(1).max(1) for p in (x, x_adv))
    delta = x_adv - x
    scale = delta.abs().flatten(1).amax(1).clamp_min(1e-12).view(-1, 1, 1, 1)
    distances = subject.threat.perturbation_size(x, x_adv)
    gallery_examples = [
        GalleryExample(
            id=int(sample.ids[i]),
            label=int(sample.y[i]),
            clean_prediction=int(clean.indices[i]),
            adversarial_prediction=int(adversarial.indices[i]),
            clean_confidence=float(clean.values[i]),
            adversarial_confidence=float(adversarial.values[i]),
            distance=float(distances[i]),
            clean=encode_png(x[i]),
            perturbation=encode_png((delta / scale)[i] / 2 + 0.5),
            adversarial=encode_png(x_adv[i]),
        )
        for i in range(len(x))
    ]
    return GalleryResult(
        attack=attack,
        threat=str(subject.threat),
        classes=subject.data.classes,
        examples=tuple(gallery_examples),
    )


def first_image_per_class(labels: Tensor, count: int) -> Tensor:
    """Where the first image of each class is, for the first classes."""
    first = [int((labels == k).nonzero()[0]) for k in labels.unique().tolist()]
    return torch.tensor(first[:count])


def encode_png(image: Tensor) -> str:
    """A (C, H, W) image in [0, 1] as PNG in base64."""
    pixels = (image.detach().cpu().float().clamp(0, 1) * 255).round().to(torch.uint8)
    array = pixels.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def picture_axes(figure: Figure | SubFigure, rows: int, columns: int) -> Any:
    """(rows, columns) axes without frames."""
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    return axes


def show_png(axes: Axes, picture: str, cmap: str = "gray") -> None:
    """Draws a PNG in base64, pixel by pixel: so an SVG holds its pixels and no more."""
    image = Image.open(io.BytesIO(base64.b64decode(picture)))
    axes.imshow(image, cmap=cmap, interpolation="none")
