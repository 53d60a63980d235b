"""Models of runs, by the folder of the run."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from buttress.errors import UserError
from buttress.models.loading.checkpoint import load_checkpoint
from buttress.models.loading.core import (
    DEFAULT_SHAPE,
    SOURCES,
    ModelRequest,
    ModelSource,
    TrainedWeights,
    is_function_name,
)
from buttress.models.loading.weight_file import extract_state_dict
from buttress.results.run import CheckpointName, Run


@SOURCES.register("run", form="RUN")
class RunSource(ModelSource):
    """The best epoch of a run trained by Buttress; the run defines its model."""

    def matches(self, name: str) -> bool:
        return (Path(name) / "run.json").is_file()

    def open(self, name: str, request: ModelRequest) -> TrainedWeights:
        return load_run_weights(Path(name), request)


def load_run_weights(path: Path, request: ModelRequest) -> TrainedWeights:
    run = Run(path)
    spec = run.spec
    shape = {name: getattr(spec, name) for name in DEFAULT_SHAPE}
    request.reject_conflicts(f"{path} is a run and", shape)
    reject_embedded_code(spec.model, path)
    return TrainedWeights(
        read_run_checkpoint(run, request.checkpoint),
        str(run.checkpoint(request.checkpoint)),
        spec.model,
        shape,
        spec.mean,
        spec.std,
        options=spec.model_args,
        warnings=tuple(run.caveats),
    )


def read_run_checkpoint(
    run: Run, which_checkpoint: CheckpointName | int = "best"
) -> dict[str, Tensor]:
    """The tensors of a run's checkpoint, with its normalization."""
    checkpoint = Path(run.checkpoint(which_checkpoint))
    if not checkpoint.is_file():
        raise UserError(f"{run.path} has no checkpoint; train the run first")
    return extract_state_dict(load_checkpoint(checkpoint), checkpoint)


def reject_embedded_code(model: str, folder: Path) -> None:
    """Raise `UserError` if a model refers to code inside the folder of its weights."""
    if not is_function_name(model):
        return
    file = Path(model.rpartition(":")[0]).expanduser().resolve()
    if file.is_relative_to(folder.resolve()):
        raise UserError(
            f"{folder} refers to code inside itself ({model}), which is never run "
            "automatically; review it, move it elsewhere and pass it as --model "
            "FILE.py:FUNCTION"
        )
