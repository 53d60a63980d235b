"""Candidates of a search: the combinations of its grid within the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from buttress.errors import UserError
from buttress.models.cost import FLOPS_PER_MAC, ModelCost
from buttress.results.run_spec import RunSpec
from buttress.studies.grid import GridRun, expand_study, labels_text
from buttress.studies.jobs import cached_facts
from buttress.studies.search.spec import HalvingSpec, SearchBudget, SearchSpec
from buttress.studies.spec import Scale
from buttress.system.rng import derive_seed
from buttress.training.cost import run_model_cost, training_passes
from buttress.training.schedules import scale_recipe_epochs


@dataclass(frozen=True)
class Candidate:
    """One combination of the grid: a run spec per training seed, and its cost."""

    labels: Mapping[str, str]
    specs: tuple[RunSpec, ...]
    cost: ModelCost

    def specs_for(self, epoch_fraction: float) -> tuple[RunSpec, ...]:
        """Run specs with a fraction of the recipe's epochs; with 1 as in a study."""
        return tuple(
            spec.model_copy(
                update={
                    "recipe": scale_recipe_epochs(spec.recipe, epochs_for(spec, epoch_fraction))
                }
            )
            for spec in self.specs
        )

    def flops(self, epoch_fraction: float) -> float:
        """FLOPs of training for a fraction of the epochs."""
        passes = (
            training_passes(spec, cached_facts(spec.dataset))
            for spec in self.specs_for(epoch_fraction)
        )
        return sum(FLOPS_PER_MAC * p.macs(self.cost.macs) for p in passes)


def epochs_for(spec: RunSpec, epoch_fraction: float) -> int:
    return max(1, round(spec.recipe.epochs * epoch_fraction))


@dataclass(frozen=True)
class CandidatePool:
    """Sampled candidates, those within the budget, and the size of the grid."""

    sampled: tuple[Candidate, ...]
    in_budget: tuple[Candidate, ...]
    grid_size: int


def build_candidates(
    search: SearchSpec, scale: Scale, budget: SearchBudget, halving: HalvingSpec, seed: int
) -> CandidatePool:
    """All combinations within the budget, or a sample of them drawn with ``seed``.

    Training seeds are those of the file, each plus ``seed``. A wrong name or key, and a recipe
    that cannot be searched with, are found here.
    """
    runs_by_labels: dict[tuple[str, ...], list[GridRun]] = {}
    for run in expand_study(search, scale).runs:
        runs_by_labels.setdefault(tuple(run.labels.values()), []).append(run)
    if not runs_by_labels:
        raise UserError(
            f"{search.display_name}: the grid has no runs; set `model` in `base` or in an axis"
        )
    candidates = [_make_candidate(runs, seed) for runs in runs_by_labels.values()]
    check_recipes(candidates, halving, search.display_name)
    in_budget = [candidate for candidate in candidates if budget.allows(candidate.cost)]
    if not in_budget:
        smallest = {
            name: min(getattr(c.cost, name) for c in candidates) for name in budget.limits()
        }
        limits = ", ".join(f"{name} <= {value:g}" for name, value in budget.limits().items())
        raise UserError(
            f"{search.display_name}: none of the {len(candidates)} models fits the budget "
            f"({limits}); the smallest values are "
            f"{', '.join(f'{name} {value:,}' for name, value in smallest.items())}"
        )
    sampled = in_budget
    if halving.max_candidates is not None and halving.max_candidates < len(in_budget):
        draw_keys = {
            id(c): derive_seed(seed, "candidate", labels_text(c.labels)) for c in in_budget
        }
        sampled_ids = {
            id(c)
            for c in sorted(in_budget, key=lambda c: draw_keys[id(c)])[: halving.max_candidates]
        }
        sampled = [c for c in in_budget if id(c) in sampled_ids]
    return CandidatePool(tuple(sampled), tuple(in_budget), len(candidates))


def _make_candidate(runs: Sequence[GridRun], seed: int) -> Candidate:
    specs = tuple(r.spec.model_copy(update={"seed": r.spec.seed + seed}) for r in runs)
    if any(run.init_key is not None for run in runs):
        where = labels_text(runs[0].labels)
        raise UserError(f"{where}: `init_from` is not supported in a search")
    return Candidate(dict(runs[0].labels), specs, run_model_cost(specs[0]))


def check_recipes(candidates: Sequence[Candidate], halving: HalvingSpec, source: str) -> None:
    """Raise unless robust validation accuracy is defined and comparable at every rung."""
    validation_settings = set()
    for spec in (spec for candidate in candidates for spec in candidate.specs):
        recipe, name = spec.recipe, f"{source}: recipe {spec.recipe.name or 'without a name'}"
        if recipe.threat is None:
            raise UserError(
                f"{name} has no threat model, so robust accuracy is undefined; set threat, e.g. "
                "threat=Linf:8/255"
            )
        if recipe.select_on == "test":
            raise UserError(f"{name} selects on test images (select_on: test); set select_on=val")
        epochs = [epochs_for(spec, halving.epoch_fraction(rung)) for rung in range(halving.rungs)]
        if len(set(epochs)) < len(epochs):
            raise UserError(
                f"{name}: each rung must train longer than the one before, but "
                f"{halving.rungs} rungs of {recipe.epochs} epochs would train {epochs} "
                "epochs; use fewer rungs, a smaller eta or more epochs"
            )
        limit, attack = recipe.validation.limit, recipe.validation.attack.model_dump_json()
        validation_settings.add((spec.dataset, recipe.threat, attack, limit))
    if len(validation_settings) > 1:
        raise UserError(
            f"{source}: all candidates must be validated on the same images under the same attack "
            f"and threat model, but got {len(validation_settings)} different settings"
        )
