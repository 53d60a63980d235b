"""Perturbation stability: images whose prediction an attack cannot change (arXiv:2110.03825).

Huang et al., "Exploring Architectural Ingredients of Adversarially Robust Deep Neural Networks",
section 4.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from buttress.analysis.core import ANALYSES, AnalysisResult, Predictor
from buttress.analysis.cost import attack_passes
from buttress.analysis.figures import Axes, Figure
from buttress.analysis.subject import AnalysisSubject, CostScope
from buttress.analysis.uncertainty import SampleUnits
from buttress.attacks.core import create_attack
from buttress.config import Spec
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack
from buttress.models.cost import PassCount
from buttress.models.eval_mode import eval_mode, to_model_device
from buttress.statistics import wilson_interval
from buttress.system.progress import fraction_callback

StabilityReference = Literal["prediction", "label", "both"]
STABILITY_BATCH = 256


class CountInterval(Spec):
    """A fraction of images with its 95% interval."""

    count: int
    fraction: float
    low: float
    high: float


class ClassStability(Spec):
    """The same for the images of one class."""

    name: str
    images: int
    correct: int
    stable: int
    correct_and_stable: int


class StabilityResult(AnalysisResult):
    """Images by whether they are correct and whether an attack changes the prediction."""

    attack: str
    threat: str
    against: StabilityReference
    images: int
    correct: CountInterval
    stable: CountInterval
    correct_and_stable: CountInterval  # the robust accuracy
    correct_and_unstable: CountInterval
    wrong_and_stable: CountInterval
    wrong_and_unstable: CountInterval
    stable_if_correct: CountInterval  # of the correct images
    stable_against_label: CountInterval | None = None  # as published; only with ``against="both"``
    per_class: tuple[ClassStability, ...]

    @staticmethod
    def plot(results: Mapping[str, StabilityResult], figure: Figure) -> None:
        """Plot a bar per run by the four kinds of images, and classes if known."""
        by_class = any(r.per_class for r in results.values())
        axes = figure.subplots(1, 2 if by_class else 1, squeeze=False)[0]
        _draw_parts(results, axes[0])
        if by_class:
            _draw_classes(results, axes[1])

    def summary(self) -> str:
        """Summarize stability, and robust accuracy as a product."""
        robust, stable = self.correct_and_stable, self.stable
        return (
            f"{stable.fraction:.1%} of {self.images} images are stable under {self.attack} in "
            f"{self.threat} (95%: {stable.low:.1%} to {stable.high:.1%}). Robust accuracy "
            f"{robust.fraction:.1%} = clean accuracy {self.correct.fraction:.1%} x stability of "
            f"correct images {self.stable_if_correct.fraction:.1%}."
        )


# What is drawn: field, words, color.
STABILITY_PARTS = (
    ("correct_and_stable", "correct and stable (robust accuracy)", "#3a7d44"),
    ("correct_and_unstable", "correct, unstable", "#b7d7b9"),
    ("wrong_and_stable", "incorrect, stable", "#8c4a3c"),
    ("wrong_and_unstable", "incorrect, unstable", "#e3b7ab"),
)


def _draw_parts(results: Mapping[str, StabilityResult], axes: Axes) -> None:
    positions = list(range(len(results)))
    left = [0.0] * len(results)
    for name, words, color in STABILITY_PARTS:
        shares = [getattr(r, name).fraction for r in results.values()]
        bars = axes.barh(positions, shares, left=left, color=color, label=words)
        axes.bar_label(bars, [f"{s:.0%}" if s >= 0.04 else "" for s in shares], label_type="center")
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axes.set_yticks(positions, list(results))
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel="share of images")
    axes.legend(fontsize="small", ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _draw_classes(results: Mapping[str, StabilityResult], axes: Axes) -> None:
    for label, result in results.items():
        shares = [c.stable / c.images if c.images else float("nan") for c in result.per_class]
        axes.plot([c.name for c in result.per_class], shares, marker="o", label=label)
    axes.tick_params(axis="x", rotation=60)
    axes.set(ylim=(0, 1), ylabel="share of stable images", title="by class")
    if any(results):
        axes.legend(fontsize="small")


def stability_cost(
    scope: CostScope,
    *,
    attack: str,
    args: Mapping[str, Any] | None,
    limit: int,
    against: str,
    **_: Any,
) -> PassCount:
    """Cost: the attack, and a forward pass of each image before and after; twice for both forms."""
    images = min(limit, scope.num_images)
    passes = attack_passes(create_attack(attack, **(args or {})), scope, images, looks=2)
    return passes + passes if against == "both" else passes


@ANALYSES.register(
    "stability",
    paper="arXiv:2110.03825",
    tags=("attack",),
    cost=stability_cost,
    example_args={"limit": 4, "args": {"steps": 2}},
    predictors=(Predictor("stability", ("stable", "fraction"), True, also_initial=True),),
)
def stability(
    subject: AnalysisSubject,
    *,
    attack: str = "pgd",
    args: Mapping[str, Any] | None = None,
    limit: int = 512,
    against: StabilityReference = "prediction",
    per_class: bool = False,
) -> StabilityResult:
    r"""Fraction of images whose prediction an attack cannot change; its part in robust accuracy.

    .. math:: \{x : \arg\max f(x') = \arg\max f(x)\ \forall x' \in B_\epsilon(x)\}

    Robust accuracy is the fraction of images that are correct and stable.

    Departure from the published code: it attacks the label, so a misclassified image is pushed
    further from its label, not away from its prediction, and looks more stable than it is. Here the
    prediction is attacked, which is the same for correct images; ``against="label"`` is the
    published way, and ``against="both"`` adds its fraction as ``stable_against_label``.
    """
    data = subject.first_images(limit)
    x, y, ids = data.take(torch.arange(len(data)))
    clean_predictions = predict_classes(subject.model, x)
    chosen_attack = create_attack(attack, **(args or {}))

    def stable_images(targets: Tensor) -> Tensor:
        task = subject.progress.add_task(f"stability under {attack}", len(x))
        options = AttackOptions(
            subject.seed,
            STABILITY_BATCH,
            stop_when_fooled=targets is clean_predictions,
            on_progress=fraction_callback(task, len(x)),
        )
        model, threat = subject.model, subject.threat
        out = run_attack(chosen_attack, model, x, targets, threat, ids=ids, options=options)
        task.close()
        return predict_classes(model, out.x_adv) == clean_predictions

    is_correct = clean_predictions == y
    stable = stable_images(y if against == "label" else clean_predictions)
    masks = _stability_masks(is_correct, stable)
    if against == "both":
        masks["stable_against_label"] = (stable_images(y), torch.ones_like(stable))
    units, classes = SampleUnits(ids), data.classes if per_class else ()
    return StabilityResult(
        attack=attack,
        threat=str(subject.threat),
        against=against,
        images=len(x),
        **{name: count_interval(mask[counted]) for name, (mask, counted) in masks.items()},
        per_class=tuple(
            _class_stability(name, y == k, is_correct, stable) for k, name in enumerate(classes)
        ),
        samples={
            f"{name}.fraction": units.store(mask.double().where(counted, torch.nan))
            for name, (mask, counted) in masks.items()
        },
    )


def _stability_masks(is_correct: Tensor, stable: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Field -> which images are in it, and which it is a fraction of."""
    every = torch.ones_like(stable)
    masks = {
        "correct": is_correct,
        "stable": stable,
        "correct_and_stable": is_correct & stable,
        "correct_and_unstable": is_correct & ~stable,
        "wrong_and_stable": ~is_correct & stable,
        "wrong_and_unstable": ~is_correct & ~stable,
    }
    return {name: (mask, every) for name, mask in masks.items()} | {
        "stable_if_correct": (stable, is_correct)
    }


def predict_classes(model: nn.Module, x: Tensor) -> Tensor:
    """(N,) predicted classes, on the CPU."""
    with eval_mode(model), torch.no_grad():
        classes = [
            model(to_model_device(model, part)).argmax(1).cpu() for part in x.split(STABILITY_BATCH)
        ]
    return torch.cat(classes)


def count_interval(mask: Tensor) -> CountInterval:
    """Count the true entries of a mask, with an interval."""
    count, n = int(mask.sum()), len(mask)
    low, high = wilson_interval(count, n)
    return CountInterval(count=count, fraction=count / n if n else 0.0, low=low, high=high)


def _class_stability(
    name: str, is_class: Tensor, is_correct: Tensor, stable: Tensor
) -> ClassStability:
    return ClassStability(
        name=name,
        images=int(is_class.sum()),
        correct=int((is_class & is_correct).sum()),
        stable=int((is_class & stable).sum()),
        correct_and_stable=int((is_class & is_correct & stable).sum()),
    )
