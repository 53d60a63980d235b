"""Which cheap figures go with robustness over many runs, and which only seem to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from buttress.analysis.core import ANALYSES
from buttress.analysis.cost import Passes
from buttress.analysis.predictors import CLEAN, PREDICTORS, SIZES, Reader
from buttress.analysis.scores import WORST, Scores, scores_of
from buttress.analysis.subject import Group, Subject
from buttress.errors import UserError
from buttress.spec import Spec
from buttress.statistics import holm, spearman, spearman_p

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST = 4  # runs: under these an interval is everything
REAL = 0.05
HINTS = {
    p.name: f"; `buttress analyse {p.analysis} RUNS` may give it"
    if p.when == "trained"
    else f"; --set compute=[{p.analysis}] may give it"
    for p in PREDICTORS
}
Column = tuple[float | None, ...]  # a figure of each run, in the order of the runs


class Correlation(Spec):
    """How one figure goes with robust accuracy, over the runs that have it."""

    figure: str
    attacks: bool  # takes an attack itself: near to what it predicts, and not cheap
    values: Column
    runs: int
    value: float  # Spearman's rank correlation
    low: float  # its 95% interval, not corrected
    high: float
    p: float  # by permutation
    p_holm: float  # corrected for all figures

    @property
    def is_real(self) -> bool:
        """Whether it would be found in fewer than 5 of 100 families without any relation."""
        return self.p_holm < REAL


class Prediction(Spec):
    """All figures, the strongest first."""

    suite: str
    attack: str
    runs: tuple[str, ...]
    robust: tuple[float, ...]
    correlations: tuple[Correlation, ...]
    left_out: dict[str, str]  # figure -> why it has no correlation
    notes: tuple[str, ...]


def plot_predict(results: Mapping[str, Prediction], figure: Figure) -> None:
    """A dot and its interval per figure; filled where it holds after correction."""
    most = max(len(r.correlations) for r in results.values())
    figure.set_size_inches(8 * len(results), 1.8 + 0.36 * most)
    for axes, result in zip(
        figure.subplots(1, len(results), squeeze=False)[0], results.values(), strict=True
    ):
        _draw(result, axes)


def _draw(result: Prediction, axes: Axes) -> None:
    names = []
    for place, found in enumerate(result.correlations):
        colour = "C3" if found.attacks else "C0"
        axes.plot([found.low, found.high], [place, place], color=colour, linewidth=1.5)
        fill = colour if found.is_real else "white"
        axes.plot(found.value, place, "o", color=colour, markerfacecolor=fill)
        names.append(f"{found.figure} ({found.runs} runs)")
    axes.axvline(0, color="0.6", linewidth=1, zorder=0)
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.invert_yaxis()
    axes.set(xlim=(-1.05, 1.05))
    axes.set_xlabel(
        f"Spearman's correlation with {result.attack.replace('_', ' ')} accuracy ({result.suite})\n"
        "filled: real after Holm's correction; red: takes an attack itself",
        fontsize="small",
    )


def says_predict(result: Prediction) -> str:
    """What holds after the correction, and what few runs cannot show."""
    real = [c for c in result.correlations if c.is_real]
    named = "; ".join(
        f"{c.figure} {c.value:+.2f} (95%: {c.low:+.2f} to {c.high:+.2f}, p {c.p_holm:.2g})"
        for c in real
    )
    strongest = result.correlations[0]
    head = (
        f"Of {len(result.correlations)} figures over {len(result.runs)} runs, {len(real)} "
        f"{'goes' if len(real) == 1 else 'go'} with "
        f"{result.attack.replace('_', ' ')} accuracy after Holm's correction"
    )
    tail = (
        f": {named}."
        if real
        else f"; the strongest, {strongest.figure}, has {strongest.value:+.2f} (95%: "
        f"{strongest.low:+.2f} to {strongest.high:+.2f}, corrected p {strongest.p_holm:.2g})."
    )
    return " ".join([head + tail, *(f"Note: {note}." for note in result.notes)])


def cost_predict(
    group: Group, *, suite: str, attack: str, compute: tuple[str, ...]
) -> Iterator[tuple[Subject, Passes]]:
    """What the analyses named in ``compute`` take in runs that do not have them."""
    for score in scores_of(group, suite, attack).found:
        reader = Reader(score, _named(compute), group.progress)
        yield reader.subject, reader.cost()


@ANALYSES.register(
    "predict",
    tags=("records",),
    result=Prediction,
    plot=plot_predict,
    cost=cost_predict,
    says=says_predict,
    together=True,
)
def predict(
    group: Group,
    *,
    suite: str = "",
    attack: str = WORST,
    compute: tuple[str, ...] = ("sparsity",),
) -> Prediction:
    """Spearman's correlation of cheap figures with robust accuracy, over runs.

    Figures come from analyses that are saved in the runs; those named in ``compute`` are computed
    where they are missing, also for the weights that training began with. Each p-value is by
    permutation and is corrected for all figures (Holm): many figures and few runs make chance
    correlations that look strong.
    """
    scores = scores_of(group, suite, attack)
    columns, attacks = figures_of(scores, _named(compute), group)
    robust = tuple(s.robust.value for s in scores.found)
    found, left_out = correlate(columns, robust, attacks)
    if not found:
        raise UserError(
            "no figure has a correlation: " + "; ".join(f"{k}: {v}" for k, v in left_out.items())
        )
    return Prediction(
        suite=scores.suite,
        attack=attack,
        runs=tuple(s.label for s in scores.found),
        robust=robust,
        correlations=found,
        left_out=left_out,
        notes=(*scores.notes, *_mixture(scores)),
    )


def _named(compute: Sequence[str]) -> tuple[str, ...]:
    """The names of analyses as they are registered; one that gives no figure is an error."""
    useful = list(dict.fromkeys(p.analysis for p in PREDICTORS))
    names = tuple(ANALYSES.entry(name).name for name in compute)
    if useless := [name for name in names if name not in useful]:
        raise UserError(f"`compute` takes {', '.join(useful)}, but got {useless[0]!r}")
    return names


def figures_of(
    scores: Scores, compute: Sequence[str], group: Group
) -> tuple[dict[str, Column], frozenset[str]]:
    """Figure -> its value in each run, and which figures take an attack themselves."""
    rows: list[dict[str, float | None]] = []
    task = group.progress.task("predict", len(scores.found))
    for score in scores.found:
        reader = Reader(score, compute, group.progress)
        row: dict[str, float | None] = {CLEAN: score.clean.value, **reader.sizes()}
        row |= {p.name: reader.value(p) for p in PREDICTORS}
        rows.append(row)
        task.advance(1, note=score.label)
    task.close()
    names = (CLEAN, *SIZES, *(p.name for p in PREDICTORS))
    columns = {name: tuple(row[name] for row in rows) for name in names}
    return columns, frozenset(p.name for p in PREDICTORS if p.attacks)


def correlate(
    columns: Mapping[str, Column], robust: Sequence[float], attacks: frozenset[str] = frozenset()
) -> tuple[tuple[Correlation, ...], dict[str, str]]:
    """The correlation of each figure, strongest first, and why others have none."""
    left_out: dict[str, str] = {}
    pairs: dict[str, tuple[list[float], list[float]]] = {}
    for name, column in columns.items():
        x = [v for v in column if v is not None]
        y = [r for v, r in zip(column, robust, strict=True) if v is not None]
        if len(x) < FEWEST:
            left_out[name] = f"{len(x)} of {len(robust)} runs have it, {FEWEST} are needed"
            left_out[name] += HINTS.get(name, "")
        elif len(set(x)) == 1 or len(set(y)) == 1:
            left_out[name] = "it, or the accuracy, is the same in all runs"
        else:
            pairs[name] = x, y
    p_values = [spearman_p(*pair) for pair in pairs.values()]
    found = []
    for (name, (x, y)), p, corrected in zip(pairs.items(), p_values, holm(p_values), strict=True):
        estimate = spearman(x, y)
        found.append(
            Correlation(
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
    return tuple(sorted(found, key=lambda c: -abs(c.value))), left_out


def _mixture(scores: Scores) -> tuple[str, ...]:
    """Runs that were trained in different ways differ in everything at once."""
    specs = [s.run.spec for s in scores.found]
    kinds = sorted({s.recipe.name or s.recipe.objective.name for s in specs})
    if len(kinds) == 1:
        return ()
    return (
        f"the runs were trained in {len(kinds)} ways ({', '.join(kinds)}), so a figure may follow "
        "the training and not robustness; look at runs of one recipe too",
    )
