"""A recipe in fewer epochs: everything that is counted in epochs shrinks alike."""

from __future__ import annotations

from buttress.errors import UserError
from buttress.records.spec import Recipe, Schedule, Validation


def shortened(recipe: Recipe, epochs: int) -> Recipe:
    """The recipe with its whole schedule in ``epochs``; with its own number it is the same recipe.

    The learning rate still falls to its end and eps still grows to its full size, so that networks
    of short trainings can be compared with each other. The best epoch is chosen from about as many.
    """
    if not 1 <= epochs <= recipe.epochs:
        raise UserError(f"`1 <= epochs <= {recipe.epochs}` must hold, but got epochs={epochs}")
    if epochs == recipe.epochs:
        return recipe
    share = epochs / recipe.epochs
    changes = {
        "epochs": epochs,
        "eps_zero_epochs": recipe.eps_zero_epochs * share,
        "eps_warmup_epochs": recipe.eps_warmup_epochs * share,
        "schedule": _schedule(recipe.schedule, share),
        "validation": _validation(recipe.validation, share),
    }
    for name in ("average", "awp"):
        part = getattr(recipe, name)
        if part is not None:
            changes[name] = part.model_copy(update={"from_epoch": part.from_epoch * share})
    return recipe.model_copy(update=changes)


def _schedule(schedule: Schedule, share: float) -> Schedule:
    lengths = ("warmup_epochs", "hold_epochs", "cooldown_epochs")
    changes: dict[str, object] = {name: getattr(schedule, name) * share for name in lengths}
    changes["horizon"] = None if schedule.horizon is None else schedule.horizon * share
    changes["milestones"] = tuple(epoch * share for epoch in schedule.milestones)
    changes["points"] = tuple((epoch * share, factor) for epoch, factor in schedule.points)
    return schedule.model_copy(update=changes)


def _validation(validation: Validation, share: float) -> Validation:
    every = max(1, round(validation.every * share))
    return validation.model_copy(
        update={"every": every, "from_epoch": int(validation.from_epoch * share)}
    )
