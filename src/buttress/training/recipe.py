"""Named training configurations: YAML files in ``recipes/``, or a user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from buttress.attacks.core import ATTACKS
from buttress.config import PresetFolder, apply_overrides
from buttress.errors import UserError
from buttress.results.run_spec import Recipe
from buttress.training.objectives import OBJECTIVES

RECIPES = PresetFolder("recipe", "buttress.training", "recipes")


def list_recipes() -> list[str]:
    return RECIPES.names()


def load_recipe(name: str | Path | Recipe, overrides: tuple[str, ...] = ()) -> Recipe:
    """Load and validate a recipe by name or from a YAML file, with ``key=value`` overrides."""
    if isinstance(name, Recipe):
        raw: dict[str, Any] = name.model_dump(mode="json")
        origin = f"recipe {name.name or 'given'}"
    else:
        origin, raw = RECIPES.load(name)
        if not isinstance(raw, dict):
            raise UserError(f"{origin}: a recipe must be a mapping, but got {type(raw).__name__}")
    recipe = Recipe.parse(apply_overrides(raw, overrides), origin)
    _check_recipe(recipe, origin)
    return recipe


def _check_recipe(recipe: Recipe, origin: str) -> None:
    """Validate names and arguments of a recipe before anything starts."""
    objective = OBJECTIVES.create(recipe.objective.name, recipe.objective.args)
    ATTACKS.create(recipe.validation.attack.name, recipe.validation.attack.args)
    if objective.needs_threat and recipe.threat is None:
        raise UserError(
            f"{origin}: objective {recipe.objective.name!r} needs a threat model, for example "
            "threat: Linf:8/255"
        )
