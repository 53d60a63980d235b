"""The folder of a run."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from buttress.errors import UserError
from buttress.models.checkpoint import load_checkpoint
from buttress.models.sources.core import SOURCES, Source, Trained, Wanted, is_function
from buttress.models.weights import unwrap
from buttress.records.run import Run, Which


@SOURCES.register("run", form="RUN")
class RunFolder(Source):
    """The best epoch of a run that Buttress trained; it knows its own model."""

    def reads(self, what: str) -> bool:
        return (Path(what) / "run.json").is_file()

    def open(self, what: str, wanted: Wanted) -> Trained:
        return open_run(Path(what), wanted)


def open_run(path: Path, wanted: Wanted) -> Trained:
    run = Run(path)
    spec = run.spec
    shape = {
        "num_classes": spec.num_classes,
        "image_size": spec.image_size,
        "in_channels": spec.in_channels,
    }
    wanted.refuse_all(f"{path} is a run and", shape)
    refuse_code_inside(spec.model, path)
    return Trained(
        read_run(run, wanted.which),
        str(run.checkpoint(wanted.which)),
        spec.model,
        shape,
        spec.mean,
        spec.std,
        options=spec.model_args,
        caveats=tuple(run.caveats),
    )


def read_run(run: Run, which: Which | int = "best") -> dict[str, Tensor]:
    """The tensors of a run's checkpoint, with its normalisation."""
    checkpoint = Path(run.checkpoint(which))
    if not checkpoint.is_file():
        raise UserError(f"{run.path} has no checkpoint yet; train the run first")
    return unwrap(load_checkpoint(checkpoint), checkpoint)


def refuse_code_inside(model: str, folder: Path) -> None:
    """Code that comes along with weights is not run: nobody named it."""
    if not is_function(model):
        return
    file = Path(model.rpartition(":")[0]).expanduser().resolve()
    if file.is_relative_to(folder.resolve()):
        raise UserError(
            f"{folder} names code inside itself ({model}), and code that comes with weights is "
            "never run; read it, move it elsewhere, and name it yourself as the model of the "
            "checkpoint"
        )
