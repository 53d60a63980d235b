"""The model of a run that is exported; `buttress.models.saving` writes its files."""

from __future__ import annotations

from buttress.models import Classifier
from buttress.models.loading.load import load_weights
from buttress.models.loading.run import load_run_spec, read_run_checkpoint
from buttress.results.run import CheckpointName, Run
from buttress.training.train import build_model


def load_run_model(run: Run, checkpoint: CheckpointName) -> Classifier:
    """The model of a run with the weights of one of its checkpoints, in eval mode."""
    model = build_model(load_run_spec(run))
    load_weights(model, read_run_checkpoint(run, checkpoint), run.checkpoint(checkpoint))
    return model.eval()
