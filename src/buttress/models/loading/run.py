"""Models of runs, by the folder of the run."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from buttress.errors import CorruptFileError, UserError
from buttress.models.loading.checkpoint import load_checkpoint
from buttress.models.loading.core import (
    DEFAULT_SHAPE,
    SOURCES,
    ModelRequest,
    ModelSource,
    TrainedWeights,
)
from buttress.models.loading.weight_file import extract_state_dict
from buttress.results.model_code import check_run_code
from buttress.results.run import CheckpointName, Run
from buttress.results.run_spec import RunSpec
from buttress.results.training_images import read_training_images


@SOURCES.register("run", form="RUN")
class RunSource(ModelSource):
    """The best epoch of a run trained by Buttress; the run defines its model."""

    def matches(self, name: str) -> bool:
        return (Path(name) / "run.json").is_file()

    def open(self, name: str, request: ModelRequest) -> TrainedWeights:
        return load_run_weights(Path(name), request)


def load_run_weights(path: Path, request: ModelRequest) -> TrainedWeights:
    run = Run(path)
    spec = load_run_spec(run)
    shape = {name: getattr(spec, name) for name in DEFAULT_SHAPE}
    request.reject_conflicts(f"{path} is a run and", shape)
    warnings = list(run.caveats)
    try:
        training_images = read_training_images(path, spec.dataset)
    except CorruptFileError as error:
        training_images = None
        warnings.append(f"{error}; whether images were trained on cannot be checked")
    return TrainedWeights(
        read_run_checkpoint(run, request.checkpoint),
        str(run.checkpoint(request.checkpoint)),
        spec.model,
        shape,
        spec.mean,
        spec.std,
        options=spec.model_args,
        warnings=tuple(warnings),
        training_images=training_images,
    )


def read_run_checkpoint(
    run: Run, which_checkpoint: CheckpointName | int = "best"
) -> dict[str, Tensor]:
    """The tensors of a run's checkpoint, with its normalization."""
    checkpoint = Path(run.checkpoint(which_checkpoint))
    if not checkpoint.is_file():
        raise UserError(f"{run.path} has no checkpoint; train the run first")
    return extract_state_dict(load_checkpoint(checkpoint), checkpoint)


def load_run_spec(run: Run) -> RunSpec:
    """The specification of a run whose model may be built: its code is intact and trusted."""
    spec = run.spec
    check_run_code(run.path, spec.model, spec.model_sha256)
    return spec
