"""Successive halving: train many candidates briefly, then fewer for longer.

Jamieson and Talwalkar (arXiv:1502.07943). Departures from the paper: a candidate that chance could
put among the best stays as long as there are places; and each rung is a training of its own with
the whole schedule, where the paper continues the same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from buttress.results.study_result import CandidateStatus, RungResult, RungScore
from buttress.statistics import Interval, summarize_seeds, wilson_interval
from buttress.studies.search.candidates import Candidate
from buttress.studies.search.spec import HalvingSpec

# Score of each candidate after a rung, by its index; an error message if it failed.
ScoreRung = Callable[[int, Sequence[int]], Mapping[int, RungScore | str]]


@dataclass
class HalvingState:
    """State of every candidate, by its index."""

    scores: dict[int, list[RungScore]]
    statuses: dict[int, CandidateStatus]
    failure_reasons: dict[int, str] = field(default_factory=dict)
    rungs: list[RungResult] = field(default_factory=list)
    is_finished: bool = False


@dataclass(frozen=True)
class RungDecision:
    """Candidates that are kept, and pruned ones whose interval overlaps."""

    kept: tuple[int, ...]
    pruned_ties: tuple[int, ...]
    pruned: tuple[int, ...]


def successive_halving(
    candidates: Sequence[Candidate],
    halving: HalvingSpec,
    score_rung: ScoreRung,
    on_rung: Callable[[HalvingState], None] = lambda state: None,
) -> HalvingState:
    """Prune the candidates rung by rung; ``on_rung`` is called after each rung."""
    indices = range(len(candidates))
    state = HalvingState({i: [] for i in indices}, dict.fromkeys(indices, "running"))
    remaining: Sequence[int] = list(indices)
    on_rung(state)
    for rung in range(halving.rungs):
        scores = _record_scores(state, score_rung(rung, remaining))
        is_last = rung == halving.rungs - 1
        num_kept = len(scores) if is_last else keep_count(len(candidates), halving, rung)
        decision = prune(scores, num_kept, max_keep(num_kept, halving))
        flops = sum(candidates[i].flops(halving.epoch_fraction(rung)) for i in remaining)
        state.rungs.append(
            RungResult(
                epoch_fraction=halving.epoch_fraction(rung),
                candidates=len(remaining),
                target_survivors=min(num_kept, len(scores)),
                survivors=len(decision.kept),
                pruned_within_interval=len(decision.pruned_ties),
                training_flops=flops,
            )
        )
        state.statuses |= dict.fromkeys(decision.pruned_ties, "pruned, tied")
        state.statuses |= dict.fromkeys(decision.pruned, "pruned")
        remaining = decision.kept
        if is_last or not remaining:
            state.statuses |= final_outcomes({i: scores[i] for i in remaining})
            state.is_finished = True
        on_rung(state)
        if state.is_finished:
            break
    return state


def _record_scores(
    state: HalvingState, results: Mapping[int, RungScore | str]
) -> dict[int, RungScore]:
    """Record the scores of a rung; return those that did not fail."""
    scores = {}
    for index, score in results.items():
        if isinstance(score, str):
            state.statuses[index], state.failure_reasons[index] = "failed", score
        else:
            state.scores[index].append(score)
            scores[index] = score
    return scores


def keep_count(candidates: int, halving: HalvingSpec, rung: int) -> int:
    """Number of candidates to keep by rank after a rung."""
    return max(1, math.ceil(candidates / halving.eta ** (rung + 1) - 1e-9))


def max_keep(num_kept: int, halving: HalvingSpec) -> int:
    """Maximum number to keep, including those with overlapping intervals."""
    return math.ceil(num_kept * halving.tie_factor - 1e-9)


def max_flops(candidates: Sequence[Candidate], halving: HalvingSpec) -> float:
    """Upper bound of the FLOPs of training."""
    total, count = 0.0, len(candidates)
    for rung in range(halving.rungs):
        costs = sorted((c.flops(halving.epoch_fraction(rung)) for c in candidates), reverse=True)
        total += sum(costs[:count])
        count = min(count, max_keep(keep_count(len(candidates), halving, rung), halving))
    return total


def prune(scores: Mapping[int, RungScore], num_kept: int, max_keep: int) -> RungDecision:
    """The ``num_kept`` best, then those whose interval overlaps that of the last of them."""
    ranked = rank_by_score(scores)
    if len(ranked) <= num_kept:
        return RungDecision(tuple(ranked), (), ())
    cutoff = scores[ranked[num_kept - 1]].low
    below = ranked[num_kept:]
    ties = [i for i in below if scores[i].high >= cutoff]
    tie_slots = max_keep - num_kept
    return RungDecision(
        kept=(*ranked[:num_kept], *ties[:tie_slots]),
        pruned_ties=tuple(ties[tie_slots:]),
        pruned=tuple(i for i in below if scores[i].high < cutoff),
    )


def rank_by_score(scores: Mapping[int, RungScore]) -> list[int]:
    """Sort by robust accuracy, then by clean accuracy, as in training."""
    return sorted(scores, key=lambda i: (-scores[i].robust_accuracy, -scores[i].clean_accuracy, i))


def final_outcomes(scores: Mapping[int, RungScore]) -> dict[int, CandidateStatus]:
    """Status of each fully trained candidate."""
    if not scores:
        return {}
    best, *rest = rank_by_score(scores)
    cutoff = scores[best].low
    return {best: "best", **{i: "close" if scores[i].high >= cutoff else "worse" for i in rest}}


def score_interval(accuracies: Sequence[float], images: int) -> Interval:
    """The 95% interval of a mean over seeds, over images and, if several, seeds.

    Both are added as independent errors are. One seed says nothing about others.
    """
    mean = sum(accuracies) / len(accuracies)
    low, high = wilson_interval(mean * images, images)
    if len(accuracies) > 1:
        half = mean - summarize_seeds(accuracies).interval.low
        low = max(0.0, mean - math.hypot(mean - low, half))
        high = min(1.0, mean + math.hypot(high - mean, half))
    return Interval(low, high)
