"""Result of a search: ranking, Pareto fronts, and a summary per axis label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from buttress.analysis.figures import Axes, Figure, save_figure
from buttress.results.study_result import (
    CANDIDATE_STATUSES,
    AxisValueResult,
    CandidateResult,
    RungResult,
    SearchFront,
    SearchResult,
)
from buttress.statistics import pareto
from buttress.studies.search.candidates import Candidate, CandidatePool
from buttress.studies.search.halving import HalvingState
from buttress.studies.search.spec import HalvingSpec, SearchBudget, SearchSpec
from buttress.studies.spec import Scale
from buttress.system.files import digest

CostMetric = Literal["parameters", "macs"]
COST_METRICS: tuple[CostMetric, ...] = ("parameters", "macs")
FULLY_TRAINED = ("best", "close", "worse")


@dataclass(frozen=True)
class SearchSettings:
    """A search with its scale, budget, halving and seed."""

    spec: SearchSpec
    scale: Scale
    budget: SearchBudget
    halving: HalvingSpec
    seed: int = 0

    @property
    def key(self) -> str:
        """Name with a hash of all settings that affect results."""
        parts = [self.spec.grid, self.budget.limits(), self.halving.model_dump(), self.seed]
        return f"{self.spec.name}-{self.scale}-{digest(parts)[:8]}"


def summarize_search(
    settings: SearchSettings, pool: CandidatePool, state: HalvingState
) -> SearchResult:
    """Result of a search, possibly unfinished."""
    candidates = [_candidate_result(c, state, index) for index, c in enumerate(pool.sampled)]
    ranking = tuple(sorted(candidates, key=_rank_key))
    spec = settings.spec
    return SearchResult(
        name=spec.name,
        scale=settings.scale,
        key=settings.key,
        title=spec.title or spec.name,
        question=spec.question,
        source=spec.source,
        description=spec.description,
        budget=settings.budget.limits(),
        seed=settings.seed,
        grid_size=pool.grid_size,
        in_budget=len(pool.in_budget),
        sampled=len(pool.sampled),
        rungs=tuple(state.rungs),
        candidates=ranking,
        axis_values=_axis_summaries(candidates),
        fronts=tuple(_pareto_front(ranking, price) for price in COST_METRICS),
        training_flops=sum(rung.training_flops for rung in state.rungs),
        full_training_flops=sum(candidate.flops(1.0) for candidate in pool.in_budget),
        failed_candidates={
            candidate_label(t): t.failure_reason for t in ranking if t.status == "failed"
        },
        notes=rung_warnings(candidates, state.rungs, pool.sampled[0].specs[0].num_classes),
        is_finished=state.is_finished,
    )


def rung_warnings(
    candidates: Sequence[CandidateResult], rungs: Sequence[RungResult], classes: int
) -> tuple[str, ...]:
    """Warnings about rungs whose candidates are not better than chance level."""
    warnings = []
    for number, rung in enumerate(rungs):
        scores = [t.scores[number] for t in candidates if len(t.scores) > number]
        ranked = sorted(scores, key=lambda score: -score.robust_accuracy)
        num_survivors = 1 if rung.epoch_fraction == 1 else rung.target_survivors
        if ranked and ranked[num_survivors - 1].low <= 1 / classes:
            how_many = (
                "no candidate" if num_survivors == 1 else f"fewer than {num_survivors} candidates"
            )
            warnings.append(
                f"rung {number + 1}: {how_many} significantly above chance level "
                f"({1 / classes:.0%}), so its ranking is mostly noise; "
                "train for more epochs or use fewer rungs"
            )
    return tuple(warnings)


def candidate_label(candidate: CandidateResult) -> str:
    """``d1 1, d2 3``, or the model where there is no axis."""
    return (
        ", ".join(f"{axis} {label}" for axis, label in candidate.labels.items()) or candidate.model
    )


def _candidate_result(candidate: Candidate, state: HalvingState, index: int) -> CandidateResult:
    return CandidateResult(
        labels=dict(candidate.labels), model=candidate.specs[0].model,
        parameters=candidate.cost.parameters, macs=candidate.cost.macs,
        scores=tuple(state.scores[index]), status=state.statuses[index],
        failure_reason=state.failure_reasons.get(index, ""),
    )  # fmt: skip


def _rank_key(candidate: CandidateResult) -> tuple[int, float, float, int]:
    """Rank by the last rung reached, then by accuracy."""
    if not candidate.scores:
        return (0, 0.0, 0.0, list(CANDIDATE_STATUSES).index(candidate.status))
    last = candidate.scores[-1]
    return (
        -len(candidate.scores),
        -last.robust_accuracy,
        -last.clean_accuracy,
        list(CANDIDATE_STATUSES).index(candidate.status),
    )


def _axis_summaries(ranking: Sequence[CandidateResult]) -> tuple[AxisValueResult, ...]:
    groups: dict[tuple[str, str], list[CandidateResult]] = {}
    for candidate in ranking:
        for axis_label in candidate.labels.items():
            groups.setdefault(axis_label, []).append(candidate)
    axes = list(ranking[0].labels) if ranking else []
    summaries = []
    for (axis, label), members in sorted(groups.items(), key=lambda g: axes.index(g[0][0])):
        first_scores = [t.scores[0].robust_accuracy for t in members if t.scores]
        summaries.append(
            AxisValueResult(
                axis=axis,
                label=label,
                candidates=len(members),
                first_rung_accuracy=sum(first_scores) / len(first_scores) if first_scores else None,
                fully_trained=sum(t.status in FULLY_TRAINED for t in members),
            )
        )
    return tuple(summaries)


def _pareto_front(ranking: Sequence[CandidateResult], price: CostMetric) -> SearchFront:
    """Pareto fronts of accuracy and cost, and candidates within chance of them."""
    trained = [i for i, candidate in enumerate(ranking) if candidate.status in FULLY_TRAINED]

    def points(end: str) -> list[pareto.ParetoPoint]:
        return [
            (getattr(ranking[i].scores[-1], end), -float(getattr(ranking[i], price)))
            for i in trained
        ]

    best = pareto.pareto_front(points("robust_accuracy"))
    ties = [i for i in pareto.possible_front(points("low"), points("high")) if i not in best]
    return SearchFront(
        cost_metric=price,
        ranks=tuple(trained[i] for i in best),
        ranks_within_interval=tuple(trained[i] for i in ties),
    )


AXIS_LABELS = {"parameters": "parameters", "macs": "multiply-accumulates per image"}


def save_search_plot(result: SearchResult, path: Path) -> None:
    """Write the figure; one color per rung, as accuracies of rungs are not comparable."""
    save_figure(plot_search, {result.name: result}, path)


def plot_search(results: Mapping[str, SearchResult], figure: Figure) -> None:
    panels = figure.subplots(len(results), 2, squeeze=False)
    for row, result in zip(panels, results.values(), strict=True):
        for axes, front in zip(row, result.fronts, strict=True):
            _plot_front(result, front, axes)
        row[0].set_ylabel("robust validation accuracy")
        row[0].legend(fontsize="small")


def _plot_front(result: SearchResult, front: SearchFront, axes: Axes) -> None:
    for number, rung in enumerate(result.rungs):
        candidates = [t for t in result.candidates if len(t.scores) == number + 1]
        is_last = number == len(result.rungs) - 1
        if not candidates:
            continue
        gray = 0.8 - 0.6 * number / len(result.rungs)
        axes.errorbar(
            [getattr(t, front.cost_metric) for t in candidates],
            [t.scores[-1].robust_accuracy for t in candidates],
            yerr=[
                [t.scores[-1].robust_accuracy - t.scores[-1].low for t in candidates],
                [t.scores[-1].high - t.scores[-1].robust_accuracy for t in candidates],
            ],
            fmt="o" if is_last else "x",
            color="C0" if is_last else f"{gray:.2f}",
            linewidth=1,
            capsize=2,
            label=_epochs_label(candidates, rung.epoch_fraction),
        )
    line = sorted((getattr(t, front.cost_metric), t.scores[-1].robust_accuracy)
                  for t in (result.candidates[i] for i in front.ranks))  # fmt: skip
    axes.plot([x for x, _ in line], [y for _, y in line], color="C0", linewidth=1, zorder=0)
    if (limit := result.budget.get(front.cost_metric)) is not None:
        axes.axvline(limit, color="C3", linewidth=1, linestyle="--")
    axes.set(xlabel=AXIS_LABELS[front.cost_metric], xscale="log")


def _epochs_label(candidates: list[CandidateResult], epoch_fraction: float) -> str:
    counts = sorted({t.scores[-1].epochs for t in candidates})
    epochs_text = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"trained {epochs_text} epochs" + (" (full)" if epoch_fraction == 1 else "")
