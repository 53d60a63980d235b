"""Named training configurations: YAML files in ``recipes/``, or a user's own."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from buttress.attacks.core import ATTACKS
from buttress.errors import UnknownName, UserError
from buttress.records.spec import Recipe
from buttress.registry import canonical, natural, unknown
from buttress.spec import override, read_yaml
from buttress.training.objectives import OBJECTIVES


def _shipped() -> dict[str, Path]:
    folder = Path(str(resources.files("buttress.training") / "recipes"))
    return {p.stem: p for p in sorted(folder.glob("*.yaml"))}


def list_recipes() -> list[str]:
    return sorted(_shipped(), key=natural)


def load_recipe(name: str | Path | Recipe, changes: tuple[str, ...] = ()) -> Recipe:
    """A recipe by name or from a YAML file, with ``key=value`` changes, fully checked."""
    if isinstance(name, Recipe):
        raw: dict[str, Any] = name.model_dump(mode="json")
        where = f"recipe {name.name or 'given'}"
    else:
        path = _find(name)
        raw = read_yaml(path)
        where = f"recipe {path.name}" if path.stem in _shipped() else str(path)
        if not isinstance(raw, dict):
            raise UserError(f"{where}: a recipe is a mapping of keys, but got {type(raw).__name__}")
        raw.setdefault("name", path.stem)
    recipe = Recipe.parse(override(raw, changes), where)
    _check(recipe, where)
    return recipe


def _find(name: str | Path) -> Path:
    if str(name).endswith((".yaml", ".yml")):
        return Path(name)
    shipped = {canonical(k): v for k, v in _shipped().items()}
    if canonical(str(name)) not in shipped:
        raise UnknownName(unknown("recipe", str(name), list_recipes()))
    return shipped[canonical(str(name))]


def _check(recipe: Recipe, where: str) -> None:
    """Names and arguments are tried before anything starts."""
    objective = OBJECTIVES.create(recipe.objective.name, recipe.objective.args)
    ATTACKS.create(recipe.validation.attack.name, recipe.validation.attack.args)
    if objective.needs_threat and recipe.threat is None:
        raise UserError(
            f"{where}: objective {recipe.objective.name!r} needs a threat, like threat: Linf:8/255"
        )
