"""Cost of training a run: passes, seconds and memory."""

from __future__ import annotations

from math import ceil

from buttress.attacks.core import create_attack
from buttress.data import DatasetFacts
from buttress.data.mixed import extra_per_batch
from buttress.engine.cost import attack_passes
from buttress.models.cost import ModelCost, PassCount, model_cost
from buttress.results.run import Run
from buttress.results.run_spec import Recipe, RunSpec
from buttress.threats.core import Threat
from buttress.training.objectives import OBJECTIVES, Objective

BYTES_PER_NUMBER = {"32-true": 4, "bf16-mixed": 2, "16-mixed": 2}  # of an activation


def run_model_cost(spec: RunSpec) -> ModelCost:
    """Cost of the model of a run."""
    return model_cost(
        spec.model,
        num_classes=spec.num_classes,
        image_size=spec.image_size,
        in_channels=spec.in_channels,
        options=spec.model_args,
    )


def passes_per_image(recipe: Recipe) -> PassCount:
    """Passes of a training image in an epoch, as its objective declares them, at full eps."""
    objective = _create_objective(recipe)
    num_losses = 1 if recipe.awp is None else 2  # AWP: one more, for the ascent on the weights
    repeats = objective.repeats * recipe.augmentation_repeats
    return (objective.attack_passes + _loss_passes(objective) * num_losses) * repeats


def training_passes(spec: RunSpec, facts: DatasetFacts) -> PassCount:
    """Passes of a training: attack and loss of each epoch, and the validation after it.

    Epochs at the start with eps = 0 have no attack; validation counts as if all images were robust.
    """
    recipe, objective = spec.recipe, _create_objective(spec.recipe)
    attacked_epochs = max(recipe.epochs - recipe.eps_zero_epochs, 0)
    awp_epochs = 0 if recipe.awp is None else max(recipe.epochs - recipe.awp.from_epoch, 0)
    per_image = objective.attack_passes * attacked_epochs
    per_image += _loss_passes(objective) * (recipe.epochs + awp_epochs)
    repeats = objective.repeats * recipe.augmentation_repeats
    training = per_image * (repeats * images_per_epoch(spec, facts))
    validation_epochs = sum(is_validation_epoch(recipe, e + 1) for e in range(recipe.epochs))
    return training + validation_passes(spec, facts) * validation_epochs


def validation_passes(spec: RunSpec, facts: DatasetFacts) -> PassCount:
    """Passes of one validation."""
    recipe, validation = spec.recipe, spec.recipe.validation
    num_images = facts.num_val if recipe.select_on == "val" else facts.num_test
    per_image = PassCount(1)
    if recipe.threat is not None:
        attack = create_attack(validation.attack.name, **validation.attack.args)
        per_image += attack_passes(attack, Threat.parse(recipe.threat), spec.num_classes)
    return per_image * min(num_images, validation.limit or num_images)


def images_per_epoch(spec: RunSpec, facts: DatasetFacts) -> int:
    """Images of an epoch, with extra ones; an incomplete last batch is dropped."""
    recipe = spec.recipe
    num_real = facts.num_train + (facts.num_val if recipe.select_on == "test" else 0)
    num_real = min(num_real, spec.limit or num_real)
    real_per_batch = recipe.batch_size
    if recipe.extra_data is not None:
        real_per_batch -= extra_per_batch(recipe.batch_size, recipe.extra_data.batch_fraction)
    if num_real < real_per_batch:
        return round(num_real * recipe.batch_size / real_per_batch)
    return num_real // real_per_batch * recipe.batch_size


def is_validation_epoch(recipe: Recipe, epoch: int) -> bool:
    """Whether an epoch, counted from 1, is validated."""
    validation = recipe.validation
    return epoch == recipe.epochs or (
        epoch % validation.every == 0 and epoch >= validation.from_epoch
    )


def training_memory(spec: RunSpec) -> float:
    """Bytes of weights, gradients, optimizer state and activations on one device, about."""
    recipe, cost, objective = spec.recipe, run_model_cost(spec), _create_objective(spec.recipe)
    optimizer_copies = 2 if recipe.optimizer.name == "adamw" else int(recipe.optimizer.momentum > 0)
    other_copies = sum(
        (recipe.weight_averaging is not None, recipe.awp is not None, objective.needs_threat)
    )  # averaged weights, their perturbation, and the inference-optimized model of the attack
    num_images = ceil(recipe.batch_size / recipe.accumulation_steps) * objective.loss_passes
    activations = num_images * cost.activations * BYTES_PER_NUMBER[recipe.precision]
    return 4 * cost.parameters * (2 + optimizer_copies + other_copies) + activations


def training_seconds(run: Run) -> float | None:
    """Seconds of all epochs; None where the history does not say."""
    epochs = run.history
    is_known = epochs and all("seconds" in e for e in epochs)
    return float(sum(e["seconds"] for e in epochs)) if is_known else None


def trained_passes(run: Run) -> float | None:
    """Forward passes of single images in the epochs of the history, with a full attack in each."""
    epochs = run.history
    if not epochs or not all({"seconds", "images_per_second"} <= e.keys() for e in epochs):
        return None
    images = sum(e["seconds"] * e["images_per_second"] for e in epochs)
    return float(images * passes_per_image(run.spec.recipe).forward)


def _create_objective(recipe: Recipe) -> Objective:
    objective: Objective = OBJECTIVES.create(recipe.objective.name, recipe.objective.args)
    return objective


def _loss_passes(objective: Objective) -> PassCount:
    return PassCount(objective.loss_passes, weight_backward=objective.loss_passes)
