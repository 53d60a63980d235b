"""Trade-off of robust accuracy with clean accuracy, size and cost over many runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from buttress.analysis.core import ANALYSES, AnalysisResult
from buttress.analysis.figures import Axes, Figure
from buttress.analysis.group import AccuracyInterval, RunScore, group_scores
from buttress.analysis.subject import RunGroup
from buttress.analysis.uncertainty import OWN_INTERVAL
from buttress.config import Spec
from buttress.results.core import WORST_CASE
from buttress.statistics import pareto
from buttress.system.progress import track
from buttress.training.cost import run_model_cost, trained_passes, training_seconds

# Axes of the trade-off: field, label, whether more is better.
TRADEOFF_AXES = (
    ("clean_accuracy", "clean accuracy", True),
    ("parameters", "parameters", False),
    ("macs", "multiply-accumulates per image", False),
    ("train_seconds", "seconds of training", False),
    ("train_passes", "passes of training images", False),
)
PLOTTED_AXES = ("clean_accuracy", "parameters", "macs", "train_seconds")


class TradeoffPoint(Spec):
    """One run."""

    label: str
    robust_accuracy: AccuracyInterval
    clean_accuracy: AccuracyInterval
    num_images: int
    parameters: int
    macs: int  # of one forward pass of one image
    train_seconds: float | None  # of training, on the machine it ran on
    train_passes: float | None  # of single images in training


class TradeoffFront(Spec):
    """Pareto front of robust accuracy and one axis."""

    axis: str
    runs: tuple[str, ...]  # from the most robust on
    not_significantly_worse: tuple[str, ...]  # dominated, but not beyond the 95% intervals


class TradeoffResult(AnalysisResult):
    """All runs, and the Pareto front on each axis."""

    suite: str
    attack: str
    points: tuple[TradeoffPoint, ...]  # from the most robust on
    fronts: tuple[TradeoffFront, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    def front(self, axis: str) -> TradeoffFront:
        return next(f for f in self.fronts if f.axis == axis)

    @staticmethod
    def plot(results: Mapping[str, TradeoffResult], figure: Figure) -> None:
        """Plot robust accuracy against each axis, with intervals and the Pareto front."""
        figure.set_size_inches(11, 4.2 * len(results) * 2)
        panels = figure.subplots(2 * len(results), 2, squeeze=False)
        for row, result in enumerate(results.values()):
            axes = [panels[2 * row + i // 2][i % 2] for i in range(len(PLOTTED_AXES))]
            for axis, (name, words, _) in zip(
                axes, [a for a in TRADEOFF_AXES if a[0] in PLOTTED_AXES], strict=True
            ):
                _draw_axis(result, name, words, axis)
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right upper",
                      fontsize="small")  # fmt: skip

    def summary(self) -> str:
        """Summarize the Pareto front of robust and clean accuracy, and the smallest model."""
        best, clean = self.points[0], self.front("clean_accuracy")
        robust = best.robust_accuracy
        members = ", ".join(
            f"{p.label} ({p.robust_accuracy.value:.1%} / {p.clean_accuracy.value:.1%})"
            for p in self.points
            if p.label in clean.runs
        )
        small = self.front("parameters").runs[-1]
        return (
            f"{best.label} is the most robust of {len(self.points)} runs: "
            f"{robust.value:.1%} (95%: {robust.low:.1%} to {robust.high:.1%}) "
            f"{self.attack.replace('_', ' ')} accuracy under {self.suite}. The Pareto front "
            f"of robust and clean accuracy: {members}"
            + (
                f"; within chance of it: {', '.join(clean.not_significantly_worse)}"
                * bool(clean.not_significantly_worse)
            )
            + f". The smallest model on the Pareto front with parameters is {small}."
        )


def _draw_axis(result: TradeoffResult, name: str, words: str, axes: Axes) -> None:
    points = [p for p in result.points if getattr(p, name) is not None]
    for number, point in enumerate(result.points):
        if point not in points:
            continue
        x_error = [_error_bars(point.clean_accuracy)] if name == "clean_accuracy" else None
        axes.errorbar(
            _axis_value(point, name), point.robust_accuracy.value,
            yerr=[[v] for v in _error_bars(point.robust_accuracy)],
            xerr=None if x_error is None else [[v] for v in x_error[0]],
            marker="o", capsize=2, linewidth=1, color=f"C{number % 10}",
            markerfacecolor="white" if number >= 10 else None, label=point.label,
        )  # fmt: skip
    best = set(result.front(name).runs)
    line = sorted(
        (_axis_value(p, name), p.robust_accuracy.value) for p in points if p.label in best
    )
    axes.plot([x for x, _ in line], [y for _, y in line], color="0.6", linewidth=1, zorder=0)
    axes.set(xlabel=words, ylabel=f"{result.attack.replace('_', ' ')} accuracy ({result.suite})")
    if name != "clean_accuracy":
        axes.set_xscale("log")


def _error_bars(accuracy: AccuracyInterval) -> tuple[float, float]:
    """How far the interval goes below and above."""
    return max(0.0, accuracy.value - accuracy.low), max(0.0, accuracy.high - accuracy.value)


def _axis_value(point: TradeoffPoint, name: str) -> float:
    value = getattr(point, name)
    return float(value.value if isinstance(value, AccuracyInterval) else value)


@ANALYSES.register(
    "tradeoff",
    tags=("records",),
    cost=lambda group, **_: (),  # it reads saved results and counts MACs
    uncertainty=(OWN_INTERVAL,),
    subject="group",
    reads_records=True,
)
def tradeoff(group: RunGroup, *, suite: str = "", attack: str = WORST_CASE) -> TradeoffResult:
    """Robust accuracy of evaluated runs against clean accuracy, size and cost.

    Robust accuracy is the worst case over a suite, or that under one of its attacks. A run is on a
    front if no other run is at least as robust and at least as good on that axis, and better in one
    of them.
    """
    scores = group_scores(group, suite, attack)
    runs = track(group.progress, "tradeoff", scores.runs, lambda score: score.label)
    points = sorted(map(_tradeoff_point, runs), key=lambda p: -p.robust_accuracy.value)
    return TradeoffResult(
        suite=scores.suite,
        attack=attack,
        points=tuple(points),
        fronts=tuple(tradeoff_front(points, name, is_gain) for name, _, is_gain in TRADEOFF_AXES),
        missing=scores.missing,
        notes=scores.notes,
    )


def _tradeoff_point(score: RunScore) -> TradeoffPoint:
    cost = run_model_cost(score.run.spec)
    return TradeoffPoint(
        label=score.label,
        robust_accuracy=score.robust_accuracy,
        clean_accuracy=score.clean_accuracy,
        num_images=score.num_images,
        parameters=cost.parameters,
        macs=cost.macs,
        train_seconds=training_seconds(score.run),
        train_passes=trained_passes(score.run),
    )


def tradeoff_front(
    points: Sequence[TradeoffPoint], axis: str, more_is_better: bool
) -> TradeoffFront:
    """The front of robust accuracy and one axis, over the runs that have a value on it."""
    points_with_value = [p for p in points if getattr(p, axis) is not None]
    sign = 1 if more_is_better else -1

    def coordinates(end: str) -> list[pareto.ParetoPoint]:
        values: list[pareto.ParetoPoint] = []
        for p in points_with_value:
            value = getattr(p, axis)
            other = (
                getattr(value, end) if isinstance(value, AccuracyInterval) else sign * float(value)
            )
            values.append((getattr(p.robust_accuracy, end), other))
        return values

    best = pareto.pareto_front(coordinates("value"))
    close = [
        i for i in pareto.possible_front(coordinates("low"), coordinates("high")) if i not in best
    ]
    ordered = sorted(best, key=lambda i: -points_with_value[i].robust_accuracy.value)
    return TradeoffFront(
        axis=axis,
        runs=tuple(points_with_value[i].label for i in ordered),
        not_significantly_worse=tuple(points_with_value[i].label for i in close),
    )
