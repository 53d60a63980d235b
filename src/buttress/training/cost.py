"""Cost of a run's training: seconds, and forward passes of single images."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from buttress.results.run import Run
from buttress.results.run_spec import RunSpec
from buttress.system.rng import SampleRNG
from buttress.threats.norm_ball import Threat
from buttress.training.objectives import OBJECTIVES
from buttress.training.objectives.core import TrainingBatch
from buttress.training.train import build_model

PROBE_IMAGES = 4  # images that the passes of an objective are counted on


def training_seconds(run: Run) -> float | None:
    """Seconds of all epochs; None where the history does not say."""
    epochs = run.history
    is_known = epochs and all("seconds" in e for e in epochs)
    return float(sum(e["seconds"] for e in epochs)) if is_known else None


def training_passes(run: Run) -> float | None:
    """Forward passes of single images in training, nearly all with a backward pass.

    The images are those of the history; the passes each takes are counted on the objective itself,
    at full eps, so that epochs of warm-up without an attack count as if they had one.
    """
    epochs = run.history
    if not epochs or not all({"seconds", "images_per_second"} <= e.keys() for e in epochs):
        return None
    images = sum(e["seconds"] * e["images_per_second"] for e in epochs)
    return float(images * passes_per_image(run.spec))


def passes_per_image(spec: RunSpec) -> float:
    """Forward passes per image in one training step."""
    recipe, model = spec.recipe, build_model(spec)
    objective = OBJECTIVES.get(recipe.objective.name)(**recipe.objective.args)
    threat = Threat.parse(recipe.threat) if recipe.threat else None
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(
        PROBE_IMAGES, spec.in_channels, spec.image_size, spec.image_size, generator=generator
    )
    y = torch.arange(PROBE_IMAGES) % spec.num_classes
    step = TrainingBatch(x, y, threat, SampleRNG(0, "effort", torch.arange(PROBE_IMAGES)))
    with count_forward_images(model) as rows:
        objective.loss(model.train(), step, objective.find_adversarial(model, step))
    awp_passes = 0 if recipe.awp is None else 1  # the ascent on the weights
    return objective.repeats * (sum(rows) / PROBE_IMAGES + awp_passes)


@contextlib.contextmanager
def count_forward_images(model: nn.Module) -> Iterator[list[int]]:
    """Record the number of images in each call of a model."""
    batch_sizes: list[int] = []

    def record_batch(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        batch_sizes.append(len(inputs[0]))

    handle = model.register_forward_pre_hook(record_batch)
    try:
        yield batch_sizes
    finally:
        handle.remove()
