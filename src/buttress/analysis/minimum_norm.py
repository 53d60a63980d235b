"""The smallest eps that fools the model on each image, and how near attacks come to it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from buttress.analysis.core import ANALYSES, AnalysisResult, Count, PositiveFloat, Table
from buttress.analysis.cost import attack_passes
from buttress.analysis.figures import Figure
from buttress.analysis.subject import AnalysisSubject, CostScope
from buttress.analysis.uncertainty import SampleUnits
from buttress.attacks.core import create_attack
from buttress.attacks.fab import FABBase
from buttress.config import Spec
from buttress.engine.options import AttackOptions
from buttress.evaluation.minimum_norm import LEVELS, MinimumNorms, minimum_norms
from buttress.models.cost import PassCount

CURVE_POINTS = 33


class AttackDistances(Spec):
    """What one attack found: its curve, its optimality and its passes."""

    name: str
    accuracy: tuple[float, ...]  # robust accuracy at each eps
    median: float | None  # distance over images that are classified correctly; None: none found
    optimality: float
    optimality_low: float
    optimality_high: float
    passes: float  # forward and backward, mean over images


class MinimumNormCurve(AnalysisResult):
    """Robust accuracy against eps by the smallest perturbation that any attack found."""

    norm: str
    eps: tuple[float, ...]
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    median: float | None  # smallest eps over images that are classified correctly
    images: int
    attacks: tuple[AttackDistances, ...]

    @staticmethod
    def plot(results: Mapping[str, MinimumNormCurve], figure: Figure) -> None:
        """Plot one line per run with its interval, and each attack as a thin line."""
        axes = figure.subplots()
        for label, result in results.items():
            (line,) = axes.step(result.eps, result.accuracy, where="post", label=label)
            color = line.get_color()
            axes.fill_between(
                result.eps, result.low, result.high, alpha=0.15, color=color, step="post"
            )
            for attack, style in zip(result.attacks, ("--", ":", "-."), strict=False):
                name = f"{label}, {attack.name} ({attack.optimality:.1%} optimal)"
                axes.plot(result.eps, attack.accuracy, style, color=color, lw=1, label=name)
        norms = "/".join(sorted({r.norm for r in results.values()}))
        axes.set(xlabel=f"eps ({norms})", ylabel="robust accuracy", ylim=(0, 1))
        if any(results):
            axes.legend(fontsize="small")

    def summary(self) -> str:
        """Summarize the median distance and the optimality of each attack."""
        median = (
            "no perturbation was found for most images"
            if self.median is None
            else f"the median smallest eps that fools it is {self.median:.4g}"
        )
        ranks = ", ".join(
            f"{a.name} {a.optimality:.1%} ({a.optimality_low:.1%} - {a.optimality_high:.1%}) "
            f"with {a.passes:,.0f} passes"
            for a in sorted(self.attacks, key=lambda a: -a.optimality)
        )
        return (
            f"In {self.norm}, {median} ({self.images} images); optimality of the attacks against "
            f"the best of them: {ranks}."
        )

    def table(self) -> Table:
        """One row per attack."""
        rows = [
            [
                a.name,
                "none" if a.median is None else f"{a.median:.4g}",
                f"{a.optimality:.1%}",
                f"{a.optimality_low:.1%} - {a.optimality_high:.1%}",
                f"{a.passes:,.0f}",
            ]
            for a in self.attacks
        ]
        return ["attack", "median eps", "optimality", "95% interval", "passes per image"], rows


def minimum_norm_cost(
    scope: CostScope, *, attacks: tuple[str, ...], factor: float, limit: int
) -> PassCount:
    """Cost: one run of FAB; any other attack once for each step of the bisection, at most."""
    images, total = min(limit, scope.num_images), PassCount()
    for name in attacks:
        attack = create_attack(name)
        runs = 1 if isinstance(attack, FABBase) else math.ceil(math.log2(LEVELS + 1))
        total += attack_passes(attack, scope, images) * runs
    return total


@ANALYSES.register(
    "minimum_norm",
    paper="arXiv:2404.19460",
    tags=("attack",),
    cost=minimum_norm_cost,
    example_args={"limit": 4, "attacks": ("fgsm",)},
)
def minimum_norm(
    subject: AnalysisSubject,
    *,
    attacks: tuple[str, ...] = ("fab-t", "fast"),
    factor: PositiveFloat = 4.0,
    limit: Count = 128,
) -> MinimumNormCurve:
    """Smallest eps that fools the model per image, and how near each attack comes to the best."""
    data = subject.first_images(limit)
    found = minimum_norms(
        subject.model,
        data,
        subject.threat.norm,
        attacks=attacks,
        max_eps=factor * subject.threat.eps,
        options=AttackOptions(subject.seed),
    )
    eps = tuple(float(e) for e in np.linspace(0, found.max_eps, CURVE_POINTS))
    curve, units = found.curve(eps), SampleUnits(data.ids)
    return MinimumNormCurve(
        norm=found.norm,
        eps=eps,
        accuracy=tuple(point.accuracy for point in curve),
        low=tuple(point.interval.low for point in curve),
        high=tuple(point.interval.high for point in curve),
        median=_finite(found.median()),
        images=len(data),
        attacks=tuple(_attack_distances(found, name, eps) for name in found.distances),
        samples={f"accuracy[{k}]": units.store(found.best > e) for k, e in enumerate(eps)},
    )


def _attack_distances(found: MinimumNorms, name: str, eps: tuple[float, ...]) -> AttackDistances:
    interval = found.optimality_interval(name)
    return AttackDistances(
        name=name,
        accuracy=tuple(point.accuracy for point in found.curve(eps, name)),
        median=_finite(found.median(name)),
        optimality=found.optimality(name),
        optimality_low=interval.low,
        optimality_high=interval.high,
        passes=found.passes[name],
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
