"""From the state of a search to its record: ranking, fronts, and what each option was worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from buttress.analysis import pareto
from buttress.records.search import FATES, Front, Option, Rung, Search, Tried
from buttress.spec import digest
from buttress.study.scales import Scale
from buttress.study.search.candidates import Candidate, Entrants
from buttress.study.search.halving import State
from buttress.study.search.spec import Budget, Halving, SearchSpec

Price = Literal["parameters", "macs"]
PRICES: tuple[Price, ...] = ("parameters", "macs")
IN_FULL = ("best", "close", "worse")


@dataclass(frozen=True)
class Asked:
    """A search with all that was chosen for it."""

    spec: SearchSpec
    scale: Scale
    budget: Budget
    halving: Halving
    seed: int = 0

    @property
    def key(self) -> str:
        """Its name with a hash of what may change a number: another budget is another search."""
        parts = [self.spec.grid, self.budget.given(), self.halving.model_dump(), self.seed]
        return f"{self.spec.name}-{self.scale}-{digest(parts)[:8]}"


def summarise(asked: Asked, entrants: Entrants, state: State) -> Search:
    """The record of a search as far as it is."""
    tried = [_tried(c, state, place) for place, c in enumerate(entrants.drawn)]
    ranking = tuple(sorted(tried, key=_rank))
    spec = asked.spec
    return Search(
        search=spec.name, scale=asked.scale, key=asked.key, title=spec.title or spec.name,
        question=spec.question, source=spec.source, about=spec.about,
        budget=asked.budget.given(), seed=asked.seed,
        grid=entrants.grid, in_budget=len(entrants.in_budget), drawn=len(entrants.drawn),
        rungs=tuple(state.rungs), ranking=ranking, options=_options(tried),
        fronts=tuple(_front(ranking, price) for price in PRICES),
        flops=sum(rung.flops for rung in state.rungs),
        flops_of_all=sum(candidate.flops(1.0) for candidate in entrants.in_budget),
        failed={describe_run(t): t.reason for t in ranking if t.fate == "failed"},
        notes=notes_of(tried, state.rungs, entrants.drawn[0].specs[0].num_classes),
        is_over=state.is_over,
    )  # fmt: skip


def notes_of(tried: Sequence[Tried], rungs: Sequence[Rung], classes: int) -> tuple[str, ...]:
    """Rungs that had not learnt enough to be cut: who went on was chance."""
    found = []
    for number, rung in enumerate(rungs):
        here = [t.scores[number] for t in tried if len(t.scores) > number]
        ranked = sorted(here, key=lambda score: -score.value)
        edge = 1 if rung.share == 1 else rung.asked  # after the last rung nobody is cut
        if ranked and ranked[edge - 1].low <= 1 / classes:
            who = "nobody" if edge == 1 else f"fewer than {edge}"
            found.append(
                f"after rung {number + 1} {who} did better than guessing ({1 / classes:.0%}), so "
                "that its ranking is mostly chance; give it more epochs, or use fewer rungs"
            )
    return tuple(found)


def describe_run(tried: Tried) -> str:
    """``d1 1, d2 3``, or the model where there is no axis."""
    return ", ".join(f"{axis} {label}" for axis, label in tried.labels.items()) or tried.model


def _tried(candidate: Candidate, state: State, place: int) -> Tried:
    return Tried(
        labels=dict(candidate.labels), model=candidate.specs[0].model,
        parameters=candidate.cost.parameters, macs=candidate.cost.macs,
        scores=tuple(state.scores[place]), fate=state.fates[place],
        reason=state.reasons.get(place, ""),
    )  # fmt: skip


def _rank(tried: Tried) -> tuple[int, float, float, int]:
    """By the last rung reached, since accuracy after other lengths of training says nothing."""
    if not tried.scores:
        return (0, 0.0, 0.0, list(FATES).index(tried.fate))
    last = tried.scores[-1]
    return (-len(tried.scores), -last.value, -last.clean, list(FATES).index(tried.fate))


def _options(ranking: Sequence[Tried]) -> tuple[Option, ...]:
    groups: dict[tuple[str, str], list[Tried]] = {}
    for tried in ranking:
        for place in tried.labels.items():
            groups.setdefault(place, []).append(tried)
    axes = list(ranking[0].labels) if ranking else []
    found = []
    for (axis, label), members in sorted(groups.items(), key=lambda g: axes.index(g[0][0])):
        first = [t.scores[0].value for t in members if t.scores]
        found.append(
            Option(axis=axis, label=label, candidates=len(members),
                   first=sum(first) / len(first) if first else None,
                   in_full=sum(t.fate in IN_FULL for t in members))
        )  # fmt: skip
    return tuple(found)


def _front(ranking: Sequence[Tried], price: Price) -> Front:
    """Who no other beats in accuracy and price; the intervals say who else could be."""
    full = [i for i, tried in enumerate(ranking) if tried.fate in IN_FULL]

    def places(end: str) -> list[pareto.Place]:
        return [
            (getattr(ranking[i].scores[-1], end), -float(getattr(ranking[i], price))) for i in full
        ]

    best = pareto.front(places("value"))
    close = [i for i in pareto.contenders(places("low"), places("high")) if i not in best]
    return Front(
        price=price,
        best=tuple(full[i] for i in best),
        within_chance=tuple(full[i] for i in close),
    )
