"""Epoch loggers: TensorBoard, Weights & Biases, MLflow or your own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from buttress.errors import UserError
from buttress.registry import Registry
from buttress.results.run import Run
from buttress.results.run_spec import RunSpec
from buttress.system.files import atomic_write


class EpochLogger(Protocol):
    """Callback for each epoch of a run, in the main process."""

    def on_start(self, path: Path, spec: Mapping[str, Any]) -> None: ...

    def on_epoch(self, metrics: Mapping[str, Any]) -> None: ...

    def on_end(self, summary: Mapping[str, Any]) -> None: ...


class LoggerGroup:
    """A run and its loggers."""

    def __init__(self, run: Run, spec: RunSpec, loggers: Sequence[EpochLogger]) -> None:
        self.run, self.loggers = run, loggers
        for logger in loggers:
            logger.on_start(run.path, spec.model_dump(mode="json"))

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        for logger in self.loggers:
            logger.on_epoch(metrics)

    def on_end(self) -> None:
        for logger in self.loggers:
            logger.on_end(self.run.summary)


LOGGERS: Registry[type] = Registry("logger")


def create_logger(name: str) -> EpochLogger:
    logger: EpochLogger = LOGGERS.create(name, {})
    return logger


def scalar_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numeric entries of an epoch's metrics."""
    excluded = ("epoch", "val_images")
    scalars = {
        k: v for k, v in metrics.items() if isinstance(v, (int, float)) and k not in excluded
    }
    return {k: float(v) for k, v in scalars.items()}


@LOGGERS.register("epochs")
class CheckpointLogger:
    """Keep the checkpoint of every epoch in ``epochs/`` of the run's folder."""

    def on_start(self, path: Path, spec: Mapping[str, Any]) -> None:
        self.run = Run(path)

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        with atomic_write(self.run.checkpoint(int(metrics["epoch"]))) as temporary:
            shutil.copyfile(self.run.checkpoint("last"), temporary)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Do nothing."""


@LOGGERS.register("tensorboard")
class TensorBoardLogger:
    """Log to ``tensorboard/`` in the run's folder."""

    def on_start(self, path: Path, spec: Mapping[str, Any]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "logging to TensorBoard needs the package tensorboard: pip install tensorboard"
            ) from None
        self.writer = SummaryWriter(str(path / "tensorboard"))

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        for name, value in scalar_metrics(metrics).items():
            self.writer.add_scalar(name, value, metrics["epoch"])

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.writer.close()


@LOGGERS.register("wandb")
class WandbLogger:
    """Log to the Weights & Biases project ``WANDB_PROJECT``."""

    def on_start(self, path: Path, spec: Mapping[str, Any]) -> None:
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError:
            raise UserError(
                "logging to Weights & Biases needs the package wandb: pip install wandb"
            ) from None
        self.run = wandb.init(name=path.name, dir=str(path), config=dict(spec), resume="allow")

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        self.run.log(scalar_metrics(metrics), step=metrics["epoch"])

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.run.summary.update(dict(summary))
        self.run.finish()


@LOGGERS.register("mlflow")
class MLflowLogger:
    """Log to the MLflow server at ``MLFLOW_TRACKING_URI``."""

    def on_start(self, path: Path, spec: Mapping[str, Any]) -> None:
        try:
            import mlflow  # type: ignore[import-not-found]
        except ImportError:
            raise UserError(
                "logging to MLflow needs the package mlflow: pip install mlflow"
            ) from None
        self.mlflow = mlflow
        mlflow.start_run(run_name=path.name)
        mlflow.log_params({k: str(v)[:500] for k, v in spec.items()})

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        self.mlflow.log_metrics(scalar_metrics(metrics), step=metrics["epoch"])

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.mlflow.end_run()
