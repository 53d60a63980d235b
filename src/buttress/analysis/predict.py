"""Rank correlation of cheap metrics with robust accuracy over many runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import PassCount
from buttress.analysis.group import WORST, GroupScores, group_scores
from buttress.analysis.methods.predictors import (
    CLEAN_ACCURACY,
    PREDICTORS,
    SIZE_METRICS,
    MetricReader,
)
from buttress.analysis.subject import AnalysisSubject, RunGroup
from buttress.config import Spec
from buttress.errors import UserError
from buttress.statistics import holm, spearman, spearman_p_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIN_RUNS = 4  # runs: with fewer an interval is uninformative
SIGNIFICANCE = 0.05
HINTS = {
    p.name: f"; `buttress analyze {p.analysis} RUNS` may give it"
    if p.when == "trained"
    else f"; --set compute=[{p.analysis}] may give it"
    for p in PREDICTORS
}
MetricColumn = tuple[float | None, ...]  # a figure of each run, in the order of the runs


class MetricCorrelation(Spec):
    """Correlation of one metric with robust accuracy over the runs that have it."""

    figure: str
    attacks: bool  # takes an attack itself: near to what it predicts, and not cheap
    values: MetricColumn
    runs: int
    value: float  # Spearman's rank correlation
    low: float  # its 95% interval, not corrected
    high: float
    p: float  # by permutation
    p_holm: float  # corrected for all figures

    @property
    def is_significant(self) -> bool:
        """Whether the Holm-corrected p-value is below 0.05."""
        return self.p_holm < SIGNIFICANCE


class PredictionResult(Spec):
    """All correlations, the strongest first."""

    suite: str
    attack: str
    runs: tuple[str, ...]
    robust: tuple[float, ...]
    correlations: tuple[MetricCorrelation, ...]
    left_out: dict[str, str]  # figure -> why it has no correlation
    notes: tuple[str, ...]


def plot_predict(results: Mapping[str, PredictionResult], figure: Figure) -> None:
    """Plot each correlation with its interval; filled where significant after correction."""
    most = max(len(r.correlations) for r in results.values())
    figure.set_size_inches(8 * len(results), 1.8 + 0.36 * most)
    for axes, result in zip(
        figure.subplots(1, len(results), squeeze=False)[0], results.values(), strict=True
    ):
        _draw_correlations(result, axes)


def _draw_correlations(result: PredictionResult, axes: Axes) -> None:
    names = []
    for position, correlation in enumerate(result.correlations):
        color = "C3" if correlation.attacks else "C0"
        axes.plot(
            [correlation.low, correlation.high], [position, position], color=color, linewidth=1.5
        )
        fill = color if correlation.is_significant else "white"
        axes.plot(correlation.value, position, "o", color=color, markerfacecolor=fill)
        names.append(f"{correlation.figure} ({correlation.runs} runs)")
    axes.axvline(0, color="0.6", linewidth=1, zorder=0)
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.invert_yaxis()
    axes.set(xlim=(-1.05, 1.05))
    axes.set_xlabel(
        f"Spearman's correlation with {result.attack.replace('_', ' ')} accuracy "
        f"({result.suite})\nfilled: significant after Holm's correction; red: needs an attack "
        "itself",
        fontsize="small",
    )


def says_predict(result: PredictionResult) -> str:
    """Summarize the significant correlations and the notes."""
    real = [c for c in result.correlations if c.is_significant]
    named = "; ".join(
        f"{c.figure} {c.value:+.2f} (95%: {c.low:+.2f} to {c.high:+.2f}, p {c.p_holm:.2g})"
        for c in real
    )
    strongest = result.correlations[0]
    head = (
        f"Of {len(result.correlations)} metrics over {len(result.runs)} runs, {len(real)} "
        f"{'correlates' if len(real) == 1 else 'correlate'} significantly with "
        f"{result.attack.replace('_', ' ')} accuracy after Holm's correction"
    )
    tail = (
        f": {named}."
        if real
        else f"; the strongest, {strongest.figure}, has {strongest.value:+.2f} (95%: "
        f"{strongest.low:+.2f} to {strongest.high:+.2f}, corrected p {strongest.p_holm:.2g})."
    )
    return " ".join([head + tail, *(f"Note: {note}." for note in result.notes)])


def predict_cost(
    group: RunGroup, *, suite: str, attack: str, compute: tuple[str, ...]
) -> Iterator[tuple[AnalysisSubject, PassCount]]:
    """Cost of the analyses in ``compute`` for the runs that do not have them."""
    for score in group_scores(group, suite, attack).found:
        reader = MetricReader(score, _check_compute(compute), group.progress)
        yield reader.subject, reader.cost()


@ANALYSES.register(
    "predict",
    tags=("records",),
    result=PredictionResult,
    plot=plot_predict,
    cost=predict_cost,
    says=says_predict,
    together=True,
)
def predict(
    group: RunGroup,
    *,
    suite: str = "",
    attack: str = WORST,
    compute: tuple[str, ...] = ("sparsity",),
) -> PredictionResult:
    """Spearman correlation of cheap metrics with robust accuracy, over runs.

    Metrics come from analyses that are saved in the runs; those named in ``compute`` are computed
    where they are missing, also for the initial weights. Each p-value is by permutation and is
    corrected for all metrics (Holm): many metrics and few runs give strong correlations by chance.
    """
    scores = group_scores(group, suite, attack)
    columns, attacks = collect_metrics(scores, _check_compute(compute), group)
    robust = tuple(s.robust.value for s in scores.found)
    correlations, skipped = correlate(columns, robust, attacks)
    if not correlations:
        raise UserError(
            "no metric can be correlated with robust accuracy: "
            + "; ".join(f"{k}: {v}" for k, v in skipped.items())
        )
    return PredictionResult(
        suite=scores.suite,
        attack=attack,
        runs=tuple(s.label for s in scores.found),
        robust=robust,
        correlations=correlations,
        left_out=skipped,
        notes=(*scores.notes, *_recipe_note(scores)),
    )


def _check_compute(compute: Sequence[str]) -> tuple[str, ...]:
    """Return the registered names in ``compute``; raise for analyses without a metric."""
    available = list(dict.fromkeys(p.analysis for p in PREDICTORS))
    names = tuple(ANALYSES.entry(name).name for name in compute)
    if unknown := [name for name in names if name not in available]:
        raise UserError(
            f"`compute` must name analyses among {', '.join(available)}, but got {unknown[0]!r}"
        )
    return names


def collect_metrics(
    scores: GroupScores, compute: Sequence[str], group: RunGroup
) -> tuple[dict[str, MetricColumn], frozenset[str]]:
    """Map each metric to its value in each run; also which metrics need an attack."""
    rows: list[dict[str, float | None]] = []
    task = group.progress.add_task("predict", len(scores.found))
    for score in scores.found:
        reader = MetricReader(score, compute, group.progress)
        row: dict[str, float | None] = {CLEAN_ACCURACY: score.clean.value, **reader.model_sizes()}
        row |= {p.name: reader.value(p) for p in PREDICTORS}
        rows.append(row)
        task.advance(1, note=score.label)
    task.close()
    names = (CLEAN_ACCURACY, *SIZE_METRICS, *(p.name for p in PREDICTORS))
    columns = {name: tuple(row[name] for row in rows) for name in names}
    return columns, frozenset(p.name for p in PREDICTORS if p.attacks)


def correlate(
    columns: Mapping[str, MetricColumn],
    robust: Sequence[float],
    attacks: frozenset[str] = frozenset(),
) -> tuple[tuple[MetricCorrelation, ...], dict[str, str]]:
    """Correlation of each metric, strongest first, and why others have none."""
    skipped: dict[str, str] = {}
    pairs: dict[str, tuple[list[float], list[float]]] = {}
    for name, column in columns.items():
        x = [v for v in column if v is not None]
        y = [r for v, r in zip(column, robust, strict=True) if v is not None]
        if len(x) < MIN_RUNS:
            skipped[name] = f"{len(x)} of {len(robust)} runs have it, {MIN_RUNS} are needed"
            skipped[name] += HINTS.get(name, "")
        elif len(set(x)) == 1 or len(set(y)) == 1:
            skipped[name] = "it, or the accuracy, is the same in all runs"
        else:
            pairs[name] = x, y
    p_values = [spearman_p_value(*pair) for pair in pairs.values()]
    correlations = []
    for (name, (x, y)), p, corrected in zip(pairs.items(), p_values, holm(p_values), strict=True):
        estimate = spearman(x, y)
        correlations.append(
            MetricCorrelation(
                figure=name,
                attacks=name in attacks,
                values=tuple(columns[name]),
                runs=len(x),
                value=estimate.value,
                low=estimate.interval.low,
                high=estimate.interval.high,
                p=p,
                p_holm=corrected,
            )
        )
    return tuple(sorted(correlations, key=lambda c: -abs(c.value))), skipped


def _recipe_note(scores: GroupScores) -> tuple[str, ...]:
    """Note on runs of several recipes: a metric may follow the recipe."""
    specs = [s.run.spec for s in scores.found]
    kinds = sorted({s.recipe.name or s.recipe.objective.name for s in specs})
    if len(kinds) == 1:
        return ()
    return (
        f"the runs were trained in {len(kinds)} ways ({', '.join(kinds)}), so a metric may "
        "follow the recipe rather than robustness; compare runs of one recipe too",
    )
