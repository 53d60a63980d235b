"""Accuracy against eps: how fast a model falls, and whether it falls to zero as it must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import Passes, passes_of
from buttress.analysis.subject import Subject
from buttress.attacks.call import How, create_attack
from buttress.evaluation import accuracy_curve
from buttress.spec import Spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class EpsCurve(Spec):
    """Accuracy at each eps with its 95% interval."""

    attack: str
    norm: str
    eps: tuple[float, ...]
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    images: int


def plot_curve(results: Mapping[str, EpsCurve], figure: Figure) -> None:
    """One line per run with its interval."""
    axes = figure.subplots()
    for label, result in results.items():
        (line,) = axes.plot(result.eps, result.accuracy, marker="o", label=label)
        axes.fill_between(result.eps, result.low, result.high, alpha=0.15, color=line.get_color())
    norms = "/".join(sorted({r.norm for r in results.values()}))
    axes.set(xlabel=f"eps ({norms})", ylabel="accuracy", ylim=(0, 1))
    if any(results):
        axes.legend(fontsize="small")


def cost_curve(
    subject: Subject, *, attack: str, factors: Sequence[float], limit: int, steps: int
) -> Passes:
    """An attack in each ball, at most: an image that one breaks is not attacked in a larger one."""
    images = min(limit, len(subject.data))
    each = passes_of(create_attack(attack, steps=steps), subject, images)
    return sum((each for factor in set(factors) if factor > 0), start=Passes(images))


def says_curve(result: EpsCurve) -> str:
    """Where half of the accuracy is gone, and what is left at the end."""
    first, last = result.accuracy[0], result.accuracy[-1]
    gone = [e for e, a in zip(result.eps, result.accuracy, strict=True) if a <= first / 2]
    half = f"half of that is gone at {gone[0]:.3g}" if gone else "more than half of that stays"
    return (
        f"Accuracy under {result.attack} is {first:.1%} at eps {result.eps[0]:.3g} ({result.norm}, "
        f"{result.images} images) and {last:.1%} at {result.eps[-1]:.3g}; {half}."
    )


@ANALYSES.register(
    "curve",
    tags=("attack",),
    result=EpsCurve,
    plot=plot_curve,
    cost=cost_curve,
    says=says_curve,
)
def curve(
    subject: Subject,
    *,
    attack: str = "pgd",
    factors: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0),
    limit: int = 128,
    steps: int = 10,
) -> EpsCurve:
    """Accuracy under one attack at multiples of the trained eps, on the first images."""
    data = subject.first(limit)
    top = 1.0 if subject.threat.norm == "Linf" else float("inf")
    radii = [min(f * subject.threat.eps, top) for f in factors]
    found = accuracy_curve(
        subject.model, data, attack, subject.threat.norm, radii, how=How(subject.seed), steps=steps
    )
    spans = found.intervals
    return EpsCurve(
        attack=attack,
        norm=found.norm,
        eps=found.eps,
        accuracy=found.accuracy,
        low=tuple(s.low for s in spans),
        high=tuple(s.high for s in spans),
        images=len(data),
    )
