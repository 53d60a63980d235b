"""Who takes part in a search: the combinations of its grid that fit the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from buttress.errors import UserError
from buttress.models.cost import Cost
from buttress.records.spec import RunSpec
from buttress.streams import seed_of
from buttress.study.cells import Cell, cells_of, describe
from buttress.study.scales import Scale
from buttress.study.search.spec import Budget, Halving, SearchSpec
from buttress.study.tasks import network_cost, training_of
from buttress.training.shorten import shortened


@dataclass(frozen=True)
class Candidate:
    """One combination of the grid: what it is, for each training seed, and what it costs."""

    labels: Mapping[str, str]
    specs: tuple[RunSpec, ...]
    cost: Cost

    def at(self, share: float) -> tuple[RunSpec, ...]:
        """Its runs at a part of the recipe's epochs; at 1 they are those of any study."""
        return tuple(
            spec.model_copy(update={"recipe": shortened(spec.recipe, epochs_at(spec, share))})
            for spec in self.specs
        )

    def flops(self, share: float) -> float:
        """What training takes at a part of the epochs."""
        tasks = [training_of(spec, Path()) for spec in self.at(share)]
        return sum(2 * task.macs(self.cost.macs) for task in tasks)


def epochs_at(spec: RunSpec, share: float) -> int:
    return max(1, round(spec.recipe.epochs * share))


@dataclass(frozen=True)
class Entrants:
    """The candidates of a search, and how many there were before."""

    drawn: tuple[Candidate, ...]
    in_budget: tuple[Candidate, ...]
    grid: int


def entrants_of(
    search: SearchSpec, scale: Scale, budget: Budget, halving: Halving, seed: int
) -> Entrants:
    """Every combination in the budget, or as many as may take part, drawn by ``seed``.

    Training seeds are those of the file, each plus ``seed``. A wrong name or key, and a recipe
    that cannot be searched with, are found here.
    """
    by_place: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells_of(search, scale):
        by_place.setdefault(tuple(cell.labels.values()), []).append(cell)
    if not by_place:
        raise UserError(f"{search.called}: its grid has no runs; a base or an axis names a model")
    everyone = [_candidate(cells, seed) for cells in by_place.values()]
    check_recipes(everyone, halving, search.called)
    inside = [candidate for candidate in everyone if budget.holds(candidate.cost)]
    if not inside:
        least = {name: min(getattr(c.cost, name) for c in everyone) for name in budget.given()}
        words = ", ".join(f"{name} <= {value:g}" for name, value in budget.given().items())
        raise UserError(
            f"{search.called}: none of {len(everyone)} networks has {words}; the smallest values "
            f"are {', '.join(f'{name} {value:,}' for name, value in least.items())}"
        )
    drawn = inside
    if halving.candidates is not None and halving.candidates < len(inside):
        lots = {id(c): seed_of(seed, "candidate", describe(c.labels)) for c in inside}
        chosen = {id(c) for c in sorted(inside, key=lambda c: lots[id(c)])[: halving.candidates]}
        drawn = [c for c in inside if id(c) in chosen]
    return Entrants(tuple(drawn), tuple(inside), len(everyone))


def _candidate(cells: Sequence[Cell], seed: int) -> Candidate:
    specs = tuple(c.spec.model_copy(update={"seed": c.spec.seed + seed}) for c in cells)
    if any(cell.source is not None for cell in cells):
        where = describe(cells[0].labels)
        raise UserError(f"{where}: a candidate of a search begins with fresh weights, not `start`")
    return Candidate(dict(cells[0].labels), specs, network_cost(specs[0]))


def check_recipes(candidates: Sequence[Candidate], halving: Halving, where: str) -> None:
    """Robust validation accuracy must be there, be comparable, and have rungs to be taken at."""
    exams = set()
    for spec in (spec for candidate in candidates for spec in candidate.specs):
        recipe, name = spec.recipe, f"{where}: recipe {spec.recipe.name or 'without a name'}"
        if recipe.threat is None:
            raise UserError(f"{name} has no threat, so that there is no robust accuracy")
        if recipe.select_on == "test":
            raise UserError(f"{name} chooses on test images (select_on: test); set select_on=val")
        epochs = [epochs_at(spec, halving.share(rung)) for rung in range(halving.rungs)]
        if len(set(epochs)) < len(epochs):
            raise UserError(
                f"{name}: {halving.rungs} rungs of {recipe.epochs} epochs would train {epochs} "
                "epochs; use fewer rungs, a smaller eta or more epochs"
            )
        limit, attack = recipe.validation.limit, recipe.validation.attack.model_dump_json()
        exams.add((spec.dataset, recipe.threat, attack, limit))
    if len(exams) > 1:
        raise UserError(
            f"{where}: all candidates must be validated on the same images under the same attack "
            f"and threat, but there are {len(exams)} ways"
        )
