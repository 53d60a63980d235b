"""Training: objectives, recipes and the loop."""

from buttress.training.finetune import finetune
from buttress.training.objectives import OBJECTIVES
from buttress.training.recipe import list_recipes, load_recipe
from buttress.training.train import train, train_run


def list_objectives(tag: str | None = None) -> list[str]:
    return OBJECTIVES.names(tag)


__all__ = [
    "OBJECTIVES",
    "finetune",
    "list_objectives",
    "list_recipes",
    "load_recipe",
    "train",
    "train_run",
]
