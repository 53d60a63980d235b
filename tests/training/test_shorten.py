"""A shortened recipe is the same training, seen through a faster clock."""

from __future__ import annotations

import pytest

from buttress.errors import UserError
from buttress.records.spec import AWP, Average, Recipe
from buttress.training import list_recipes, load_recipe
from buttress.training.optimise import rate_factor
from buttress.training.shorten import shortened

SHARES = (0.0, 0.03, 0.11, 0.26, 0.51, 0.77, 0.91, 0.99)  # at no milestone, where rounding decides


@pytest.mark.parametrize("name", list_recipes())
def test_the_schedule_of_every_recipe_keeps_its_form(name: str) -> None:
    recipe = load_recipe(name, ("schedule.by_epoch=false",))  # steps of epochs are coarser
    short = shortened(recipe, max(1, recipe.epochs // 3))
    for share in SHARES:
        expected = rate_factor(recipe.schedule, share * recipe.epochs, recipe.epochs)
        found = rate_factor(short.schedule, share * short.epochs, short.epochs)
        assert found == pytest.approx(expected, abs=1e-6), share
    factor = short.epochs / recipe.epochs
    assert short.eps_zero_epochs == pytest.approx(recipe.eps_zero_epochs * factor)
    assert short.eps_warmup_epochs == pytest.approx(recipe.eps_warmup_epochs * factor)
    assert Recipe.parse(short.model_dump(mode="json"), "it is still a recipe") == short


def test_what_begins_late_begins_as_late() -> None:
    recipe = load_recipe("robustwrn-sat").model_copy(
        update={"average": Average(from_epoch=50), "awp": AWP(from_epoch=10)}
    )
    short = shortened(recipe, 20)
    assert short.average is not None
    assert short.awp is not None
    assert (short.average.from_epoch, short.awp.from_epoch) == (10, 2)
    assert short.validation.from_epoch == 10  # of 20, as 51 of 100
    assert short.schedule.milestones == (15, 18)


def test_its_own_length_is_the_same_recipe_and_others_are_refused() -> None:
    recipe = load_recipe("quickstart-at")
    assert shortened(recipe, recipe.epochs) is recipe
    assert shortened(recipe, 2).validation.every == 1
    for epochs in (0, recipe.epochs + 1):
        with pytest.raises(UserError, match="must hold"):
            shortened(recipe, epochs)
