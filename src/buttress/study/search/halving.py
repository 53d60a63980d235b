"""Successive halving: many short trainings, then fewer and longer ones.

Jamieson and Talwalkar (arXiv:1502.07943). Departures from the paper: a candidate that chance could
put among the best stays as long as there are places; and each rung is a training of its own with
the whole schedule, where the paper goes on with the same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from buttress.records.search import Fate, Rung, Score
from buttress.statistics import Interval, over_seeds, wilson
from buttress.study.search.candidates import Candidate
from buttress.study.search.spec import Halving

# The score of each candidate after a rung, by its place; a text says why there is none.
Measure = Callable[[int, Sequence[int]], Mapping[int, Score | str]]


@dataclass
class State:
    """How far every candidate came, by its place in the field."""

    scores: dict[int, list[Score]]
    fates: dict[int, Fate]
    reasons: dict[int, str] = field(default_factory=dict)
    rungs: list[Rung] = field(default_factory=list)
    is_over: bool = False


@dataclass(frozen=True)
class Cut:
    """Who goes on, and who does not only because there is no place."""

    kept: tuple[int, ...]
    in_doubt: tuple[int, ...]
    dropped: tuple[int, ...]


def halve(
    candidates: Sequence[Candidate],
    halving: Halving,
    measure: Measure,
    told: Callable[[State], None] = lambda state: None,
) -> State:
    """Thins the candidates out rung by rung; ``told`` hears of each rung that is decided."""
    places = range(len(candidates))
    state = State({i: [] for i in places}, dict.fromkeys(places, "running"))
    left: Sequence[int] = list(places)
    told(state)
    for rung in range(halving.rungs):
        alive = _note(state, measure(rung, left))
        is_last = rung == halving.rungs - 1
        asked = len(alive) if is_last else asked_for(len(candidates), halving, rung)
        cut = cut_at(alive, asked, places_for(asked, halving))
        flops = sum(candidates[i].flops(halving.share(rung)) for i in left)
        state.rungs.append(
            Rung(share=halving.share(rung), candidates=len(left), asked=min(asked, len(alive)),
                 kept=len(cut.kept), in_doubt=len(cut.in_doubt), flops=flops)
        )  # fmt: skip
        state.fates |= dict.fromkeys(cut.in_doubt, "in doubt")
        state.fates |= dict.fromkeys(cut.dropped, "dropped")
        left = cut.kept
        if is_last or not left:
            state.fates |= judge_last({i: alive[i] for i in left})
            state.is_over = True
        told(state)
        if state.is_over:
            break
    return state


def _note(state: State, found: Mapping[int, Score | str]) -> dict[int, Score]:
    """Keeps what a rung gave; the scores of those that did not fail."""
    alive = {}
    for place, score in found.items():
        if isinstance(score, str):
            state.fates[place], state.reasons[place] = "failed", score
        else:
            state.scores[place].append(score)
            alive[place] = score
    return alive


def asked_for(candidates: int, halving: Halving, rung: int) -> int:
    """How many go on by rank after a rung: of all, so that doubts do not add up."""
    return max(1, math.ceil(candidates / halving.eta ** (rung + 1) - 1e-9))


def places_for(asked: int, halving: Halving) -> int:
    """How many may go on at most, with those in doubt."""
    return math.ceil(asked * halving.doubt - 1e-9)


def most_flops(candidates: Sequence[Candidate], halving: Halving) -> float:
    """What training takes if every place is needed, and by the costliest."""
    total, count = 0.0, len(candidates)
    for rung in range(halving.rungs):
        costs = sorted((c.flops(halving.share(rung)) for c in candidates), reverse=True)
        total += sum(costs[:count])
        count = min(count, places_for(asked_for(len(candidates), halving, rung), halving))
    return total


def cut_at(scores: Mapping[int, Score], asked: int, places: int) -> Cut:
    """The ``asked`` best, then those whose interval overlaps that of the last of them."""
    ranked = by_rank(scores)
    if len(ranked) <= asked:
        return Cut(tuple(ranked), (), ())
    edge = scores[ranked[asked - 1]].low
    rest = ranked[asked:]
    close = [i for i in rest if scores[i].high >= edge]
    room = places - asked
    return Cut(
        kept=(*ranked[:asked], *close[:room]),
        in_doubt=tuple(close[room:]),
        dropped=tuple(i for i in rest if scores[i].high < edge),
    )


def by_rank(scores: Mapping[int, Score]) -> list[int]:
    """From the most robust on; the clean accuracy tells equals apart, as in training."""
    return sorted(scores, key=lambda i: (-scores[i].value, -scores[i].clean, i))


def judge_last(scores: Mapping[int, Score]) -> dict[int, Fate]:
    """The word on each that was trained in full."""
    if not scores:
        return {}
    best, *rest = by_rank(scores)
    edge = scores[best].low
    return {best: "best", **{i: "close" if scores[i].high >= edge else "worse" for i in rest}}


def interval_of(shares: Sequence[float], images: int) -> Interval:
    """The 95% interval of a mean over seeds: chance in the images, and in seeds if several.

    Both are added as independent errors are. One seed says nothing about others.
    """
    mean = sum(shares) / len(shares)
    low, high = wilson(mean * images, images)
    if len(shares) > 1:
        half = mean - over_seeds(shares).interval.low
        low = max(0.0, mean - math.hypot(mean - low, half))
        high = min(1.0, mean + math.hypot(high - mean, half))
    return Interval(low, high)
