"""A shortened recipe is the same training, seen through a faster clock."""

from __future__ import annotations

import pytest

from buttress.errors import UserError
from buttress.results.run_spec import AWPSpec, Recipe, WeightAveragingSpec
from buttress.training import list_recipes, load_recipe
from buttress.training.schedules import learning_rate_factor, scale_recipe_epochs

SHARES = (0.0, 0.03, 0.11, 0.26, 0.51, 0.77, 0.91, 0.99)  # at no milestone, where rounding decides


@pytest.mark.parametrize("name", list_recipes())
def test_the_schedule_of_every_recipe_keeps_its_form(name: str) -> None:
    recipe = load_recipe(name, ("schedule.per_epoch=false",))  # steps of epochs are coarser
    short = scale_recipe_epochs(recipe, max(1, recipe.epochs // 3))
    for share in SHARES:
        expected = learning_rate_factor(recipe.schedule, share * recipe.epochs, recipe.epochs)
        factor_short = learning_rate_factor(short.schedule, share * short.epochs, short.epochs)
        assert factor_short == pytest.approx(expected, abs=1e-6), share
    factor = short.epochs / recipe.epochs
    assert short.eps_zero_epochs == pytest.approx(recipe.eps_zero_epochs * factor)
    assert short.eps_warmup_epochs == pytest.approx(recipe.eps_warmup_epochs * factor)
    assert Recipe.parse(short.model_dump(mode="json"), "it is still a recipe") == short


def test_what_begins_late_begins_as_late() -> None:
    recipe = load_recipe("robustwrn-sat").model_copy(
        update={
            "weight_averaging": WeightAveragingSpec(from_epoch=50),
            "awp": AWPSpec(from_epoch=10),
        }
    )
    short = scale_recipe_epochs(recipe, 20)
    assert short.weight_averaging is not None
    assert short.awp is not None
    assert (short.weight_averaging.from_epoch, short.awp.from_epoch) == (10, 2)
    assert short.validation.from_epoch == 10  # of 20, as 51 of 100
    assert short.schedule.milestones == (15, 18)


def test_its_own_length_is_the_same_recipe_and_others_are_refused() -> None:
    recipe = load_recipe("quickstart-at")
    assert scale_recipe_epochs(recipe, recipe.epochs) is recipe
    assert scale_recipe_epochs(recipe, 2).validation.every == 1
    for epochs in (0, recipe.epochs + 1):
        with pytest.raises(UserError, match="must hold"):
            scale_recipe_epochs(recipe, epochs)
