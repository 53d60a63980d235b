"""Robust accuracy against eps, including whether it reaches zero at large eps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from buttress.analysis.core import ANALYSES, AnalysisResult
from buttress.analysis.cost import attack_passes
from buttress.analysis.figures import Figure
from buttress.analysis.subject import AnalysisSubject, CostScope
from buttress.analysis.uncertainty import SampleUnits
from buttress.attacks.core import create_attack
from buttress.engine.options import AttackOptions
from buttress.evaluation import accuracy_curve
from buttress.models.cost import PassCount


class EpsCurve(AnalysisResult):
    """Robust accuracy at each eps with its 95% interval."""

    attack: str
    norm: str
    eps: tuple[float, ...]
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    images: int

    @staticmethod
    def plot(results: Mapping[str, EpsCurve], figure: Figure) -> None:
        """Plot one line per run with its interval."""
        axes = figure.subplots()
        for label, result in results.items():
            (line,) = axes.plot(result.eps, result.accuracy, marker="o", label=label)
            axes.fill_between(
                result.eps, result.low, result.high, alpha=0.15, color=line.get_color()
            )
        norms = "/".join(sorted({r.norm for r in results.values()}))
        axes.set(xlabel=f"eps ({norms})", ylabel="accuracy", ylim=(0, 1))
        if any(results):
            axes.legend(fontsize="small")

    def summary(self) -> str:
        """Summarize where robust accuracy halves, and its value at the largest eps."""
        first, last = self.accuracy[0], self.accuracy[-1]
        below_half = [e for e, a in zip(self.eps, self.accuracy, strict=True) if a <= first / 2]
        half = "it stays above half of that"
        if below_half:
            half = f"it falls below half of that at {below_half[0]:.3g}"
        return (
            f"Robust accuracy under {self.attack} is {first:.1%} at eps {self.eps[0]:.3g} "
            f"({self.norm}, {self.images} images) and {last:.1%} at {self.eps[-1]:.3g}; "
            f"{half}."
        )


def eps_curve_cost(
    scope: CostScope, *, attack: str, factors: Sequence[float], limit: int, steps: int
) -> PassCount:
    """Cost: at most one attack per eps; a fooled image is not attacked at larger eps."""
    images = min(limit, scope.num_images)
    passes_per_eps = attack_passes(create_attack(attack, steps=steps), scope, images)
    return sum((passes_per_eps for factor in set(factors) if factor > 0), start=PassCount(images))


@ANALYSES.register(
    "curve", tags=("attack",), cost=eps_curve_cost, example_args={"limit": 4, "steps": 2}
)
def eps_curve(
    subject: AnalysisSubject,
    *,
    attack: str = "pgd",
    factors: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0),
    limit: int = 128,
    steps: int = 10,
) -> EpsCurve:
    """Robust accuracy under one attack at multiples of the training eps."""
    data = subject.first_images(limit)
    max_eps = 1.0 if subject.threat.norm == "Linf" else float("inf")
    radii = [min(f * subject.threat.eps, max_eps) for f in factors]
    accuracies = accuracy_curve(
        subject.model,
        data,
        attack,
        subject.threat.norm,
        radii,
        options=AttackOptions(subject.seed),
        steps=steps,
    )
    intervals, units = accuracies.intervals, SampleUnits(data.ids)
    return EpsCurve(
        attack=attack,
        norm=accuracies.norm,
        eps=accuracies.eps,
        accuracy=accuracies.accuracy,
        low=tuple(s.low for s in intervals),
        high=tuple(s.high for s in intervals),
        images=len(data),
        samples={f"accuracy[{k}]": units.store(v) for k, v in enumerate(accuracies.is_robust)},
    )
