"""Who is told how training goes: a seam for TensorBoard, Weights & Biases, MLflow or your own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from buttress.errors import UserError
from buttress.files import replacing
from buttress.records.run import Run
from buttress.records.spec import RunSpec
from buttress.registry import Registry


class Listener(Protocol):
    """Is told of each epoch of a run, in the main process."""

    def begin(self, path: Path, spec: Mapping[str, Any]) -> None: ...

    def epoch(self, row: Mapping[str, Any]) -> None: ...

    def end(self, summary: Mapping[str, Any]) -> None: ...


class Heard:
    """A run, and who hears of it."""

    def __init__(self, run: Run, spec: RunSpec, listeners: Sequence[Listener]) -> None:
        self.run, self.listeners = run, listeners
        for listener in listeners:
            listener.begin(run.path, spec.model_dump(mode="json"))

    def epoch(self, row: Mapping[str, Any]) -> None:
        for listener in self.listeners:
            listener.epoch(row)

    def end(self) -> None:
        for listener in self.listeners:
            listener.end(self.run.summary)


LISTENERS: Registry[type] = Registry("listener")


def create_listener(name: str) -> Listener:
    made: Listener = LISTENERS.create(name, {})
    return made


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The entries of a row that can be drawn."""
    constant = ("epoch", "val_images")
    known = {k: v for k, v in row.items() if isinstance(v, (int, float)) and k not in constant}
    return {k: float(v) for k, v in known.items()}


@LISTENERS.register("epochs")
class Epochs:
    """The checkpoint of every epoch in ``epochs/`` of the run's folder."""

    def begin(self, path: Path, spec: Mapping[str, Any]) -> None:
        self.run = Run(path)

    def epoch(self, row: Mapping[str, Any]) -> None:
        with replacing(self.run.checkpoint(int(row["epoch"]))) as temporary:
            shutil.copyfile(self.run.checkpoint("last"), temporary)

    def end(self, summary: Mapping[str, Any]) -> None:
        """Nothing is left to do."""


@LISTENERS.register("tensorboard")
class TensorBoard:
    """Curves in ``tensorboard/`` of the run's folder."""

    def begin(self, path: Path, spec: Mapping[str, Any]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("this needs TensorBoard: pip install tensorboard") from None
        self.writer = SummaryWriter(str(path / "tensorboard"))

    def epoch(self, row: Mapping[str, Any]) -> None:
        for name, value in numbers(row).items():
            self.writer.add_scalar(name, value, row["epoch"])

    def end(self, summary: Mapping[str, Any]) -> None:
        self.writer.close()


@LISTENERS.register("wandb")
class WeightsAndBiases:
    """A run in the project that ``WANDB_PROJECT`` names."""

    def begin(self, path: Path, spec: Mapping[str, Any]) -> None:
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError:
            raise UserError("this needs Weights & Biases: pip install wandb") from None
        self.run = wandb.init(name=path.name, dir=str(path), config=dict(spec), resume="allow")

    def epoch(self, row: Mapping[str, Any]) -> None:
        self.run.log(numbers(row), step=row["epoch"])

    def end(self, summary: Mapping[str, Any]) -> None:
        self.run.summary.update(dict(summary))
        self.run.finish()


@LISTENERS.register("mlflow")
class MLflow:
    """A run where ``MLFLOW_TRACKING_URI`` says."""

    def begin(self, path: Path, spec: Mapping[str, Any]) -> None:
        try:
            import mlflow  # type: ignore[import-not-found]
        except ImportError:
            raise UserError("this needs MLflow: pip install mlflow") from None
        self.mlflow = mlflow
        mlflow.start_run(run_name=path.name)
        mlflow.log_params({k: str(v)[:500] for k, v in spec.items()})

    def epoch(self, row: Mapping[str, Any]) -> None:
        self.mlflow.log_metrics(numbers(row), step=row["epoch"])

    def end(self, summary: Mapping[str, Any]) -> None:
        self.mlflow.end_run()
