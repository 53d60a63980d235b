"""Rank correlation of cheap metrics with robust accuracy over many runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from buttress.analysis.core import ANALYSES, AnalysisResult, Predictor
from buttress.analysis.figures import Axes, Figure
from buttress.analysis.group import GroupScores, group_scores
from buttress.analysis.methods.predictors import CLEAN_ACCURACY, SIZE_METRICS, MetricReader
from buttress.analysis.subject import AnalysisSubject, RunGroup
from buttress.analysis.uncertainty import OWN_INTERVAL
from buttress.config import Spec
from buttress.errors import UserError
from buttress.models.cost import PassCount
from buttress.results.core import WORST_CASE
from buttress.statistics import holm, spearman, spearman_p_value
from buttress.system.progress import track

MIN_RUNS = 4  # runs: with fewer an interval is uninformative
SIGNIFICANCE = 0.05
MetricColumn = tuple[float | None, ...]  # a metric of each run, in the order of the runs


class MetricCorrelation(Spec):
    """Correlation of one metric with robust accuracy over the runs that have it."""

    metric: str
    uses_attack: bool  # takes an attack itself: near to what it predicts, and not cheap
    values: MetricColumn
    runs: int
    value: float  # Spearman's rank correlation
    low: float  # its 95% interval, not corrected
    high: float
    p: float  # by permutation
    p_holm: float  # corrected for all metrics

    @property
    def is_significant(self) -> bool:
        """Whether the Holm-corrected p-value is below 0.05."""
        return self.p_holm < SIGNIFICANCE


class PredictionResult(AnalysisResult):
    """All correlations, the strongest first."""

    suite: str
    attack: str
    runs: tuple[str, ...]
    robust_accuracy: tuple[float, ...]
    correlations: tuple[MetricCorrelation, ...]
    skipped: dict[str, str]  # metric -> why it has no correlation
    notes: tuple[str, ...]

    @staticmethod
    def plot(results: Mapping[str, PredictionResult], figure: Figure) -> None:
        """Plot each correlation with its interval; filled where significant after correction."""
        most = max(len(r.correlations) for r in results.values())
        figure.set_size_inches(8 * len(results), 1.8 + 0.36 * most)
        for axes, result in zip(
            figure.subplots(1, len(results), squeeze=False)[0], results.values(), strict=True
        ):
            _draw_correlations(result, axes)

    def summary(self) -> str:
        """Summarize the significant correlations and the notes."""
        real = [c for c in self.correlations if c.is_significant]
        significant = "; ".join(
            f"{c.metric} {c.value:+.2f} (95%: {c.low:+.2f} to {c.high:+.2f}, p {c.p_holm:.2g})"
            for c in real
        )
        strongest = self.correlations[0]
        head = (
            f"Of {len(self.correlations)} metrics over {len(self.runs)} runs, {len(real)} "
            f"{'correlates' if len(real) == 1 else 'correlate'} significantly with "
            f"{self.attack.replace('_', ' ')} accuracy after Holm's correction"
        )
        tail = (
            f": {significant}."
            if real
            else f"; the strongest, {strongest.metric}, has {strongest.value:+.2f} (95%: "
            f"{strongest.low:+.2f} to {strongest.high:+.2f}, corrected p {strongest.p_holm:.2g})."
        )
        return " ".join([head + tail, *(f"Note: {note}." for note in self.notes)])


def _draw_correlations(result: PredictionResult, axes: Axes) -> None:
    names = []
    for position, correlation in enumerate(result.correlations):
        color = "C3" if correlation.uses_attack else "C0"
        axes.plot(
            [correlation.low, correlation.high], [position, position], color=color, linewidth=1.5
        )
        fill = color if correlation.is_significant else "white"
        axes.plot(correlation.value, position, "o", color=color, markerfacecolor=fill)
        names.append(f"{correlation.metric} ({correlation.runs} runs)")
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


def predict_cost(
    group: RunGroup, *, suite: str, attack: str, compute: tuple[str, ...]
) -> Iterator[tuple[AnalysisSubject, PassCount]]:
    """Cost of the analyses in ``compute`` for the runs that do not have them."""
    for score in group_scores(group, suite, attack).runs:
        reader = MetricReader(score, _check_compute(compute), group.progress)
        yield reader.subject, reader.cost()


@ANALYSES.register(
    "predict",
    tags=("records",),
    cost=predict_cost,
    uncertainty=(OWN_INTERVAL,),
    subject="group",
    reads_records=True,
)
def predict(
    group: RunGroup,
    *,
    suite: str = "",
    attack: str = WORST_CASE,
    compute: tuple[str, ...] = ("sparsity",),
) -> PredictionResult:
    """Spearman correlation of cheap metrics with robust accuracy, over runs.

    Metrics come from analyses that are saved in the runs; those named in ``compute`` are computed
    where they are missing, also for the initial weights. Each p-value is by permutation and is
    corrected for all metrics (Holm): many metrics and few runs give strong correlations by chance.
    """
    scores = group_scores(group, suite, attack)
    predictors = {p.name: p for p in ANALYSES.predictors()}
    columns = collect_metrics(scores, _check_compute(compute), predictors, group)
    robust = tuple(s.robust_accuracy.value for s in scores.runs)
    correlations, skipped = correlate(columns, robust, predictors)
    if not correlations:
        raise UserError(
            "no metric can be correlated with robust accuracy: "
            + "; ".join(f"{k}: {v}" for k, v in skipped.items())
        )
    return PredictionResult(
        suite=scores.suite,
        attack=attack,
        runs=tuple(s.label for s in scores.runs),
        robust_accuracy=robust,
        correlations=correlations,
        skipped=skipped,
        notes=(*scores.notes, *_recipe_note(scores)),
    )


def _check_compute(compute: Sequence[str]) -> tuple[str, ...]:
    """Return the registered names in ``compute``; raise for analyses without a metric."""
    available = list(dict.fromkeys(p.analysis for p in ANALYSES.predictors()))
    names = tuple(ANALYSES.entry(name).name for name in compute)
    if unknown := [name for name in names if name not in available]:
        raise UserError(
            f"`compute` must name analyses among {', '.join(available)}, but got {unknown[0]!r}"
        )
    return names


def collect_metrics(
    scores: GroupScores,
    compute: Sequence[str],
    predictors: Mapping[str, Predictor],
    group: RunGroup,
) -> dict[str, MetricColumn]:
    """Map each metric to its value in each run."""
    rows: list[dict[str, float | None]] = []
    for score in track(group.progress, "predict", scores.runs, lambda score: score.label):
        reader = MetricReader(score, compute, group.progress)
        row: dict[str, float | None] = {CLEAN_ACCURACY: score.clean_accuracy.value}
        row |= {**reader.model_sizes(), **{p.name: reader.value(p) for p in predictors.values()}}
        rows.append(row)
    names = (CLEAN_ACCURACY, *SIZE_METRICS, *predictors)
    return {name: tuple(row[name] for row in rows) for name in names}


def correlate(
    columns: Mapping[str, MetricColumn],
    robust: Sequence[float],
    predictors: Mapping[str, Predictor],
) -> tuple[tuple[MetricCorrelation, ...], dict[str, str]]:
    """Correlation of each metric, strongest first, and why others have none."""
    skipped: dict[str, str] = {}
    pairs: dict[str, tuple[list[float], list[float]]] = {}
    for name, column in columns.items():
        x = [v for v in column if v is not None]
        y = [r for v, r in zip(column, robust, strict=True) if v is not None]
        if len(x) < MIN_RUNS:
            skipped[name] = f"{len(x)} of {len(robust)} runs have it, {MIN_RUNS} are needed"
            skipped[name] += _hint(predictors.get(name))
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
                metric=name,
                uses_attack=name in predictors and predictors[name].uses_attack,
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


def _hint(metric: Predictor | None) -> str:
    """How to get a metric that is missing in some runs."""
    if metric is None:
        return ""
    if metric.is_initial:
        return f"; --set compute=[{metric.analysis}] may give it"
    return f"; `buttress analyze {metric.analysis} RUNS` may give it"


def _recipe_note(scores: GroupScores) -> tuple[str, ...]:
    """Note on runs of several recipes: a metric may follow the recipe."""
    specs = [s.run.spec for s in scores.runs]
    kinds = sorted({s.recipe.name or s.recipe.objective.name for s in specs})
    if len(kinds) == 1:
        return ()
    return (
        f"the runs were trained in {len(kinds)} ways ({', '.join(kinds)}), so a metric may "
        "follow the recipe rather than robustness; compare runs of one recipe too",
    )
