"""Named training configurations: YAML files in ``recipes/``, or a user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from buttress.attacks.core import ATTACKS
from buttress.config import RECIPES, apply_overrides
from buttress.errors import UserError
from buttress.results.run_spec import Recipe
from buttress.training.objectives import OBJECTIVES


def list_recipes() -> list[str]:
    return RECIPES.names()


def load_recipe(name: str | Path | Recipe, overrides: tuple[str, ...] = ()) -> Recipe:
    """Load and validate a recipe by name or from a YAML file, with ``key=value`` overrides.

    ``NAME:VARIANT`` is a variant that the file of a bundled recipe names, such as ``thesis``.
    """
    if isinstance(name, Recipe):
        raw: dict[str, Any] = name.model_dump(mode="json")
        origin = f"recipe {name.name or 'given'}"
    else:
        base, variant = split_variant(name)
        origin, raw = RECIPES.load(base)
        if not isinstance(raw, dict):
            raise UserError(f"{origin}: a recipe must be a mapping, but got {type(raw).__name__}")
        variants = raw.pop("variants", {})
        if variant:
            if variant not in variants:
                known = ", ".join(variants) or "none"
                raise UserError(f"{origin} has no variant {variant!r}; its variants: {known}")
            overrides = (f"name={name}", *variants[variant], *overrides)
    recipe = Recipe.parse(apply_overrides(raw, overrides), origin)
    _check_recipe(recipe, origin)
    return recipe


def split_variant(name: str | Path) -> tuple[str | Path, str]:
    """``NAME:VARIANT`` in two; a path, or a name without a colon, has no variant."""
    base, colon, variant = str(name).rpartition(":")
    is_bundled = colon and not isinstance(name, Path) and base in list_recipes()
    return (base, variant) if is_bundled else (name, "")


def recipe_variants(name: str) -> tuple[str, ...]:
    """The variants of a bundled recipe."""
    raw = RECIPES.load(name)[1] if name in list_recipes() else {}
    return tuple(raw.get("variants", {}))


def _check_recipe(recipe: Recipe, origin: str) -> None:
    """Validate names and arguments of a recipe before anything starts."""
    objective = OBJECTIVES.create(recipe.objective.name, recipe.objective.args)
    ATTACKS.create(recipe.validation.attack.name, recipe.validation.attack.args)
    if objective.needs_threat and recipe.threat is None:
        raise UserError(
            f"{origin}: objective {recipe.objective.name!r} needs a threat model, for example "
            "threat: Linf:8/255"
        )
