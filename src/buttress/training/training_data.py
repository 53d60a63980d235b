"""The images of a run: its training batches, its validation images, and which they were."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np

from buttress.data import Dataset, load_dataset
from buttress.data.mixed import MixedDataset
from buttress.errors import CorruptFileError, DataError, UserError
from buttress.results.run import Run
from buttress.results.run_spec import RunSpec
from buttress.results.training_images import (
    TRAINING_IMAGES_FILE,
    TrainingImages,
    read_training_images,
    write_training_images,
)
from buttress.system.progress import Progress
from buttress.training.objectives import OBJECTIVES
from buttress.training.sampler import BatchSampler


def load_training_data(spec: RunSpec, progress: Progress) -> tuple[BatchSampler, Dataset]:
    """Load the training batches and the validation images of a run."""
    recipe, size = spec.recipe, spec.image_size
    train_split = "train" if recipe.select_on == "val" else "train+val"  # as in the publications
    data = load_dataset(
        spec.dataset, train_split, limit=spec.limit, image_size=size, progress=progress
    )
    val = load_dataset(spec.dataset, recipe.select_on, limit=recipe.validation.limit,
                       image_size=size, progress=progress)  # fmt: skip
    mixed_dataset = None
    if recipe.extra_data is not None:
        extra_data = load_dataset(
            recipe.extra_data.dataset, "train", image_size=size, progress=progress
        )
        mixed_dataset = MixedDataset(data, extra_data, recipe.extra_data.batch_fraction)
    return BatchSampler(data, recipe.batch_size, spec.seed, mixed_dataset), val


def record_training_images(run: Run, sampler: BatchSampler, val_data: Dataset) -> None:
    """Write the hashes of the training images, for evaluations, unless they are written."""
    with contextlib.suppress(CorruptFileError):
        if read_training_images(run.path, sampler.data.name) is not None:
            return
    datasets = [sampler.data, *([sampler.mixed_dataset.extra] if sampler.mixed_dataset else [])]
    hashes_by_dataset = [data.image_hashes for data in datasets]
    hashes = np.unique(
        np.concatenate([np.zeros(0, np.uint64), *(h for h in hashes_by_dataset if h is not None)])
    )
    images = TrainingImages(sampler.data.name, sampler.data.split, hashes)
    copies = 0 if val_data.image_hashes is None else images.contains(val_data.image_hashes).sum()
    write_training_images(run.path, replace(images, copies_in_validation=int(copies)))


def restore_training_images(run: Run, spec: RunSpec, progress: Progress) -> None:
    """Write the hashes of the training images of a finished run again if they are lost."""
    try:
        if read_training_images(run.path, spec.dataset) is not None:
            return
        progress.log(f"{run.path / TRAINING_IMAGES_FILE} is missing; writing it again")
    except CorruptFileError as error:
        progress.log(f"{error}; writing it again")
    try:
        record_training_images(run, *load_training_data(spec, progress))
    except DataError as error:  # the run itself is complete
        progress.log(f"{error}; whether images were trained on cannot be checked")


def check_extra_data(spec: RunSpec) -> None:
    """Raise `UserError` if the objective needs extra training images and the recipe has none."""
    objective = OBJECTIVES.get(spec.recipe.objective.name)
    if objective.needs_extra_data and spec.recipe.extra_data is None:
        raise UserError(
            f"objective {spec.recipe.objective.name!r} needs extra training images; set "
            "extra_data.dataset, for example --set extra_data.dataset=npz:PATH"
        )
